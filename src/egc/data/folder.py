"""A user's own folder of images: one sub-folder a class, or no sub-folders and no labels.

folder/cat/*.png  folder/dog/*.png          two classes, split at random into train and test
folder/train/cat/*.png  folder/test/...     the same with a split of its own (or `val`)
folder/*.png                                no labels: trained without supervision
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from egc.data.images import fit, image_files, open_image, report_conversions
from egc.data.imageset import ImageSet
from egc.errors import DataError

CACHE_BYTES = 2 << 30
"""Sets that decode to less than this are decoded once, at the start, and kept in memory."""


def open_folder(path: Path, image_size: int | None, channels: int | None) -> list[ImageSet]:
    """[all images], or [train, test] where the folder has that split."""
    if not path.is_dir():
        raise DataError(f"There is no folder {str(path)!r} to read images from.")
    train = path / "train"
    test = next((p for name in ("test", "val") if (p := path / name).is_dir()), None)
    if not (train.is_dir() and test):
        return [_read_folder(path, None, image_size, channels)]
    first = _read_folder(train, None, image_size, channels)
    second = _read_folder(test, first.classes, first.image_size, first.channels)
    return [first, second]


def _read_folder(
    path: Path, classes: list[str] | None, image_size: int | None, channels: int | None
) -> ImageSet:
    """The images of one folder; a test folder must have the `classes` of its train folder."""
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    names = [folder.name for folder in folders]
    files: list[Path] = []
    labels: list[int] = []
    if not folders:
        files = image_files(path)
        labels = [-1] * len(files)
    for label, folder in enumerate(folders):
        found = image_files(folder)
        if not found:
            raise DataError(f"The class folder {str(folder)!r} has no images in it.")
        files += found
        labels += [label] * len(found)
    if not files:
        raise DataError(f"There are no images in the folder {str(path)!r}.")
    if classes is not None and names != classes:
        raise DataError(
            f"{str(path)!r} has the classes {names[:8]}, "
            f"but the training folder has {classes[:8]}."
        )
    reader = _Reader(files, *_shape(files, image_size, channels))
    return ImageSet(
        name=f"folder:{path}",
        read=reader,
        indices=np.arange(len(files)),
        labels=np.asarray(labels, dtype=np.int64),
        classes=names,
        image_size=reader.image_size,
        channels=reader.channels,
    )


def _shape(files: list[Path], image_size: int | None, channels: int | None) -> tuple[int, int]:
    """What was asked for, else what the first image has; grey only if it is grey."""
    first = open_image(files[0])
    width, height = first.size
    if image_size is None:
        if width != height:
            raise DataError(
                f"The first image, {str(files[0])!r}, is {width}x{height} and not square; "
                "say which size to train on, such as --set data.image_size=32."
            )
        image_size = width
    return image_size, channels or (1 if first.mode in ("L", "1", "I;16") else 3)


class _Reader:
    """Decodes files by index, in threads; keeps the pixels if they all fit into memory."""

    def __init__(self, files: list[Path], image_size: int, channels: int):
        self.files = files
        self.image_size = image_size
        self.channels = channels
        self.cache: np.ndarray | None = None
        if len(files) * image_size * image_size * channels <= CACHE_BYTES:
            self.cache = self._decode(np.arange(len(files)), report=True)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        if self.cache is not None:
            return self.cache[indices]
        return self._decode(indices)

    def _decode(self, indices: np.ndarray, report: bool = False) -> np.ndarray:
        def one(index: int) -> tuple[np.ndarray, list[str]]:
            return fit(open_image(self.files[index]), self.image_size, self.channels)

        shape = (len(indices), self.image_size, self.image_size, self.channels)
        images = np.empty(shape, dtype=np.uint8)
        notes = []
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for row, (pixels, done) in enumerate(pool.map(one, indices)):
                images[row] = pixels
                notes.append(done)
        if report:
            report_conversions(notes)
        return images
