"""Runs that cannot be corrupted: killed, stopped, out of disk, diverging, fought over."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from egc.api import EGC
from egc.errors import ConfigError, RunError, TrainingError
from egc.objectives.egc import EGCObjective
from egc.training.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from egc.training.run import Run
from egc.training.stop import StoppedError
from tests.training.test_training import trainer

ROOT = Path(__file__).parents[2]

# Trains with the command line in forked children, each of which kills itself at a random event: a
# step, or any moment of a save (after the tensors, after the description, before renaming ...).
# Forking keeps the 3 s of importing PyTorch out of every restart.
KILLER = """
import os, random, signal, sys
import torch
torch.set_num_threads(int(os.environ.get("EGC_TEST_THREADS", "1")))
import diffusers, torch._dynamo, egc.training.fit
from egc.cli import main
from egc.training import checkpoint, trainer

folder, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def attempt(run, countdown):
    def event():
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def before(function):
        def wrapped(*args, **kwargs):
            event()
            return function(*args, **kwargs)
        return wrapped
    for module, names in ((checkpoint, ["_flush", "_hash", "_clean", "save_file"]),
                          (trainer, ["learning_rate"])):
        for name in names:
            setattr(module, name, before(getattr(module, name)))
    os._exit(main(["train", "digits", "--no-report", "--run", f"{folder}/{run}", *sys.argv[4:]]))

def train(run, kills):
    rng, killed, done = random.Random(seed), 0, False
    while not done:
        # After enough kills, let it finish.
        countdown = rng.randint(1, 25) if killed < kills else 0
        if (child := os.fork()) == 0:
            attempt(run, countdown)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            killed += 1
        else:
            assert os.WEXITSTATUS(status) == 0, status
            done = killed >= kills or countdown
    return killed

