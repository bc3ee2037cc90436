"""How probable held-out images are: the variational bound on -log p(x_0) (Ho et al. 2020).

    L = KL(q(x_T-1 | x_0) || N(0, I))                              prior
      + sum over t > 0 of KL(q(x_t-1 | x_t, x_0) || p(x_t-1 | x_t)) terms
      - log p(x_0 | x_t=0)                                          decoder

in bits per dimension. p(x_t-1 | x_t) is the Gaussian whose mean is that of the posterior at the
predicted x_0, clipped to the range of pixels, and whose variance is fixed: `posterior`, that of
q(x_t-1 | x_t, x_0) (which is 0 at t = 0, so t = 1 lends its own), or `beta`, beta_t. The decoder
is a Gaussian too, whose mass is given to the 256 levels a pixel can have, the outermost taking the
tails.

The sum over t is exact, or estimated without bias: t > 0 is cut into strata, narrow where the
terms are large, and each image draws one t from each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from egc.codec import LEVEL
from egc.config.parse import key
from egc.data.imageset import ImageSet, Splits
from egc.diffusion import Diffusion, initial_noise
from egc.errors import ConfigError, ModelError, suggest
from egc.metrics.base import Column, Measured, Metric, Row
from egc.metrics.fitting import fitting, in_shares
from egc.model import Model
from egc.registry import metrics

Variance = Literal["posterior", "beta"]
HALF = LEVEL / 2
"""half the distance of two grey levels, where pixels are -1..1"""


class Bound(NamedTuple):
    """The parts of the bound of each image, in bits per dimension; each (N,)."""

    prior: np.ndarray
    terms: np.ndarray
    decoder: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return self.prior + self.terms + self.decoder


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
            **{name: float(part.mean()) for name, part in self.bound._asdict().items()},
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


@metrics.register("likelihood")
class LikelihoodMetric(Metric):
    title = "a bound on the likelihood, in bits per dimension"
    finds = ("bits", "bpd", "bits_per_dim", "elbo", "log_likelihood", "variational_bound")
    requires = ("denoises", "pixels")

    @dataclass(frozen=True)
    class Options(Metric.Options):
        images: int | None = key(256, "test images to use", low=1, none="all")
        terms: int = key(32, "terms of the variational bound to compute for each image", above=0)
        variance: Variance = key("beta", "of the reverse process, in the bound")

    def measure(self, model: Model, data: Splits, options: Options, progress: bool) -> Likelihood:
        count, terms, variance = options.images, options.terms, options.variance
        return evaluate_likelihood(
            model, data.test, count=count, terms=terms, variance=variance, seed=options.seed
        )

    def columns(self, options: Options) -> list[Column]:
        return [Column("bits_per_dim", "bits/dim", "{:.2f}".format, ("bits_per_dim",))]


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
    picked = np.sort(np.random.default_rng(seed).permutation(len(data))[:count])

    def bound_of(part: np.ndarray) -> np.ndarray:
        seeds = (seed + part).tolist()
        found = variational_bound(model, data.images(part), seeds, terms=terms, variance=variance)
        return np.stack(found, axis=1)

    bound = Bound(*np.stack(in_shares(picked, bound_of)).T)
    return Likelihood(bound, min(terms, model.diffusion.steps - 1), variance)


def variational_bound(
    model: Model,
    images: np.ndarray,
    seeds: Sequence[int],
    *,
    terms: int = 32,
    variance: Variance = "beta",
) -> Bound:
    """uint8 (N, H, W, C), a seed for each -> the bound on -log2 p(x) per dimension.

    Args:
        terms: how many of the T - 1 terms of the sum are computed; T - 1 or more: all.
        variance: of p(x_t-1 | x_t).
    """
    model.needs("denoises")
    diffusion, clip = model.diffusion, model.codec.clip
    if clip is None:
        raise ModelError(
            "The likelihood of this model would be that of latents, which cannot be compared; "
            "take a model of pixels."
        )
    if terms < 1:
        raise ConfigError(f"At least 1 term of the bound must be computed; got {terms}.")
    if variance not in get_args(Variance):
        hint = suggest(variance, get_args(Variance))
        raise ConfigError(f"There is no variance {variance!r}. {hint}")
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    seen = model.codec.encode(images).to(model.device)
    x0 = seen.double()  # all but the network in double precision

    def predicted(t: Tensor) -> tuple[Tensor, Tensor]:
        """A draw of x_t, and the x_0 predicted from it."""
        x = diffusion.noise(x0, t, initial_noise(generators, x0.shape[1:]).to(x0))
        eps = model.net.eps(x.to(seen), t).double()
        return x, diffusion.predict_x0(x, t, eps).clamp(-clip, clip)

    inner = x0.new_zeros(len(x0))
    for low, high in pairwise(strata(diffusion.steps, terms)):
        picked = [int(torch.randint(low, high, (), generator=g)) for g in generators]
        t = torch.tensor(picked, device=x0.device)
        x, guess = predicted(t)
        inner += (high - low) * posterior_kl(diffusion, x0, x, guess, t, variance)
    _, guess = predicted(torch.zeros(len(x0), dtype=torch.long, device=x0.device))
    decoder = -decoder_log_prob(x0, guess, float(fixed_variance(diffusion, variance)[0]))
    parts = (prior_kl(diffusion, x0), inner, _mean(decoder))
    return Bound(*(part.cpu().numpy() / math.log(2) for part in parts))


def strata(steps: int, count: int) -> list[int]:
    """Edges of `count` ranges that 1..steps-1 is cut into, their widths growing with t.

    Each has at least one t, so that steps - 1 of them are all t.
    """
    count = min(count, steps - 1)
    return [max(round(1 + (steps - 1) * (k / count) ** 2), 1 + k) for k in range(count + 1)]


def fixed_variance(diffusion: Diffusion, kind: Variance) -> Tensor:
    """The variance of p(x_t-1 | x_t) for every t; (T,)."""
    if kind == "beta":
        return diffusion.betas
    times = torch.arange(diffusion.steps)
    nothing = torch.zeros(diffusion.steps, 1, dtype=torch.float64)
    _, variance = diffusion.posterior(nothing, nothing, times)
    return torch.cat([variance[1], variance[1:, 0]])


def posterior_kl(
    diffusion: Diffusion, x0: Tensor, x: Tensor, guess: Tensor, t: Tensor, variance: Variance
) -> Tensor:
    """KL(q(x_t-1 | x_t, x_0) || p(x_t-1 | x_t)) of each image, in nats per dimension."""
    mean, true_variance = diffusion.posterior(x0, x, t)
    guessed_mean, _ = diffusion.posterior(guess, x, t)
    fixed = fixed_variance(diffusion, variance).to(x.device)[t].reshape(true_variance.shape)
    return _mean(gaussian_kl(mean, true_variance, guessed_mean, fixed))


def prior_kl(diffusion: Diffusion, x0: Tensor) -> Tensor:
    """KL(q(x_T-1 | x_0) || N(0, I)) of each image, in nats per dimension."""
    abar = diffusion.alphas_cumprod[-1].to(x0)
    return _mean(gaussian_kl(abar.sqrt() * x0, 1 - abar, x0.new_zeros(()), x0.new_ones(())))


def gaussian_kl(mean1: Tensor, variance1: Tensor, mean2: Tensor, variance2: Tensor) -> Tensor:
    """KL(N(mean1, variance1) || N(mean2, variance2)) of each dimension, in nats."""
    ratio = variance1 / variance2
    return 0.5 * (ratio - 1 - ratio.log() + (mean1 - mean2) ** 2 / variance2)


def decoder_log_prob(x0: Tensor, mean: Tensor, variance: float) -> Tensor:
    """log of a Gaussian's mass around the level x_0 of 256 in -1..1, of each dimension."""
    deviation = math.sqrt(variance)
    upper = torch.where(x0 > 1 - HALF, torch.inf, (x0 + HALF - mean) / deviation)
    lower = torch.where(x0 < -1 + HALF, -torch.inf, (x0 - HALF - mean) / deviation)
    # By symmetry the same, and in the tail above the mean far more precise, below it.
    above = x0 > mean
    upper, lower = torch.where(above, -lower, upper), torch.where(above, -upper, lower)
    log_upper, log_lower = torch.special.log_ndtr(upper), torch.special.log_ndtr(lower)
    return log_upper + torch.log(-torch.expm1(log_lower - log_upper))


def _mean(values: Tensor) -> Tensor:
    """Over all dimensions of each image."""
    return values.flatten(1).mean(dim=1)
