"""The variational bound on -log p(x_0), in bits per dimension (Ho et al. 2020).

    L = KL(q(x_T-1 | x_0) || N(0, I))                              prior
      + sum over t > 0 of KL(q(x_t-1 | x_t, x_0) || p(x_t-1 | x_t)) terms
      - log p(x_0 | x_t=0)                                          decoder

p(x_t-1 | x_t) is the Gaussian whose mean is that of the posterior at the predicted x_0, clipped to
the range of pixels, and whose variance is fixed: `posterior`, that of q(x_t-1 | x_t, x_0) (which
is 0 at t = 0, so t = 1 lends its own), or `beta`, beta_t. The decoder is a Gaussian too, whose
mass is given to the 256 levels a pixel can have, the outermost taking the tails.

The sum over t is exact, or estimated without bias: t > 0 is cut into strata, narrow where the
terms are large, and each image draws one t from each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from egc.codec import LEVEL
from egc.diffusion import Diffusion, initial_noise
from egc.errors import ConfigError, ModelError, suggest
from egc.model import Model

Variance = Literal["posterior", "beta"]
HALF = LEVEL / 2
"""half the distance of two grey levels, where pixels are -1..1"""


@dataclass(frozen=True)
class Bound:
    """The parts of the bound of each image, in bits per dimension; each (N,)."""

    prior: np.ndarray
    terms: np.ndarray
    decoder: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return self.prior + self.terms + self.decoder


def variational_bound(
    model: Model,
    images: np.ndarray,
    seeds: Sequence[int],
    *,
    terms: int = 32,
    variance: Variance = "beta",
    batch_size: int = 256,
) -> Bound:
    """uint8 (N, H, W, C), a seed for each -> the bound on -log2 p(x) per dimension.

    Args:
        terms: how many of the T - 1 terms of the sum are computed; T - 1 or more: all.
        variance: of p(x_t-1 | x_t).
    """
    model.needs("denoises")
    if model.codec.clip is None:
        raise ModelError(
            "The likelihood of this model would be that of latents, which cannot be compared; "
            "take a model of pixels."
        )
    if terms < 1:
        raise ConfigError(f"At least 1 term of the bound must be computed; got {terms}.")
    if variance not in get_args(Variance):
        hint = suggest(variance, get_args(Variance))
        raise ConfigError(f"There is no variance {variance!r}. {hint}")
    parts = []
    for start in range(0, len(images), batch_size):
        x0 = model.codec.encode(images[start : start + batch_size]).to(model.device)
        parts.append(_bound_of(model, x0, seeds[start : start + batch_size], terms, variance))
    prior, inner, decoder = torch.cat(parts, dim=1).cpu().numpy() / math.log(2)
    return Bound(prior, inner, decoder)


def _bound_of(
    model: Model, x0: Tensor, seeds: Sequence[int], terms: int, variance: Variance
) -> Tensor:
    """Prior, terms and decoder of one batch in nats per dimension, (3, B), float64."""
    diffusion = model.diffusion
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def predicted(t: Tensor) -> tuple[Tensor, Tensor]:
        """A draw of x_t, and the x_0 predicted from it; the network aside, in float64."""
        exact = x0.double()
        x = diffusion.noise(exact, t, initial_noise(generators, x0.shape[1:]).to(exact))
        eps = model.net.eps(x.to(x0), t).double()
        guess = diffusion.predict_x0(x, t, eps)
        clip = model.codec.clip
        return x, guess if clip is None else guess.clamp(-clip, clip)

    inner = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
    edges = strata(diffusion.steps, terms)
    for low, high in pairwise(edges):
        picked = [int(torch.randint(low, high, (), generator=g)) for g in generators]
        t = torch.tensor(picked, device=x0.device)
        x, guess = predicted(t)
        inner += (high - low) * posterior_kl(diffusion, x0.double(), x, guess, t, variance)
    start = torch.zeros(len(x0), dtype=torch.long, device=x0.device)
    _, guess = predicted(start)
    decoder = -decoder_log_prob(x0.double(), guess, float(fixed_variance(diffusion, variance)[0]))
    return torch.stack([prior_kl(diffusion, x0.double()), inner, _mean(decoder)])


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
