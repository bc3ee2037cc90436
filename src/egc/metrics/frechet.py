"""Two sets of features, and how far they are apart.

    Frechet distance   |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) of their Gaussians; in the
                       features of Inception this is FID
    KID                unbiased MMD^2 with the kernel (x.y / D + 1)^3 (Binkowski et al. 2018)
    precision, recall  share of one set within the k-nearest-neighbour balls of the other
                       (Kynkaanniemi et al. 2019): realism, and variety
    density, coverage  the same, less at the mercy of outliers (Naeem et al. 2020)

Mean and covariance are gathered batch by batch, so that no more than a batch of features has to be
in memory; the statistics of real images are stored, to be measured once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from egc.data.files import replaced
from egc.data.imageset import ImageSet
from egc.distributed import is_main
from egc.metrics.fitting import in_shares

log = logging.getLogger("egc")

ROWS_AT_ONCE = 1000
"""of a matrix of distances"""
KEPT = 10_000
"""images of a set whose features are kept; mean and covariance are of all"""
HASHED_BYTES = 1 << 28
"""sets of more pixels than this are known by a sample of their images"""
HASHED_IMAGES = 512


class Features(NamedTuple):
    """What a feature network says of some images."""

    rows: np.ndarray
    """float32 (N, D)"""
    probabilities: np.ndarray | None = None
    """of its classes, if it has any; (N, C)"""


class FeatureNetwork(Protocol):
    """A frozen network that images are compared in."""

    kind: str
    """what it is called in results"""
    prefix: str
    """before the names of figures: empty for the standard ones alone"""
    digest: str
    """a hash of its weights"""

    def __call__(self, images: np.ndarray) -> Features:
        """uint8 (N, H, W, C) -> features."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """Mean (D,) and covariance (D, D) of `count` features."""

    mean: np.ndarray
    covariance: np.ndarray
    count: int


class Moments:
    """Mean and scatter of features that come in batches, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: np.ndarray | float = 0.0
        self._scatter: np.ndarray | float = 0.0

    def add(self, features: np.ndarray) -> None:
        """Take in features (n, D)."""
        rows = features.astype(np.float64)
        if not len(rows):
            return
        mean = rows.mean(axis=0)
        centred = rows - mean
        total = self.count + len(rows)
        # Joining centred sums (Chan et al. 1979) loses no digits where raw sums would.
        away = mean - self._mean
        between = np.outer(away, away) * (self.count * len(rows) / total)
        self._scatter = self._scatter + centred.T @ centred + between
        self._mean = self._mean + away * (len(rows) / total)
        self.count = total

    def gaussian(self) -> Gaussian:
        """The Gaussian so far; it takes two features at least."""
        scatter = np.asarray(self._scatter)
        return Gaussian(np.asarray(self._mean), scatter / (self.count - 1), self.count)


def gaussian_distance(first: Gaussian, second: Gaussian) -> float:
    """The Frechet distance; 0 for equal mean and covariance."""
    # tr (C1 C2)^(1/2) = tr (S C2 S)^(1/2) with S = C1^(1/2), which is symmetric: no complex roots.
    values, vectors = np.linalg.eigh(first.covariance)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    product = root @ second.covariance @ root
    cross = np.sqrt(np.linalg.eigvalsh(product).clip(min=0)).sum()
    between = np.square(first.mean - second.mean).sum()
    traces = np.trace(first.covariance) + np.trace(second.covariance)
    return float(max(between + traces - 2 * cross, 0.0))


