"""Training: resuming, reproducing, and what a run leaves behind."""

import json
import shutil

import numpy as np
import pytest
import torch

from egc.api import EGC, load
from egc.config import Config, TrainConfig
from egc.data import open_source
from egc.data.imageset import positions_at
from egc.errors import RunError, TrainingError
from egc.training.batches import step_generator
from egc.training.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from egc.training.ema import EMA
from egc.training.run import Run
from egc.training.schedule import learning_rate
from egc.training.trainer import Trainer


def trainer(config: Config, path, watch=None) -> Trainer:
    run = Run(path)
    run.check(config)
    run.start(config)
    data = open_source(config.data)
    model = EGC.build(config, data.train.classes, seed=config.train.seed)
    return Trainer(model, data.train, run, watch)


@pytest.mark.parametrize("kind", ["unet", "pyramid"])
def test_half_resume_half_equals_the_whole(tiny_config, tmp_path, kind):
    """Weights, average and metrics: bit for bit, with augmentation on both streams."""
    moves = {"augment": {"flip": True}, "augment_clean": {"shift": 1}}
    config = tiny_config.replace(network={"kind": kind}, data=moves)
    whole = trainer(config, tmp_path / "whole")
    whole.train(show=False)

    half = config.replace(train={"steps": 2})
    trainer(half, tmp_path / "halves").train(show=False)
    rest = trainer(config, tmp_path / "halves")
    assert rest.step == 2
    rest.train(show=False)

    for name, expected in whole.net.state_dict().items():
        assert torch.equal(rest.net.state_dict()[name], expected), name
    for name, expected in whole.ema.net.state_dict().items():
        assert torch.equal(rest.ema.net.state_dict()[name], expected), name
    for a, b in zip(whole.run.read_metrics(), rest.run.read_metrics(), strict=True):
        a.pop("images_per_second"), b.pop("images_per_second")
        assert a == b


def test_training_learns(tiny_config, tmp_path):
    """A hundred small steps: both terms of the loss fall well below where they start."""
    config = tiny_config.replace(
        objective={"gamma": 1.0},
        train={"steps": 100, "lr": 5e-3, "batch_size": 16, "log_every": 10},
    )
    run = trainer(config, tmp_path / "run")
    run.train(show=False)
    first, *_, last = run.run.read_metrics()
    # 0.46 and 0.57 here; of CPUs that round differently, the second digit differs.
    assert last["score"] < 0.6 * first["score"]
    assert last["class_clean"] < 0.8 * first["class_clean"]


def test_training_leaves_the_users_random_numbers_alone(tiny_config, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trainer(tiny_config, tmp_path / "run").train(show=False)
    assert torch.equal(torch.rand(3), expected)


def test_a_run_keeps_everything(tiny_config, trained_run):
    path = trained_run
    assert Config.load(path / "config.toml") == tiny_config
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "loss" in r] == [2, 4]
    assert [r["step"] for r in records if "validation_accuracy" in r] == [4]
    assert (path / "samples" / "step-00000004.png").is_file()
    assert sorted(p.name for p in (path / "checkpoints").iterdir()) == [
        "step-00000002",
        "step-00000004",
    ]
    assert sorted(p.name for p in (path / "model").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert (path / "report.html").is_file()


def test_a_finished_run_is_not_trained_again(tiny_config, trained_run, tmp_path):
    """... and gives the model that it left behind."""
    shutil.copytree(trained_run, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    model = EGC.fit(preset=tiny_config, run=tmp_path / "run", progress=False)
    images = open_source(tiny_config.data).test.images(np.arange(4))
    np.testing.assert_array_equal(
        load(trained_run).predict_proba(images), model.predict_proba(images)
    )
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_another_configuration_is_refused_and_named(tiny_config, tmp_path):
    Run(tmp_path / "run").start(tiny_config)
    other = tiny_config.replace(train={"lr": 0.5})
    with pytest.raises(RunError, match=r"train\.lr was 0\.001, now 0\.5"):
        Run(tmp_path / "run").check(other)


def test_a_longer_run_continues_unless_the_rate_decays(tiny_config, tmp_path):
    Run(tmp_path / "run").start(tiny_config)
    Run(tmp_path / "run").check(tiny_config.replace(train={"steps": 400}))
    decaying = tiny_config.replace(train={"lr_decay": "cosine"})
    Run(tmp_path / "decaying").start(decaying)
    with pytest.raises(RunError, match=r"train\.steps was 4, now 400"):
        Run(tmp_path / "decaying").check(decaying.replace(train={"steps": 400}))


def test_a_directory_with_other_things_is_refused(tiny_config, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="neither empty nor a run"):
        Run(tmp_path).check(tiny_config)


def test_an_exploding_loss_stops_with_its_name(tiny_config, tmp_path):
    with pytest.raises(TrainingError, match=r"step \d+: the \w+ term is"):
        trainer(
            tiny_config.replace(train={"lr": 1e30, "clip": 0.0, "steps": 50}), tmp_path / "run"
        ).train(show=False)


def test_every_pass_sees_every_image_once():
    size, batch = 50, 8
    seen = np.concatenate([positions_at(step, batch, size, seed=3) for step in range(25)])
    for epoch in range(4):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))
    assert not np.array_equal(seen[:size], seen[size : 2 * size])
    assert not np.array_equal(seen[:size], positions_at(0, size, size, seed=4))


def test_step_generators_differ():
    keys = [(s, r, i) for s in (0, 1) for r in (0, 1) for i in (0, 1)]
    values = {torch.rand(1, generator=step_generator(*key)).item() for key in keys}
    assert len(values) == len(keys)


def test_learning_rate_warms_up_and_decays():
    config = TrainConfig(steps=100, lr=1.0, lr_decay="cosine", warmup=9)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(0.98, abs=0.01)
    assert rates[99] < 0.001
    assert learning_rate(TrainConfig(lr=0.3), 12345) == 0.3


def test_ema_averages_and_starts_short():
    net = torch.nn.Linear(1, 1, bias=False)
    ema = EMA(net, decay=0.5)
    with torch.no_grad():
        net.weight.fill_(1.0)
        ema.net.weight.fill_(0.0)
    ema.update(net, step=0)  # decay (1 + 0) / (10 + 0) = 0.1
    assert ema.net.weight.item() == pytest.approx(0.9)
    ema.update(net, step=1000)
    assert ema.net.weight.item() == pytest.approx(0.95)
    assert net.weight.item() == 1.0


def test_damaged_checkpoints_are_passed_over(tmp_path, caplog):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, Checkpoint(step, {"x": torch.full((9,), float(step))}), keep=3)
    blob = tmp_path / "step-00000003" / "state.safetensors"
    blob.write_bytes(blob.read_bytes()[:-4])
    (tmp_path / "step-00000002" / "state.json").write_text("{")
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.tensors["x"][0].item()) == (1, 1.0)
    assert "damaged" in caplog.text


def test_old_checkpoints_make_room(tmp_path):
    for step in (1, 2, 3, 10):
        save_checkpoint(tmp_path, Checkpoint(step, {"x": torch.zeros(1)}), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000010"]
    assert newest_checkpoint(tmp_path / "nothing") is None
