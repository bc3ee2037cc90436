"""What the processes of tests/training/test_processes.py run, under torchrun."""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path

import torch

from egc.api import EGC
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


def build(kind: str, network: dict | None = None, **objective) -> tuple[EGC, Config]:
    config = Config.from_dict(TINY).replace(
        objective={"gradient": kind, **objective}, network=network or {}
    )
    return shaken(EGC.build(config, [str(i) for i in range(10)])), config


def joined_gradient(kind: str, processes: int, network: dict | None = None) -> torch.Tensor:
    """The gradient of one step, by one process, over what all processes would see."""
    model, config = build(kind, network)
    objective = EGCObjective(model.net, model.diffusion, config.objective)
    data = open_source(config.data).train
    told = {"no_label": model.net.no_label} if network else {}
    for rank in range(processes):
        batch = BatchStream(data, model.codec, config, CPU, rank, processes, **told)(0)
        for part in objective.plan(batch, share=1 / processes):
            objective(part).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.net.parameters()])


def gradients(folder: str) -> None:
    """DDP, exact and paired, whole and in pieces: the joined batch's gradient."""
    cases = product(("exact", "paired"), (1, 2), (None, TOLD))
    for number, (kind, accumulate, network) in enumerate(cases):
        model, config = build(kind, network, **({"lean": True} if kind == "paired" else {}))
        model.config = config.replace(train={"accumulate": accumulate})
        data = open_source(config.data).train
        trainer = Trainer(model, data, Run(Path(folder) / str(number)))
        assert trainer.accelerator.num_processes == 2
        trainer._backward(trainer.stream(0))
        got = torch.cat([p.grad.flatten() for p in trainer.net.parameters()])
        expected = joined_gradient(kind, 2, network)
        error = ((got - expected).norm() / expected.norm()).item()
        assert error < (2e-3 if kind == "paired" else 1e-4), (kind, accumulate, network, error)


def metrics(folder: str) -> None:
    """Accuracy over both processes' shares is that of the whole."""
    model, config = build("exact")
    test = open_source(config.data).test
    together = evaluate_classification(model, test)
    os.environ["WORLD_SIZE"] = "1"
    os.environ["RANK"] = "0"
    alone = evaluate_classification(model, test)
    assert together.accuracy == alone.accuracy
    assert (together.confusion == alone.confusion).all()


def drawing(folder: str) -> None:
    """`model.sample` draws here and now: one process may call it alone. Drivers still split."""
    model, _ = build("exact")
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


def sharded(folder: str) -> None:
    """FSDP2 with the paired gradient: parameters in shards, the same gradient and next weights."""
    from torch.distributed import init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from egc.nn.unet import Stage

    init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    rank = mesh.get_rank()
    model, config = build("paired")
    objective = EGCObjective(model.net, model.diffusion, config.objective)
    for module in list(model.net.modules()):
        if isinstance(module, Stage):
            fully_shard(module, mesh=mesh)
    fully_shard(model.net, mesh=mesh)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
    data = open_source(config.data).train
    batch = BatchStream(data, model.codec, config, CPU, rank, 2)(0)
    for part in objective.plan(batch):
        objective(part).loss.backward()
    got = torch.cat([p.grad.full_tensor().flatten() for p in objective.parameters()])
    local = sum(p.to_local().numel() for p in objective.parameters())
    expected = joined_gradient("paired", 2)
    assert local < 0.6 * expected.numel(), "parameters are not sharded"
    error = ((got - expected).norm() / expected.norm()).item()
    assert error < 2e-3, error
    optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    work = {"gradients": gradients, "metrics": metrics, "sharded": sharded, "drawing": drawing}
    work[sys.argv[1]](sys.argv[2])
