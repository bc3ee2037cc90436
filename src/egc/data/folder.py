"""A user's own folder of images: one sub-folder a class, or no sub-folders and no labels.

folder/cat/*.png  folder/dog/*.png          two classes, split at random into train and test
folder/train/cat/*.png  folder/test/...     the same with a split of its own (or `val`)
folder/*.png                                no labels: trained without supervision
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from egc.data.images import fit, image_paths, open_image, report_conversions
from egc.data.imageset import ImageSet
from egc.errors import DataError

CACHE_BYTES = 2 << 30
"""Sets that decode to less than this are decoded once, at the start, and kept in memory."""


def open_folder(path: Path, image_size: int | None, channels: int | None) -> list[ImageSet]:
    """[all images], or [train, test] where the folder has that split."""
    _check_there(path)
    train = path / "train"
    test = next((p for name in ("test", "val") if (p := path / name).is_dir()), None)
    if not (train.is_dir() and test):
        return [_read_folder(path, None, image_size, channels)]
    first = _read_folder(train, None, image_size, channels)
    second = _read_folder(test, first.classes, first.image_size, first.channels)
    return [first, second]


def open_unlabelled(
    path: Path, image_size: int | None, channels: int | None, name: str
) -> ImageSet:
    """All images below a folder, whatever its sub-folders mean."""
    _check_there(path)
    return _set_of_files(name, image_paths(path), path, [], [], image_size, channels)


def _check_there(path: Path) -> None:
    if not path.is_dir():
        raise DataError(f"There is no folder {str(path)!r} to read images from.")


def _read_folder(
    path: Path, classes: list[str] | None, image_size: int | None, channels: int | None
) -> ImageSet:
    """The images of one folder; a test folder must have the `classes` of its train folder."""
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    names = [folder.name for folder in folders]
    files: list[str] = []
    labels: list[int] = []
    if not folders:
        files = image_paths(path)
    for label, folder in enumerate(folders):
        found = image_paths(folder)
        if not found:
            raise DataError(f"The class folder {str(folder)!r} has no images in it.")
        files += found
        labels += [label] * len(found)
    if files and classes is not None and names != classes:
        raise DataError(
            f"{str(path)!r} has the classes {names[:8]}, "
            f"but the training folder has {classes[:8]}."
        )
    return _set_of_files(f"folder:{path}", files, path, labels, names, image_size, channels)


def _set_of_files(
    name: str,
    files: list[str],
    path: Path,
    labels: list[int],
    classes: list[str],
    image_size: int | None,
    channels: int | None,
) -> ImageSet:
    """Files with a label each, or none at all."""
    if not files:
        raise DataError(f"There are no images in the folder {str(path)!r}.")
    return set_of_pictures(
        name,
        lambda index: open_image(files[index]),
        np.asarray(labels or [-1] * len(files), dtype=np.int64),
        classes,
        image_size,
        channels,
        first=files[0],
    )


def set_of_pictures(
    name: str,
    picture: Callable[[int], Image.Image],
    labels: np.ndarray,
    classes: list[str],
    image_size: int | None,
    channels: int | None,
    first: str,
) -> ImageSet:
    """A set of `len(labels)` pictures that are decoded when needed; `first` names the first."""
    reader = Reader(picture, len(labels), *shape_of(picture(0), first, image_size, channels))
    return ImageSet(
        name=name,
        read=reader,
        indices=np.arange(len(labels)),
        labels=labels,
        classes=classes,
        image_size=reader.image_size,
        channels=reader.channels,
    )


def shape_of(
    first: Image.Image, name: str, image_size: int | None, channels: int | None
) -> tuple[int, int]:
    """What was asked for, else what the first image has; grey only if it is grey."""
    width, height = first.size
    if image_size is None:
        if width != height:
            raise DataError(
                f"The first image, {name!r}, is {width}x{height} and not square; "
                "say which size to train on, such as --set data.image_size=32."
            )
        image_size = width
    return image_size, channels or (1 if first.mode in ("L", "1", "I;16") else 3)


class Reader:
    """Decodes pictures by index, in threads; keeps the pixels if they all fit into memory."""

    def __init__(
        self,
        picture: Callable[[int], Image.Image],
        count: int,
        image_size: int,
        channels: int,
        keep: bool = True,
    ):
        self.picture = picture
        self.image_size = image_size
        self.channels = channels
        self.cache: np.ndarray | None = None
        if keep and count * image_size * image_size * channels <= CACHE_BYTES:
            self.cache = self._decode(np.arange(count), report=True)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        if self.cache is not None:
            return self.cache[indices]
        return self._decode(indices)

    def _decode(self, indices: np.ndarray, report: bool = False) -> np.ndarray:
        """(n,) -> uint8 (n, S, S, C)"""
        shape = (len(indices), self.image_size, self.image_size, self.channels)
        images = np.empty(shape, dtype=np.uint8)
        notes: list[list[str]] = [[]] * len(indices)

        def run(rows: range) -> None:
            for row in rows:
                picture = self.picture(int(indices[row]))
                images[row], notes[row] = fit(picture, self.image_size, self.channels)

        # Several images a task: handing over one costs as much as resizing a small one.
        threads = os.cpu_count() or 1
        each = min(16, max(1, len(indices) // threads))
        tasks = [
            range(len(indices))[first : first + each] for first in range(0, len(indices), each)
        ]
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(run, tasks))
        if report:
            report_conversions(notes)
        return images
