"""How probable held-out images are: the variational bound over a set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from egc.config.parse import key
from egc.data.imageset import ImageSet, Splits
from egc.distributed import gather, share
from egc.errors import ConfigError
from egc.metrics.base import Column, Measured, Metric, Row
from egc.metrics.fitting import fitting
from egc.metrics.variational_bound import Bound, Variance, variational_bound
from egc.model import Model
from egc.registry import metrics

AT_ONCE = 256
"""images that are read together"""


@dataclass(frozen=True)
class Likelihood(Measured):
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

    def rows(self) -> list[Row]:
        return [
            ("bits per dimension, at most", f"{self.bits:.3f} ± {self.error:.3f}"),
            ("measured on", f"{len(self.bound.total):,} images, {self.terms} terms each"),
        ]

    def verdict(self) -> str:
        return f"Held-out images cost it {self.bits:.2f} bits per dimension at most."


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


@metrics.register("likelihood")
class LikelihoodMetric(Metric):
    title = "a bound on the likelihood, in bits per dimension"
    finds = ("bits", "bpd", "bits_per_dim", "elbo", "log_likelihood", "variational_bound")

    @dataclass(frozen=True)
    class Options(Metric.Options):
        images: int | None = key(256, "test images to use", low=1, none="all")
        terms: int = key(32, "terms of the variational bound to compute for each image", above=0)
        variance: Variance = key("beta", "of the reverse process, in the bound")

    def obstacle(self, model: Model) -> str | None:
        if not model.net.denoises:
            return "it knows no noise levels"
        if model.config.codec.kind != "pixel":
            return "it works on latents, and the figure would be one of latents"
        return None

    def measure(self, model: Model, data: Splits, options: Options, progress: bool) -> Likelihood:
        count, terms, variance = options.images, options.terms, options.variance
        return evaluate_likelihood(
            model, data.test, count=count, terms=terms, variance=variance, seed=options.seed
        )

    def columns(self, options: Options) -> list[Column]:
        return [Column("bits_per_dim", "bits/dim", "{:.2f}".format, ("bits_per_dim",))]
