"""What the two processes of the fixture `two_processes` do, under torchrun, one after another.

Each job has a folder for what it leaves behind, and leaves a file `NAME-RANK.done` when it is
done; the tests of it look there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from egc.api import EGC
from egc.cli import main
from egc.config import Config
from egc.data import open_source
from egc.metrics.classification import evaluate_classification
from egc.objectives.egc import EGCObjective
from egc.tasks.sample import sample
from egc.training.batches import BatchStream
from egc.training.run import Run
from egc.training.trainer import Trainer
from tests.conftest import TINY, shaken

CPU = torch.device("cpu")


TOLD = {"label_width": 6, "heads": 2, "head_width": 4}
"""of a network that sees the label"""


PYRAMID = {"kind": "pyramid"}


def build(network: dict | None = None, **objective) -> tuple[EGC, Config]:
    config = Config.from_dict(TINY).replace(objective=objective, network=network or {})
    return shaken(EGC.build(config, [str(i) for i in range(10)])), config


def joined_gradient(processes: int, network: dict | None = None) -> torch.Tensor:
    """The gradient of one step, by one process, over what all processes would see."""
    model, config = build(network)
    objective = EGCObjective(model.net, model.diffusion, config.objective)
    data = open_source(config.data).train
    told = {"no_label": model.net.no_label} if model.net.takes_label else {}
    for rank in range(processes):
        batch = BatchStream(data, model.codec, config, CPU, rank, processes, **told)(0)
        for part in objective.plan(batch, share=1 / processes):
            objective(part).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.net.parameters()])


def gradients(folder: Path) -> None:
    """DDP, whole and in pieces: the joined batch's gradient."""
    cases = product((1, 2), (None, TOLD, PYRAMID, PYRAMID | TOLD))
    for number, (accumulate, network) in enumerate(cases):
        model, config = build(network)
        model.config = config.replace(train={"accumulate": accumulate})
        data = open_source(config.data).train
        trainer = Trainer(model, data, Run(folder / str(number)))
        assert trainer.accelerator.num_processes == 2
        trainer._backward(trainer.stream(0))
        got = torch.cat([p.grad.flatten() for p in trainer.net.parameters()])
        expected = joined_gradient(2, network)
        error = ((got - expected).norm() / expected.norm()).item()
        assert error < 1e-4, (accumulate, network, error)


def metrics(folder: Path) -> None:
    """Accuracy over both processes' shares is that of the whole."""
    model, config = build()
    test = open_source(config.data).test
    together = evaluate_classification(model, test)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "1")
        patch.setenv("RANK", "0")
        alone = evaluate_classification(model, test)
    assert together.accuracy == alone.accuracy
    assert (together.confusion == alone.confusion).all()


def drawing(folder: Path) -> None:
    """`model.sample` draws here and now: one process may call it alone. Drivers still split."""
    model, _ = build()
    rank = int(os.environ["RANK"])
    if rank == 0:
        assert len(model.sample("3", count=3, progress=False)) == 3
    each = []
    step = model.net.eps

    def counted(x, *args, **options):
        each.append(len(x))
        return step(x, *args, **options)

    model.net.eps = counted
    together = sample(
        model, None, 5, sampling=model.sampling(), seed=7, progress=False, shared=True
    )
    assert set(each) == {3 - rank}, each
    del model.net.eps
    alone = model.sample(count=5, seed=7, progress=False)
    difference = together.images.astype(int) - alone.images.astype(int)
    assert abs(difference).max() <= 1


def spoken(place: Path, *command: str) -> None:
    """Run `egc COMMAND`, and write what this process says to `place`, a name of its own each."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*command, "--json"]) == 0
    place.with_name(f"{place.name}-{os.environ['RANK']}.json").write_text(out.getvalue())


QUICK = [
    "network.channels=8", "network.head_width=8", "network.groups=4", "sample.steps=2",
    "train.batch_size=4", "train.log_every=1", "train.warmup=0", "train.lr_decay=none",
    "train.checkpoint_every=2", "train.preview_every=4",
]  # fmt: skip


def resumed(folder: Path) -> None:
    """A run in two halves, and one without a stop."""
    for number, (run, steps) in enumerate((("halves", 2), ("halves", 4), ("whole", 4))):
        settings = [part for each in [*QUICK, f"train.steps={steps}"] for part in ("--set", each)]
        report = ["--no-report"] if steps == 2 else []
        train = ["train", "digits", "--run-dir", str(folder / run), *settings, *report]
        spoken(folder / str(number), *train)


SAMPLED = ["--label", "3", "8", "--count", "5", "--steps", "4", "--seed", "11"]


def samples(folder: Path) -> None:
    spoken(folder / "told", "sample", "digits", *SAMPLED, "--out", str(folder / "two.npz"))


def encode(folder: Path) -> list[str]:
    """The command that encodes the photographs with the autoencoder of `latents`."""
    settings = [
        "data.image_size=12", f"data.source=folder:{folder.parent / 'photos'}",
        "codec.kind=latent", f"codec.autoencoder={folder / 'vae'}",
    ]  # fmt: skip
    options = [part for each in settings for part in ("--set", each)]
    return ["codec", "encode", "folder32", "--flip", "--shard", "3", *options]


def latents(folder: Path) -> None:
    """An autoencoder is trained, and encodes."""
    small = ["--factor", "2", "--width", "4", "--train-steps", "3", "--batch-size", "4"]
    source = f"folder:{folder.parent / 'photos'}"
    spoken(folder / "vae", "codec", "train", source, "--out", str(folder / "vae"), *small)
    spoken(folder / "two", *encode(folder), "--out", str(folder / "two"))


def generation(folder: Path) -> None:
    """A model is measured, twice: the second time from what was drawn and trained before."""
    from egc.metrics import judge, sampled
    from egc.metrics.generation import evaluate_generation
    from tests.metrics.test_generation import digits

    sampled.CHUNK, judge.STEPS = 5, 20
    model, _ = build()
    options = {"count": 8, "steps": 2, "keep": folder / "kept"}
    found = [evaluate_generation(model, digits(30), digits(21, 1), **options) for _ in range(2)]
    told = json.dumps([each.summary() for each in found])
    (folder / f"{os.environ['RANK']}.json").write_text(told)


JOBS = (gradients, metrics, drawing, resumed, samples, latents, generation)

if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    for job in JOBS:
        (root / job.__name__).mkdir(exist_ok=True)
        job(root / job.__name__)
        (root / f"{job.__name__}-{os.environ['RANK']}.done").touch()
