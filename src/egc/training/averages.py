"""Means of what was seen since the last record, and the speed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

SPEED = "images_per_second"


class Averages:
    def __init__(self) -> None:
        self._start()

    def add(self, values: Mapping[str, float], images: int) -> None:
        for name, value in values.items():
            self._sums[name] += value
        self._count += 1
        self._images += images

    def pop(self) -> dict[str, float]:
        """The means, images a second, and a fresh start."""
        record = {name: total / self._count for name, total in self._sums.items()}
        record[SPEED] = self._images / (time.monotonic() - self._since)
        self._start()
        return record

    def _start(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._count = 0
        self._images = 0
        self._since = time.monotonic()
