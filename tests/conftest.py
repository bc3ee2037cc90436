"""Small things to test on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

from egc.api import EGC
from egc.config import Config
from egc.data.sets import cifar, idx

# The tensors here are tiny, and `make test` runs one process a core.
torch.set_num_threads(int(os.environ.get("EGC_TEST_THREADS", "1")))

TINY = {
    "data": {"source": "digits", "image_size": 8, "channels": 1},
    "network": {
        "channels": 8,
        "multipliers": [1, 2],
        "depth": 1,
        "attention": [4],
        "head_width": 8,
        "groups": 4,
    },
    "objective": {"gamma": 0.1, "clean_stream": True},
    "train": {
        "steps": 4,
        "batch_size": 8,
        "lr": 1e-3,
        "ema": 0.9,
        "log_every": 2,
        "preview_every": 4,
        "checkpoint_every": 2,
    },
    "sample": {"steps": 2},
}


@pytest.fixture(autouse=True)
def alone():
    """A test does not depend on those before it: they drew numbers, and a training sets a mode."""
    torch.manual_seed(0)
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def tiny_config() -> Config:
    """A network of a few thousand parameters on 8x8 digits."""
    return Config.from_dict(TINY)


@pytest.fixture
def tiny(tiny_config: Config) -> EGC:
    """An untrained model whose weights are all non-zero, so that nothing vanishes by accident."""
    model = EGC.build(tiny_config, [str(i) for i in range(10)])
    return shaken(model)


def shaken(model: EGC, seed: int = 0) -> EGC:
    """Add noise to every weight: zero-initialised branches come alive."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` has filled, once for all workers of a run; not to be changed."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # that of all workers
    folder, done = root / name, root / f"{name}.done"
    with FileLock(root / f"{name}.lock"):
        if not done.exists():
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory, tiny_config: Config) -> Path:
    """A run of the few steps of `tiny_config`, with all that it leaves behind."""

    def train(folder: Path) -> None:
        EGC.fit(preset=tiny_config, run=folder, progress=False)

    return once(tmp_path_factory, "trained_run", train)


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory) -> Path:
    """What `tests.training.workers` left behind, run by two processes that know each other.

    One launch for all tests of it: to start PyTorch three times takes longer than all they do.
    """

    def launch(folder: Path) -> None:
        folder.mkdir()
        photos(folder / "photos")
        root = Path(__file__).parents[1]
        path = f"{root}{os.pathsep}{root / 'src'}"
        told = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "EGC_DATA": str(folder / "data")}
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        done = subprocess.run(
            [sys.executable, *launcher, "-m", "tests.training.workers", str(folder)],
            cwd=root,
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            timeout=1200,  # processes that wait for each other for ever
        )
        (folder / "log").write_text(f"{done.stdout}\n{done.stderr}")

    return once(tmp_path_factory, "two_processes", launch)


@pytest.fixture
def photo_folder(tmp_path) -> Path:
    """Two classes of ten 12x12 colour images."""
    return photos(tmp_path / "photos")


def photos(root: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, base in (("dark", 40), ("light", 200)):
        (root / name).mkdir(parents=True)
        for index in range(10):
            pixels = rng.integers(base - 30, base + 30, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    return root


NOWHERE = "http://127.0.0.1:1/"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty data directory, and no way to the servers."""
    path = tmp_path / "data"
    path.mkdir()
    monkeypatch.setenv("EGC_DATA", str(path))
    monkeypatch.setattr(idx, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(idx, "MNIST_SERVER", NOWHERE)
    monkeypatch.setattr(idx, "FASHION_SERVER", NOWHERE)
    for name in ("CIFAR10", "CIFAR100"):
        spec = getattr(cifar, name)
        away = tuple(archive._replace(url=NOWHERE) for archive in spec.archives)
        monkeypatch.setattr(cifar, name, replace(spec, archives=away))
    return path


@pytest.fixture
def small_gallery(monkeypatch):
    """Fewer images a figure: all of its figures, quickly."""
    small = {"SCALES": (0, 2), "FILLS": 1, "COLUMNS": 2, "MAX_EDITED": 1, "MAX_EXPLAINED": 1,
             "MAX_NOISED": 2}  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(f"egc.tasks.gallery.{name}", value)
