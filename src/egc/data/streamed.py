"""A set that is read as it is needed, for sets larger than the disk.

The images of all steps are one endless row: pass e over the data is the stream shuffled by
(seed, e), through a buffer, and step s takes the s-th batch of the row. A batch is therefore a
function of (seed, step), as it is for sets on disk; only going anywhere but to the next step
costs reading all that lies between.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from egc.data.imageset import ImageSet
from egc.data.reader import Reader
from egc.errors import DataError

BUFFER = 10_000
"""images that are shuffled among each other"""

log = logging.getLogger("egc")


class Stream:
    """The endless row of examples, open at one step."""

    def __init__(
        self, name: str, examples: Callable[[np.random.Generator], Iterator[Any]], size: int
    ):
        self.name = name
        self.examples = examples
        """source of random numbers -> one pass over the data, its shards in a random order"""
        self.size = size
        """of one pass, 0 if nobody knows"""
        self._rows: Iterator[Any] = iter(())
        self._next: tuple[int, int, int] | None = None
        """(seed, batch size, step) that the open row continues with"""
        self._batch: list[Any] = []
        self._lock = threading.Lock()

    def batch(self, step: int, batch_size: int, seed: int) -> list[Any]:
        """The examples of a step, undecoded."""
        with self._lock:
            if self._next == (seed, batch_size, step + 1):
                # The same step once more, as when two kinds of step are compared.
                return self._batch
            if self._next != (seed, batch_size, step):
                self._rows = self._open_at(step * batch_size, seed)
            # A row that fails is not continued.
            self._next = None
            self._batch = list(islice(self._rows, batch_size))
            self._next = (seed, batch_size, step + 1)
            return self._batch

    def _open_at(self, place: int, seed: int) -> Iterator[Any]:
        """The row from `place` on."""
        # Where a pass has a known size, entire passes are left out without reading them.
        first, skip = divmod(place, self.size) if self.size else (0, place)
        if skip:
            log.info("Going to image %s of %s: reading up to it.", f"{skip:,}", self.name)
        rows = (row for number in count(first) for row in self._pass(seed, number))
        return islice(rows, skip, None)

    def _pass(self, seed: int, number: int) -> Iterator[Any]:
        """One pass over the data; exactly `size` examples, if that is known."""
        left = self.size
        while True:
            empty = True
            rng = np.random.default_rng((seed, number))
            for row in islice(_shuffled(self.examples(rng), rng), left or None):
                empty = False
                left -= 1
                yield row
            if empty:
                raise DataError(f"{self.name} has no images to train on.")
            # Starting again if the stream is shorter than announced keeps every later pass in
            # its place.
            if left <= 0:
                return


def _shuffled(rows: Iterator[Any], rng: np.random.Generator) -> Iterator[Any]:
    """The rows in a random order, as far as a buffer allows: each swaps places with one in it."""
    buffer: list[Any] = []
    for row in rows:
        if len(buffer) < BUFFER:
            buffer.append(row)
            continue
        place = rng.integers(BUFFER)
        yield buffer[place]
        buffer[place] = row
    yield from (buffer[place] for place in rng.permutation(len(buffer)))


@dataclass(frozen=True, kw_only=True)
class StreamedSet(ImageSet):
    """Images by step only. `len` is the number announced, 0 if it is unknown."""

    stream: Stream
    picture: Callable[[Any], Image.Image]
    """of an example"""
    label: Callable[[Any], int]
    """of an example, -1 where unknown"""

    def __len__(self) -> int:
        return self.stream.size

    def take(
        self, step: int, batch_size: int, seed: int, rank: int = 0, processes: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of one training step, the share of process `rank`."""
        rows = self.stream.batch(step, batch_size, seed)[rank::processes]
        labels = [self.label(row) if self.classes else -1 for row in rows]
        reader = Reader(lambda index: self.picture(rows[index]), self.image_size, self.channels)
        return reader(np.arange(len(rows))), np.array(labels, dtype=np.int64)

    def images(self, positions: np.ndarray | slice = slice(None)) -> NoReturn:
        raise DataError(
            f"{self.name} is streamed: its images come step by step and cannot be picked; "
            "set data.streaming=false."
        )

    def subset(self, positions: np.ndarray) -> NoReturn:
        self.images(positions)
