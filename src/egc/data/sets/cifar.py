"""CIFAR-10 and CIFAR-100 as their authors publish them: binary or python, archive or directory.

A binary file is rows of one or two label bytes and 3,072 pixels; a python file is a pickled
dictionary with an array of the same rows. Pixels are planes: all red, all green, all blue.
"""

from __future__ import annotations

import codecs
import io
import pickle
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from egc.config import DataConfig
from egc.data.files import Remote, asset, check_size, check_sum, damaged, find, found_or_fetched
from egc.data.imageset import ImageSet
from egc.data.reader import Arrays, sets_of_arrays
from egc.data.sources import described
from egc.registry import sources

SIDE = 32
PIXELS = 3 * SIDE * SIDE
SERVER = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Cifar:
    """What the files of one of the two sets are called and how many images each has."""

    name: str
    classes: list[str]
    train: dict[str, int]
    test: dict[str, int]
    label_bytes: int
    """of a binary row; the last one is the label"""
    label_key: str
    """in a python file"""
    binary: str
    """the directory of the binary files"""
    python: str
    archives: tuple[Remote, Remote]
    """of the binary and the python files"""


def _archive(name: str, md5: str, size: int) -> Remote:
    return Remote(f"{SERVER}{name}", name, md5, size)


CIFAR10 = Cifar(
    name="cifar10",
    classes=asset("cifar10_classes.txt").decode().split(),
    train={f"data_batch_{i}": 10_000 for i in range(1, 6)},
    test={"test_batch": 10_000},
    label_bytes=1,
    label_key="labels",
    binary="cifar-10-batches-bin",
    python="cifar-10-batches-py",
    archives=(
        _archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
        _archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),
    ),
)
CIFAR100 = Cifar(
    name="cifar100",
    classes=asset("cifar100_classes.txt").decode().split(),
    train={"train": 50_000},
    test={"test": 10_000},
    label_bytes=2,
    label_key="fine_labels",
    binary="cifar-100-binary",
    python="cifar-100-python",
    archives=(
        _archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
        _archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
    ),
)


@sources.register("cifar10")
@described(image_size=SIDE, channels=3, classes=CIFAR10.classes)
def open_cifar10(config: DataConfig, rest: None = None) -> list[ImageSet]:
    """60,000 photographs of 32x32 pixels in 10 classes (Krizhevsky 2009); [train, test]."""
    return _open(CIFAR10, config)


@sources.register("cifar100")
@described(image_size=SIDE, channels=3, classes=CIFAR100.classes)
def open_cifar100(config: DataConfig, rest: None = None) -> list[ImageSet]:
    """60,000 photographs of 32x32 pixels in 100 classes (Krizhevsky 2009); [train, test]."""
    return _open(CIFAR100, config)


def _open(spec: Cifar, config: DataConfig) -> list[ImageSet]:
    names = [spec.binary, spec.python, *(archive.name for archive in spec.archives)]
    path = found_or_fetched(
        lambda: find(*names, *(f"{spec.name}/{name}" for name in names)), spec.archives[0]
    )
    return sets_of_arrays(spec.name, _read(spec, path), spec.classes, config)


def _read(spec: Cifar, path: Path) -> list[Arrays]:
    """[train, test] of a directory or an archive."""
    for archive in spec.archives:
        if path.name == archive.name:
            check_sum(path, archive)
    binary = path.name in (spec.binary, spec.archives[0].name)
    read, suffix = (_binary_rows, ".bin") if binary else (_python_rows, "")
    rows = {f"{name}{suffix}": rows for name, rows in (spec.train | spec.test).items()}
    found: dict[str, Arrays] = {}
    for name, content in _contents(path, rows):
        planes, labels = read(content, rows[name], spec, path / name)
        low, high, count = labels.min(), labels.max(), len(spec.classes)
        if low < 0 or high >= count:
            why = f"it has labels {low} to {high}, but there are {count} classes"
            raise damaged(path / name, why)
        images = planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        found[name] = np.ascontiguousarray(images), labels.astype(np.int64)
    if lacking := rows.keys() - found:
        raise damaged(path, f"it has no file {min(lacking)!r}")
    files = [found[name] for name in rows]
    parts = [
        zip(*some, strict=True) for some in (files[: len(spec.train)], files[len(spec.train) :])
    ]
    return [(np.concatenate(images), np.concatenate(labels)) for images, labels in parts]


def _contents(path: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Those files of a directory or an archive that are there."""
    if path.is_dir():
        there = [name for name in names if (path / name).is_file()]
        yield from ((name, (path / name).read_bytes()) for name in there)
        return
    with tarfile.open(path, "r:gz") as archive:
        # In the archive's own order: going back would mean to decompress it again.
        for member in archive:
            name = Path(member.name).name
            if name in names and (content := archive.extractfile(member)):
                yield name, content.read()


def _binary_rows(content: bytes, rows: int, spec: Cifar, path: Path) -> Arrays:
    """Pixels (rows, 3072) and labels (rows,)."""
    width = spec.label_bytes + PIXELS
    check_size(path, len(content), rows * width)
    table = np.frombuffer(content, dtype=np.uint8).reshape(rows, width)
    return table[:, spec.label_bytes :], table[:, spec.label_bytes - 1]


def _python_rows(content: bytes, rows: int, spec: Cifar, path: Path) -> Arrays:
    """Pixels (rows, 3072) and labels (rows,)."""
    try:
        # Python 2 wrote the keys as bytes, which an encoding turns into text.
        table = dict(_Unpickler(io.BytesIO(content), encoding="latin1").load())
        images, labels = np.asarray(table["data"]), np.asarray(table[spec.label_key])
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError) as error:
        raise damaged(path, str(error)) from None
    if images.shape != (rows, PIXELS) or labels.shape != (rows,) or images.dtype != np.uint8:
        found = f"{images.dtype} images of {images.shape} and {labels.size} labels"
        raise damaged(path, f"it has {found} instead of uint8, {(rows, PIXELS)} and {rows}")
    return images, labels


class _Unpickler(pickle.Unpickler):
    """Unpickles arrays and plain values only: a pickle may otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module.replace("_core", "core"), name) == ("numpy.core.multiarray", "_reconstruct"):
            # By way of an array, as the module has moved between versions of numpy.
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            # How Python 3 writes bytes for Python 2.
            return codecs.encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
