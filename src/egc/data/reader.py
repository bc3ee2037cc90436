"""Sets of images in the size and colours asked for: of arrays, or of pictures to be decoded.

Pictures are decoded as they are needed, or once if they fit into memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from PIL import Image

from egc.config import DataConfig
from egc.data.images import UnreadableError, fit, picture_of, report_conversions, report_skipped
from egc.data.imageset import ImageSet
from egc.errors import DataError

CACHE_BYTES = 2 << 30
"""Sets that decode to less than this are decoded once, at the start, and kept in memory."""
CHECKED_AT_ONCE = 4096
"""images of a larger set that are decoded together to see whether they can be"""
ADVICE = "Mend or remove what cannot be read, or go on without it by data.skip_unreadable=true."

Arrays = tuple[np.ndarray, np.ndarray]
"""uint8 images (N, H, W, C) and labels (N,)"""


def set_of_pictures(
    name: str,
    picture: Callable[[int], Image.Image],
    labels: np.ndarray,
    classes: list[str],
    config: DataConfig,
    name_of: Callable[[int], str],
) -> ImageSet:
    """A set of `len(labels)` pictures, which `picture` opens by their index."""
    count = len(labels)
    unreadable: dict[int, UnreadableError] = {}
    for index in range(count):
        try:
            image_size, channels = shape_of(picture(index), name_of(index), config)
            break
        except UnreadableError as error:
            unreadable[index] = error
    else:
        raise UnreadableError.of(unreadable.values())
    reader = Reader(picture, image_size, channels)
    if count * image_size * image_size * channels <= CACHE_BYTES:
        reader.cache, notes, unreadable = reader.decode(np.arange(count))
        report_conversions(notes)
    elif config.skip_unreadable:
        for start in range(0, count, CHECKED_AT_ONCE):
            some = np.arange(start, min(start + CHECKED_AT_ONCE, count))
            unreadable |= reader.decode(some)[2]
    if unreadable and not config.skip_unreadable:
        raise UnreadableError.of(unreadable.values(), ADVICE)
    report_skipped(list(unreadable.values()), count)
    kept = np.setdiff1d(np.arange(count), list(unreadable))
    return ImageSet(name, reader, kept, labels[kept], classes, image_size, channels)


def sets_of_arrays(
    name: str, parts: Sequence[Arrays], classes: Sequence[str], config: DataConfig
) -> list[ImageSet]:
    """One set a part; images of another size than `config` asks for are resized as needed."""
    sets = [ImageSet.from_arrays(*part, classes=classes, name=name) for part in parts]
    image_size = config.image_size or sets[0].image_size
    channels = config.channels or sets[0].channels
    if (image_size, channels) == (sets[0].image_size, sets[0].channels):
        return sets
    # All images are alike, so the first one says what happens to each.
    _, notes = fit(picture_of(parts[0][0][0]), image_size, channels)
    report_conversions([notes] * sum(map(len, sets)))

    def resized(data: ImageSet, images: np.ndarray) -> ImageSet:
        # Resizing is quick and the result may be many times larger: nothing is kept.
        reader = Reader(lambda index: picture_of(images[index]), image_size, channels)
        return replace(data, read=reader, image_size=image_size, channels=channels)

    return [resized(data, images) for data, (images, _) in zip(sets, parts, strict=True)]


def shape_of(first: Image.Image, name: str, config: DataConfig) -> tuple[int, int]:
    """What was asked for, else what the first image has; grey only if it is grey."""
    width, height = first.size
    if config.image_size is None and width != height:
        raise DataError(
            f"The first image, {name!r}, is {width}x{height} and not square; "
            "say which size to train on, such as --set data.image_size=32."
        )
    grey = first.mode in ("L", "1", "I;16")
    return config.image_size or width, config.channels or (1 if grey else 3)


class Reader:
    """Decodes pictures by index, in threads."""

    def __init__(self, picture: Callable[[int], Image.Image], image_size: int, channels: int):
        self.picture = picture
        self.image_size = image_size
        self.channels = channels
        self.cache: np.ndarray | None = None

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """(n,) -> uint8 (n, S, S, C)"""
        if self.cache is not None:
            return self.cache[indices]
        images, _, unreadable = self.decode(indices)
        if unreadable:
            raise UnreadableError.of(unreadable.values(), ADVICE)
        return images

    def decode(
        self, indices: np.ndarray
    ) -> tuple[np.ndarray, list[list[str]], dict[int, UnreadableError]]:
        """Pixels, what was done to each picture, and those that cannot be read, by index."""
        shape = (len(indices), self.image_size, self.image_size, self.channels)
        images = np.zeros(shape, dtype=np.uint8)
        notes: list[list[str]] = [[]] * len(indices)
        unreadable: dict[int, UnreadableError] = {}

        threads = os.cpu_count() or 1
        # Several images a task: handing over one costs as much as resizing a small one.
        each = min(16, max(1, len(indices) // threads))

        def run(first: int) -> None:
            for row, index in enumerate(indices[first : first + each].tolist(), first):
                try:
                    picture = self.picture(index)
                except UnreadableError as error:
                    unreadable[index] = error
                    continue
                images[row], notes[row] = fit(picture, self.image_size, self.channels)

        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(run, range(0, len(indices), each)))
        return images, notes, dict(sorted(unreadable.items()))