def frechet_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Features (N, D) and (M, D) -> distance; 0 for equal mean and covariance."""
    rows = [x.astype(np.float64) for x in (first, second)]
    return gaussian_distance(
        *(Gaussian(x.mean(axis=0), np.cov(x, rowvar=False), len(x)) for x in rows)
    )


def kernel_distance(
    first: np.ndarray, second: np.ndarray, subsets: int = 100, size: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """KID of features (N, D) and (M, D): mean and standard deviation over random subsets."""
    size = min(size, len(first), len(second))
    rng = np.random.default_rng(seed)
    if size == len(first) == len(second):
        subsets = 1
    x, y = torch.as_tensor(first).float(), torch.as_tensor(second).float()
    values = []
    for _ in range(subsets):
        a = x[rng.permutation(len(x))[:size]]
        b = y[rng.permutation(len(y))[:size]]
        within = _kernel(a, a).fill_diagonal_(0).sum() + _kernel(b, b).fill_diagonal_(0).sum()
        values.append(float(within / (size * (size - 1)) - 2 * _kernel(a, b).mean()))
    return float(np.mean(values)), float(np.std(values))


def _kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x @ y.T).double() / x.shape[1] + 1) ** 3


def neighbourhoods(
    first: np.ndarray, second: np.ndarray, k: int = 3, seed: int = 0
) -> dict[str, float]:
    """Precision and recall, density and coverage of `first` (N, D) against the real `second`.

    Of the larger set as many are taken as the smaller one has: the balls shrink with the number.
    """
    size = min(len(first), len(second))
    k = min(k, size - 1)
    rng = np.random.default_rng(seed)
    made, real = (
        torch.as_tensor(rows[rng.permutation(len(rows))[:size]]).double()
        for rows in (first, second)
    )
    made_radius, real_radius = _radii(made, k), _radii(real, k)
    inside = torch.zeros(size)
    recalled, covered = [], torch.full((size,), torch.inf, dtype=torch.float64)
    for start in range(0, size, ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        distances = torch.cdist(real[some], made)
        inside += (distances <= real_radius[some, None]).sum(dim=0)
        recalled.append((distances <= made_radius).any(dim=1))
        covered[some] = distances.min(dim=1).values
    return {
        "precision": float((inside > 0).double().mean()),
        "recall": float(torch.cat(recalled).double().mean()),
        "density": float(inside.mean() / k),
        "coverage": float((covered <= real_radius).double().mean()),
    }


def _radii(rows: torch.Tensor, k: int) -> torch.Tensor:
    """The distance of each row to its k-th nearest among the others."""
    parts = rows.split(ROWS_AT_ONCE)
    return torch.cat([torch.cdist(part, rows).kthvalue(k + 1, dim=1).values for part in parts])


def inception_score(probabilities: np.ndarray, splits: int = 10) -> tuple[float, float]:
    """exp E KL(p(y|x) | p(y)) of (N, C): mean and standard deviation over splits."""
    from scipy.special import rel_entr

    parts = np.array_split(probabilities.astype(np.float64), min(splits, len(probabilities)))
    scores = [np.exp(rel_entr(part, part.mean(axis=0)).sum(axis=1).mean()) for part in parts]
    return float(np.mean(scores)), float(np.std(scores))


@dataclass(frozen=True)
class Statistics:
    """What comparing a set of images takes."""

    gaussian: Gaussian
    """of all of them"""
    rows: np.ndarray
    """features of at most KEPT of them, picked at random; float32 (K, D)"""
    probabilities: np.ndarray | None = None
    """of all of them; (N, C)"""

    def __len__(self) -> int:
        return self.gaussian.count


def statistics_of(network: FeatureNetwork, chunks: Iterable[np.ndarray], count: int) -> Statistics:
    """Statistics of `count` images that come in chunks; of several processes, each its share."""
    kept = np.zeros(count, dtype=bool)
    kept[np.random.default_rng(0).permutation(count)[:KEPT]] = True
    moments = Moments()
    rows: list[np.ndarray] = []
    probabilities: list[np.ndarray] = []
    for images in chunks:
        found = _features(network, images)
        rows.append(found.rows[kept[moments.count : moments.count + len(images)]])
        moments.add(found.rows)
        if found.probabilities is not None:
            probabilities.append(found.probabilities)
    joined = np.concatenate(probabilities) if probabilities else None
    return Statistics(moments.gaussian(), np.concatenate(rows), joined)


def _features(network: FeatureNetwork, images: np.ndarray) -> Features:
    """Features of one chunk, the work shared by all processes."""

    def work(part: np.ndarray) -> list[tuple[np.ndarray, np.ndarray | None]]:
        found = network(images[part])
        scores = repeat(None) if found.probabilities is None else found.probabilities
        return list(zip(found.rows, scores, strict=False))

    every = in_shares(range(len(images)), work, at_once=len(images))
    rows, probabilities = zip(*every, strict=True)
    return Features(np.stack(rows), None if probabilities[0] is None else np.stack(probabilities))


def fingerprint(data: ImageSet) -> str:
    """A hash of a set's name, indices, labels and pixels (of a large set, of some of them)."""
    digest = hashlib.sha256(repr((data.name, len(data), data.image_size, data.channels)).encode())
    for numbers in (data.indices, data.labels):
        digest.update(numbers.astype(np.int64).tobytes())
    every = len(data) * data.image_size**2 * data.channels <= HASHED_BYTES
    picked = np.linspace(0, len(data) - 1, len(data) if every else HASHED_IMAGES).astype(int)
    for start in range(0, len(picked), HASHED_IMAGES):
        digest.update(data.images(picked[start : start + HASHED_IMAGES]).tobytes())
    return digest.hexdigest()


def load_statistics(path: Path) -> Statistics | None:
    """What `store_statistics` wrote; None if there is nothing, or it is damaged."""
    stored = load_arrays(path)
    try:
        gaussian = Gaussian(stored["mean"], stored["covariance"], int(stored["count"]))
        return Statistics(gaussian, stored["rows"], stored.get("probabilities"))
    except KeyError:
        return None


def store_statistics(path: Path, found: Statistics) -> None:
    """Keep statistics for the next time; a directory that cannot be written to is no failure."""
    arrays = {**vars(found.gaussian), "rows": found.rows, "probabilities": found.probabilities}
    try:
        save_arrays(path, **{name: value for name, value in arrays.items() if value is not None})
    except OSError as error:
        log.warning("The statistics of real images could not be kept in %s (%s).", path, error)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; none if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        pass
    except Exception:  # numpy and zipfile fail in many ways; all mean the same here
        log.warning("%s is damaged and is made again.", path)
    return {}


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write an .npz file that appears only when it is complete; by the main process."""
    if is_main():
        with replaced(path) as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]