print(train("killed", kills), train("calm", 0))
"""

QUICK = [
    "network.channels=8", "network.head_width=8", "network.groups=4", "network.depth=1",
    "network.multipliers=[1]", "network.attention=[]", "sample.steps=1",
    "train.batch_size=2", "train.warmup=0", "train.steps=60", "train.checkpoint_every=3",
    "train.log_every=1", "train.preview_every=60",
]  # fmt: skip


@pytest.mark.parametrize("wanted", [8, pytest.param(24, marks=pytest.mark.slow)])
def test_sigkill_at_random_moments_changes_nothing(tmp_path, wanted):
    """Many kills, some in the middle of a save: the same weights, bit by bit."""
    settings = [part for each in QUICK for part in ("--set", each)]
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path), str(wanted), "7", *settings],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    kills, none = map(int, done.stdout.splitlines()[-1].split())
    assert kills >= wanted
    assert none == 0
    weights = "model/model.safetensors"
    killed, calm = (load_file(tmp_path / run / weights) for run in ("killed", "calm"))
    for name in calm:
        np.testing.assert_array_equal(killed[name], calm[name])
    steps = [r["step"] for r in Run(tmp_path / "killed").read_metrics() if "loss" in r]
    assert steps == list(range(1, 61))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves(tiny_config, tmp_path, number):
    config = tiny_config.replace(train={"steps": 9, "checkpoint_every": 100, "preview_every": 3})
    before = signal.getsignal(number)

    def ask(net, step):
        os.kill(os.getpid(), number)
        return {}

    with pytest.raises(StoppedError, match=rf"{number.name} at step 4, which is saved") as error:
        trainer(config, tmp_path / "run", watch=ask).train(show=False)
    assert error.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    again = trainer(config, tmp_path / "run")
    assert again.step == 4
    again.train(show=False)
    straight = trainer(config, tmp_path / "straight")
    straight.train(show=False)
    for name, expected in straight.net.state_dict().items():
        assert torch.equal(again.net.state_dict()[name], expected)


def test_a_second_trainer_is_refused(tiny_config, tmp_path):
    """While one holds the directory; once it lets go, or dies, the next may."""
    run = Run(tmp_path / "run")
    with run.locked():
        code = "from egc.training.run import Run; import sys\nwith Run(sys.argv[1]).locked(): pass"
        done = subprocess.run(
            [sys.executable, "-c", code, str(run.path)], capture_output=True, text=True
        )
        assert f"is being trained by process {os.getpid()}" in done.stderr
        with pytest.raises(RunError, match="is being trained by process"):
            EGC.fit(preset=tiny_config, run=run.path, progress=False)
    with run.locked():
        pass


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path):
    """Files may not grow beyond a limit: the second checkpoint does not fit."""
    small = Checkpoint(1, {"x": torch.zeros(10)})
    large = Checkpoint(2, {"x": torch.zeros(500_000)})
    save_checkpoint(tmp_path, small, keep=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(TrainingError, match=r"step 2 could not be .* step 1 is whole"):
            save_checkpoint(tmp_path, large, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_the_best_checkpoint_stays(tmp_path):
    for step, quality in ((1, 0.5), (2, 0.9), (3, 0.9), (4, 0.7), (5, None)):
        save_checkpoint(tmp_path, Checkpoint(step, {"x": torch.zeros(1)}, quality), keep=1)
    kept = sorted(p.name for p in tmp_path.iterdir())
    assert kept == ["step-00000003", "step-00000005"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.step == 5


def poisoned(monkeypatch, steps: set[int]):
    """The objective gives an infinite loss at these calls."""
    calls = iter(range(1_000_000))
    real = EGCObjective.forward

    def forward(self, part):
        terms = real(self, part)
        if next(calls) in steps:
            bad = terms.loss * float("inf")
            return terms._replace(loss=bad, parts={**terms.parts, "score": bad.detach()})
        return terms

    monkeypatch.setattr(EGCObjective, "forward", forward)


def test_a_nonfinite_step_stops_or_is_skipped(tiny_config, tmp_path, monkeypatch):
    config = tiny_config.replace(
        objective={"clean_stream": False}, train={"steps": 8, "checkpoint_every": 1}
    )
    poisoned(monkeypatch, {3})
    with pytest.raises(TrainingError, match="step 3: the score term is inf"):
        trainer(config, tmp_path / "stop").train(show=False)
    found = newest_checkpoint(tmp_path / "stop" / "checkpoints")
    assert found is not None
    assert found.step == 3

    monkeypatch.undo()
    poisoned(monkeypatch, {3, 4})
    skipping = trainer(config.replace(train={"on_nonfinite": "skip"}), tmp_path / "skip")
    net = skipping.train(show=False)
    assert skipping.step == 8
    skipped = [r["step"] for r in skipping.run.read_metrics() if "skipped" in r]
    assert skipped == [3, 4]
    assert all(torch.isfinite(p).all() for p in net.parameters())

    monkeypatch.undo()
    poisoned(monkeypatch, set(range(100)))
    with pytest.raises(TrainingError, match="11 times in a row"):
        trainer(
            config.replace(train={"on_nonfinite": "skip", "steps": 50}), tmp_path / "never"
        ).train(show=False)


def test_an_unknown_tracker_is_refused(tiny_config):
    with pytest.raises(ConfigError, match="not a choice"):
        tiny_config.replace(train={"trackers": ["abacus"]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"precision": "bf16"}, "needs a GPU"),
        ({"accumulate": 3}, "must divide evenly"),
    ],
)
def test_what_this_machine_cannot_is_refused(tiny_config, tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        trainer(tiny_config.replace(train=change), tmp_path / "run")


def test_clean_images_that_do_not_divide_evenly_are_refused(tiny_config, tmp_path):
    config = tiny_config.replace(objective={"clean_share": 0.25}, train={"accumulate": 4})
    with pytest.raises(ConfigError, match="2 clean images"):
        trainer(config, tmp_path / "run")


@pytest.mark.parametrize("change", [{"accumulate": 4}, {"activation_checkpointing": True}])
@pytest.mark.parametrize("kind", ["unet", "pyramid"])
def test_saving_memory_changes_nothing(tiny_config, tmp_path, kind, change):
    # Not Adam, whose step is the sign of a gradient, also of one that is nothing but rounding.
    sgd = {"optimizer": "sgd", "lr": 0.01}
    config = tiny_config.replace(network={"kind": kind}, train=sgd)
    plain = trainer(config, tmp_path / "plain")
    plain.train(show=False)
    spare = trainer(config.replace(train=change), tmp_path / "spare")
    spare.train(show=False)
    for name, expected in plain.ema.net.state_dict().items():
        # Weights move by about 1e-4; sums in another order make 4e-7 of that at most.
        torch.testing.assert_close(
            spare.ema.net.state_dict()[name], expected, rtol=1e-4, atol=4e-6
        )


def test_tensorboard_gets_the_metrics(tiny_config, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny_config.replace(train={"trackers": ["tensorboard"]})
    run = trainer(config, tmp_path / "run", watch=lambda net, step: {"validation_accuracy": 0.5})
    run.train(show=False)
    events = next((tmp_path / "run").rglob("events.out.tfevents*"))
    read = EventAccumulator(str(events.parent))
    read.Reload()
    written = [(r["step"], r["loss"]) for r in run.run.read_metrics() if "loss" in r]
    found = [(e.step, e.value) for e in read.Scalars("loss")]
    assert [step for step, _ in found] == [step for step, _ in written]
    np.testing.assert_allclose([v for _, v in found], [v for _, v in written], rtol=1e-5)
    assert read.Scalars("validation_accuracy")[0].value == 0.5
