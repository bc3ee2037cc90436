"""How probable held-out images are: the variational bound over a set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from egc.data.imageset import ImageSet
from egc.errors import ConfigError
from egc.metrics.fitting import fitting
from egc.model import Model
from egc.distributed import share, gather
from egc.metrics.variational_bound import Bound, Variance, variational_bound

AT_ONCE = 256
"""images that are read together"""


@dataclass(frozen=True)
class Likelihood:
    """The bound of a set of images, in bits per dimension: the less, the more probable."""

    bound: Bound
    terms: int
    """of the sum over t that were computed for each image"""
    variance: Variance

    @property
    def bits(self) -> float:
        """Mean over the images."""
        return float(self.bound.total.mean())

    @property
    def error(self) -> float:
        """Its standard error: by the choice of images, and of t and noise for each."""
        total = self.bound.total
        return float(total.std(ddof=1) / np.sqrt(len(total))) if len(total) > 1 else float("nan")

    def summary(self) -> dict[str, Any]:
        return {
            "bits_per_dim": self.bits,
            "standard_error": None if np.isnan(self.error) else self.error,
            "prior": float(self.bound.prior.mean()),
            "terms": float(self.bound.terms.mean()),
            "decoder": float(self.bound.decoder.mean()),
            "terms_computed": self.terms,
            "variance": self.variance,
            "images": len(self.bound.total),
        }


def evaluate_likelihood(
    model: Model,
    data: ImageSet,
    *,
    count: int | None = None,
    terms: int = 32,
    variance: Variance = "beta",
    seed: int = 0,
) -> Likelihood:
    """The bound on the images of `data`, or on `count` of them picked at random.

    The image at position i has the seed `seed + i`; of several processes, each takes its share.
    """
    fitting(model, data, labels=False)
    if count is not None and count < 1:
        raise ConfigError(f"The number of images must be at least 1; got {count}.")
    positions = np.arange(len(data))
    if count is not None and count < len(data):
        positions = np.sort(np.random.default_rng(seed).permutation(len(data))[:count])
    mine = np.array(share(positions.tolist()), dtype=int)
    rows: list[np.ndarray] = []
    for start in range(0, len(mine), AT_ONCE):
        part = mine[start : start + AT_ONCE]
        seeds = (seed + part).tolist()
        found = variational_bound(model, data.images(part), seeds, terms=terms, variance=variance)
        rows += list(np.stack([found.prior, found.terms, found.decoder], axis=1))
    bound = Bound(*np.stack(gather(rows)).T)
    return Likelihood(bound, min(terms, model.diffusion.steps - 1), variance)
