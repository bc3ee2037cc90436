"""Sets of pictures that are decoded as they are needed, or once if they fit into memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from egc.config import DataConfig
from egc.data.images import UnreadableError, fit, report_conversions, report_skipped
from egc.data.imageset import ImageSet
from egc.errors import DataError

CACHE_BYTES = 2 << 30
"""Sets that decode to less than this are decoded once, at the start, and kept in memory."""
CHECKED_AT_ONCE = 4096
"""images of a larger set that are decoded together to see whether they can be"""
ADVICE = "Mend or remove what cannot be read, or go on without it by data.skip_unreadable=true."


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
        unreadable = reader.keep(count)
    elif config.skip_unreadable:
        unreadable = reader.check(count)
    if unreadable and not config.skip_unreadable:
        raise UnreadableError.of(unreadable.values(), ADVICE)
    report_skipped(list(unreadable.values()), count)
    kept = np.setdiff1d(np.arange(count), list(unreadable))
    return ImageSet(name, reader, kept, labels[kept], classes, image_size, channels)


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
        images, _, unreadable = self._decode(indices)
        if unreadable:
            raise UnreadableError.of(unreadable.values(), ADVICE)
        return images

    def keep(self, count: int) -> dict[int, UnreadableError]:
        """Decode all pictures once, and keep their pixels; gives those that cannot be read."""
        self.cache, notes, unreadable = self._decode(np.arange(count))
        report_conversions(notes)
        return unreadable

    def check(self, count: int) -> dict[int, UnreadableError]:
        """Those that cannot be read, by index: all are decoded, and none is kept."""
        unreadable: dict[int, UnreadableError] = {}
        for start in range(0, count, CHECKED_AT_ONCE):
            some = np.arange(start, min(start + CHECKED_AT_ONCE, count))
            unreadable |= self._decode(some)[2]
        return unreadable

    def _decode(
        self, indices: np.ndarray
    ) -> tuple[np.ndarray, list[list[str]], dict[int, UnreadableError]]:
        """Pixels, what was done to each picture, and those that cannot be read."""
        shape = (len(indices), self.image_size, self.image_size, self.channels)
        images = np.zeros(shape, dtype=np.uint8)
        notes: list[list[str]] = [[]] * len(indices)
        unreadable: dict[int, UnreadableError] = {}

        def run(rows: range) -> None:
            for row in rows:
                try:
                    picture = self.picture(int(indices[row]))
                except UnreadableError as error:
                    unreadable[int(indices[row])] = error
                    continue
                images[row], notes[row] = fit(picture, self.image_size, self.channels)

        # Several images a task: handing over one costs as much as resizing a small one.
        threads = os.cpu_count() or 1
        each = min(16, max(1, len(indices) // threads))
        tasks = [
            range(len(indices))[first : first + each] for first in range(0, len(indices), each)
        ]
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(run, tasks))
        return images, notes, dict(sorted(unreadable.items()))
