"""Composition: draw what is both, or one and not the other, by adding and subtracting energies.

    log p_t(x) = f(x) / sigma_t + w * sum_i s_i log p(y_i | x) + const,   s_i = 1 (and), -1 (not)

which is `EnergyModel.log_prob` with several labels, each with its weight.

Its gradient steers any sampler. But the diffusion of a product is not the product of the
diffusions: at high noise, the sum is not the density that the steps assume. So at each level the
images take a few Langevin steps under the sum itself, which is the wanted density at the last one
(Du et al. 2023). The energy gives what a score alone cannot, an acceptance test:

    x' = x + h/2 grad log p(x) + sqrt(h) z,     accepted with probability
    min(1, p(x') q(x | x') / (p(x) q(x' | x)))

(Metropolis-adjusted, MALA), which keeps p exactly, whatever the step h. h follows the noise,
h = scale * sigma_t^2, and the scale adapts towards the acceptance rate of 0.57 that is best for
such steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from egc.config import SampleConfig
from egc.errors import ConfigError
from egc.model import Model
from egc.report.progress import progress_line
from egc.tasks.sample import Samples, check_integer, end_of, first_step, seeds_for

LogDensity = Callable[[Tensor, int], Tensor]
"""(x_t, t) -> log p_t(x) up to a constant, (B,); differentiable"""

BEST_ACCEPTANCE = 0.57
MODES = ("and", "not")


def value_and_gradient(log_density: LogDensity, x: Tensor, t: int) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        value = log_density(x, t)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient


class Langevin:
    """A corrector of `Diffusion.reverse`: a few steps under a log-density at each level.

    Args:
        log_density: what to stay within.
        sigmas: sigma_t, by which the steps are scaled.
        steps: how many at each level.
        adjusted: with the acceptance test; without, every proposal is taken.
        scale: the first step is this times sigma_t^2.
    """

    def __init__(
        self,
        log_density: LogDensity,
        sigmas: Tensor,
        steps: int = 4,
        *,
        adjusted: bool = True,
        scale: float = 0.1,
    ):
        self.log_density = log_density
        self.sigmas = sigmas
        self.steps = steps
        self.adjusted = adjusted
        self.scale = scale
        self.accepted: list[float] = []
        """the share of proposals taken, step by step"""

    def __call__(self, x: Tensor, t: int, generators: Sequence[torch.Generator]) -> Tensor:
        value, gradient = value_and_gradient(self.log_density, x, t)
        every = tuple(range(1, x.ndim))
        for _ in range(self.steps):
            h = self.scale * float(self.sigmas[t]) ** 2
            z = torch.stack([torch.randn(x.shape[1:], generator=g) for g in generators]).to(x)
            proposal = x + h / 2 * gradient + math.sqrt(h) * z
            new_value, new_gradient = value_and_gradient(self.log_density, proposal, t)
            back = (x - proposal - h / 2 * new_gradient).square().sum(dim=every)
            forth = (proposal - x - h / 2 * gradient).square().sum(dim=every)
            log_ratio = new_value - value + (forth - back) / (2 * h)
            chance = torch.stack([torch.rand((), generator=g) for g in generators]).to(x)
            take = chance.log() < log_ratio
            if not self.adjusted:
                take = torch.ones_like(take)
            chosen = take.reshape(-1, *[1] * len(every))
            x = torch.where(chosen, proposal, x)
            gradient = torch.where(chosen, new_gradient, gradient)
            value = torch.where(take, new_value, value)
            rate = float(log_ratio.clamp(max=0).exp().mean())
            self.accepted.append(rate)
            if self.adjusted:
                self.scale *= math.exp(0.2 * (rate - BEST_ACCEPTANCE))
        return x


def composed(
    model: Model, labels: Sequence[int], signs: Sequence[int], guidance: float
) -> LogDensity:
    """log p_t(x) of the sum of energies above."""
    classes = torch.tensor(labels, device=model.device)
    weights = guidance * torch.tensor(signs, device=model.device, dtype=torch.float32)

    def log_density(x: Tensor, t: int) -> Tensor:
        return model.net.log_prob(x, t, classes.expand(len(x), -1), weights.to(x.dtype))

    return log_density


def compose(
    model: Model,
    labels: Sequence[str | int],
    mode: str = "and",
    count: int = 1,
    *,
    sampling: SampleConfig,
    corrector_steps: int = 4,
    seed: int = 0,
    progress: bool = True,
) -> Samples:
    """Sample under a sum or difference of energies; see `egc.EGC.compose`."""
    model.needs("denoises")
    model.needs("has_energy")
    if mode not in MODES:
        raise ConfigError(f"Energies are composed by {' or '.join(MODES)}; got {mode!r}.")
    if len(labels) < 2:
        raise ConfigError(f"Composing takes at least two labels; got {len(labels)}.")
    count = check_integer(count, "The number of images", 1)
    corrector_steps = check_integer(corrector_steps, "The number of corrector steps", 0)
    indices = [model.label_index(label) for label in labels]
    signs = [1, *[1 if mode == "and" else -1] * (len(indices) - 1)]
    log_density = composed(model, indices, signs, sampling.guidance)

    def eps(x: Tensor, t: int) -> Tensor:
        _, gradient = value_and_gradient(log_density, x, t)
        return -float(model.diffusion.sigmas[t]) * gradient

    seeds = seeds_for(seed, count)
    corrector = None
    if corrector_steps:
        corrector = Langevin(log_density, model.diffusion.sigmas, corrector_steps)
    with progress_line("Composing", sampling.steps, show=progress) as line:
        way = model.diffusion.reverse(
            eps,
            seeds.tolist(),
            model.codec.shape,
            sampling,
            clip=model.codec.clip,
            device=model.device,
            begin=first_step(model, sampling),
            corrector=corrector,
        )
        images = model.codec.decode(end_of(way, line))
    return Samples(images, np.full(count, indices[0]), seeds, model.classes, sampling)
