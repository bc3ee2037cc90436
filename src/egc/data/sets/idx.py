"""MNIST and Fashion-MNIST: idx files, packed or not.

An idx file is a magic number, its sizes as big-endian integers, and the bytes themselves.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from egc.config import DataConfig
from egc.data.files import Remote, check_size, damaged, data_home, found_or_fetched
from egc.data.imageset import ImageSet
from egc.data.reader import Arrays, sets_of_arrays
from egc.data.sources import described
from egc.registry import sources

MAGIC = {1: 0x801, 3: 0x803}
"""dimensions of an array of bytes -> what its file begins with"""
DEBIAN = Path("/usr/share/datasets")
"""where Debian's package dataset-fashion-mnist puts its files"""
TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}
"""where torchvision does"""
Sum = tuple[str, str, int]
"""name, MD5 sum and size of a packed file"""

MNIST_SERVER = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_SERVER = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
MNIST_SUMS = (
    ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
    ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
    ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
    ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
)
FASHION_SUMS = (
    ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
    ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
    ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
    ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
)
SIDE = 28
MNIST_CLASSES = [str(digit) for digit in range(10)]
FASHION_CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
                   "Sneaker", "Bag", "Ankle boot"]  # fmt: skip


@sources.register("mnist")
@described(image_size=SIDE, channels=1, classes=MNIST_CLASSES)
def open_mnist(config: DataConfig, rest: None = None) -> list[ImageSet]:
    """70,000 handwritten digits of 28x28 pixels, grey (LeCun et al. 1998); [train, test]."""
    return _open("mnist", MNIST_SERVER, MNIST_SUMS, MNIST_CLASSES, config)


@sources.register("fashion-mnist")
@described(image_size=SIDE, channels=1, classes=FASHION_CLASSES)
def open_fashion_mnist(config: DataConfig, rest: None = None) -> list[ImageSet]:
    """70,000 garments of 28x28 pixels in 10 classes, grey (Xiao et al. 2017); [train, test]."""
    return _open("fashion-mnist", FASHION_SERVER, FASHION_SUMS, FASHION_CLASSES, config)


def _open(
    name: str, server: str, sums: Iterable[Sum], classes: list[str], config: DataConfig
) -> list[ImageSet]:
    files = [
        Remote(f"{server}{file}.gz", f"{name}/{file}.gz", md5, size) for file, md5, size in sums
    ]

    def look() -> list[Path] | None:
        folders = [data_home() / name, data_home() / TORCHVISION[name], DEBIAN / name]
        if data_home().name == name:
            # Both sets call their files the same: a directory must say which one it has.
            folders.insert(0, data_home())
        return next((found for folder in folders if (found := _all_of(folder, files))), None)

    train_x, train_y, test_x, test_y = map(_read, found_or_fetched(look, *files))
    parts: list[Arrays] = [(train_x[..., None], train_y), (test_x[..., None], test_y)]
    return sets_of_arrays(name, parts, classes, config)


def _all_of(folder: Path, files: list[Remote]) -> list[Path] | None:
    """These files in a folder, each packed or not; None unless all are there."""
    packed = [folder / Path(file.name).name for file in files]
    found = [path if path.is_file() else path.with_suffix("") for path in packed]
    return found if all(path.is_file() for path in found) else None


def _read(path: Path) -> np.ndarray:
    """The array of an idx file of bytes, refused unless it is complete."""
    # By its content and not by its sum: packers differ, as Debian's does.
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, f"it cannot be unpacked ({error})") from None
    dimensions = 3 if "idx3" in path.name else 1
    head = 4 * (1 + dimensions)
    magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:head].ljust(head, b"\0"))
    if magic != MAGIC[dimensions]:
        raise damaged(path, f"it begins with {magic:#x} and not with {MAGIC[dimensions]:#x}")
    check_size(path, len(content), head + int(np.prod(shape)))
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)
