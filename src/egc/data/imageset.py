"""A set of images with labels, wherever the pixels live, and its fixed splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from egc.errors import DataError, suggest

SPLIT_SEED = 0
"""Splits never move, whatever the seed of training: a test image is never trained on."""


@dataclass(frozen=True)
class ImageSet:
    """Images by index. `read` fetches pixels; labels and names are always at hand."""

    name: str
    read: Callable[[np.ndarray], np.ndarray]
    """source indices (n,) -> uint8 (n, H, W, C)"""
    indices: np.ndarray
    """which of the source's images belong to this set; (N,)"""
    labels: np.ndarray
    """class indices, -1 where unknown; (N,)"""
    classes: list[str]
    image_size: int
    channels: int
    autoencoder: str | None = None
    """of stored latents: what encoded them; `read` then gives float16 (n, C, h, w)"""
    twins: int = 0
    """above 0, the index of an image plus this is that of its mirrored twin"""
    mirrored: bool = False
    """whether the twins are among the images"""

    @classmethod
    def from_arrays(
        cls,
        images: np.ndarray,
        labels: Sequence[int] | Sequence[str | None] | np.ndarray | None = None,
        classes: Sequence[str] | None = None,
        name: str = "arrays",
    ) -> ImageSet:
        """Arrays that are in memory.

        Args:
            images: uint8 (N, H, W, C) or (N, H, W), square.
            labels: class indices, -1 where unknown; or class names, None where unknown.
            classes: their names; default: the sorted names among the labels, or numbers.
        """
        images = np.asarray(images)
        if images.ndim == 3:
            images = images[..., None]
        square = images.ndim == 4 and images.shape[1] == images.shape[2]
        if not (square and len(images) and images.shape[3] in (1, 3) and images.dtype == np.uint8):
            raise DataError(
                "Images are a uint8 array of shape (N, H, W, C), at least one, square and with "
                f"C = 1 or 3; got {images.dtype} of shape {images.shape}."
            )
        indices, names = _indexed(labels, len(images), classes)
        return cls(
            name=name,
            read=lambda chosen: images[chosen],
            indices=np.arange(len(images)),
            labels=indices,
            classes=names,
            image_size=images.shape[1],
            channels=images.shape[3],
        )

    def __len__(self) -> int:
        return len(self.indices)

    def take(
        self, step: int, batch_size: int, seed: int, rank: int = 0, processes: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of one training step, the share of process `rank`."""
        positions = positions_at(step, batch_size, len(self), seed)[rank::processes]
        return self.images(positions), self.labels[positions]

    def images(self, positions: np.ndarray | slice = slice(None)) -> np.ndarray:
        """uint8 (n, H, W, C) at these positions of the set; all of them by default."""
        return self.read(self.indices[positions])

    def subset(self, positions: np.ndarray) -> ImageSet:
        return replace(self, indices=self.indices[positions], labels=self.labels[positions])

    def with_twins(self) -> ImageSet:
        """The set with the mirrored twins of its images, if there are any."""
        if not self.twins or self.mirrored:
            return self
        indices = np.concatenate([self.indices, self.indices + self.twins])
        return replace(self, indices=indices, labels=np.tile(self.labels, 2), mirrored=True)


def _indexed(
    labels: Any, count: int, classes: Sequence[str] | None
) -> tuple[np.ndarray, list[str]]:
    """Class indices (N,), and what the classes are called."""
    given = [-1] * count if labels is None else list(labels) if hasattr(labels, "__len__") else []
    if len(given) != count:
        raise DataError(f"{count} images need as many labels; got {len(given)}.")
    if any(label is None or isinstance(label, str) for label in given):
        return _indexed_by_name(given, classes)
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.full(count, np.nan)
    fits = np.isfinite(values) & (values == np.round(values)) & (values.ndim == 1)
    if not fits.all():
        wrong = given[int(np.argwhere(~fits)[0, 0])]
        raise DataError(f"A label is a class index (a whole number) or a name; got {wrong!r}.")
    low, high = int(values.min()), int(values.max())
    names = [str(index) for index in range(high + 1)] if classes is None else list(classes)
    if low < -1 or high >= len(names):
        raise DataError(
            f"Labels must be 0 to {len(names) - 1}, or -1 for unknown; got {low} to {high}."
        )
    return values.astype(np.int64), names


def _indexed_by_name(
    labels: list[Any], classes: Sequence[str] | None
) -> tuple[np.ndarray, list[str]]:
    """The same of names, None where unknown."""
    for label in labels:
        if not (label is None or isinstance(label, str)):
            raise DataError(f"Labels are all names or all class indices; got names and {label!r}.")
    found = {str(label) for label in labels if label is not None}
    names = sorted(found) if classes is None else list(classes)
    if unknown := sorted(found - set(names)):
        raise DataError(f"The label {unknown[0]!r} is no class. {suggest(unknown[0], names)}")
    index = {None: -1} | {name: number for number, name in enumerate(names)}
    return np.array([index[label] for label in labels], dtype=np.int64), names


@lru_cache(maxsize=4)
def _pass_order(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(size)


def positions_at(step: int, batch_size: int, size: int, seed: int) -> np.ndarray:
    """Which of `size` images step `step` sees; each pass over the data has its own order."""
    places = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, offsets = np.divmod(places, size)
    return np.concatenate(
        [_pass_order(size, seed, int(e))[offsets[epochs == e]] for e in np.unique(epochs)]
    )


def keep_labels(data: ImageSet, kept: np.ndarray) -> ImageSet:
    """The set with the labels at these positions; those of all other images are forgotten."""
    labels = np.full_like(data.labels, -1)
    labels[kept] = data.labels[kept]
    return replace(data, labels=labels)


def balanced(labels: np.ndarray, share: float, seed: int = SPLIT_SEED) -> np.ndarray:
    """Positions of a share of the labelled images, the same number of each class up to one."""
    rng = np.random.default_rng(seed)
    known = np.flatnonzero(labels >= 0)
    order = rng.permutation(known)
    # The k-th image of each class comes before the (k + 1)-th of any.
    rank = np.empty(len(order), dtype=int)
    for label in np.unique(labels[known]):
        of_class = labels[order] == label
        rank[of_class] = np.arange(of_class.sum())
    count = max(1, round(share * len(known)))
    return order[np.argsort(rank, kind="stable")][:count]


class Splits(NamedTuple):
    """Training images, images to watch training with, and images kept for the end."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet


def hold_out(data: ImageSet, share: float) -> tuple[ImageSet, ImageSet]:
    """(the rest, a random `share` of the images), always the same ones."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(data))
    count = round(share * len(data))
    if count == len(data):
        raise DataError(f"Holding out {share:.0%} of {len(data)} images leaves none to train on.")
    return data.subset(order[count:]), data.subset(order[:count])
