"""The diffusion process: how noise is put in, and how it is taken out again.

Forwards, for t = 0..T-1 (t = 0 has the least noise):

    q(x_t | x_0) = N(sqrt(abar_t) x_0, (1 - abar_t) I),   sigma_t = sqrt(1 - abar_t)

Backwards, a scheduler of diffusers turns the predicted noise into the next, cleaner image.
`Diffusion.reverse` is a generator that yields each step, so a progress bar, a picture of the
path and the final sample all come from the same loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egc.config import DiffusionConfig, SampleConfig
from egc.samplers import make_scheduler, takes_generator

EpsFunction = Callable[[Tensor, int], Tensor]
"""(x_t, t) -> the predicted noise, of the shape of x_t"""
Corrector = Callable[[Tensor, int, Sequence[torch.Generator]], Tensor]
"""(x_t, t, one generator an image) -> other x_t of the same noise level"""


@dataclass(frozen=True)
class ReverseStep:
    """One step of the reverse process."""

    index: int
    """0 .. count - 1"""
    count: int
    t: int
    """the noise level this step started from"""
    x: Tensor
    """the image after the step"""
    x0: Tensor
    """the clean image predicted at this step"""


def betas_for(config: DiffusionConfig) -> Tensor:
    """beta_t for t = 0..T-1, in float64."""
    steps = config.steps
    if config.schedule == "linear":
        return torch.linspace(config.beta_start, config.beta_end, steps, dtype=torch.float64)
    # cosine (Nichol & Dhariwal 2021): abar follows a squared cosine, beta is kept below 0.999
    u = torch.arange(steps + 1, dtype=torch.float64) / steps
    abar = torch.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2
    return (1 - abar[1:] / abar[:-1]).clamp(max=0.999)


def initial_noise(
    generators: Sequence[torch.Generator], shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """x_T: noise of each image's own generator."""
    return torch.stack([torch.randn(tuple(shape), generator=g, dtype=dtype) for g in generators])


class Diffusion:
    """A noise schedule, with its closed forms and its reverse process."""

    def __init__(self, config: DiffusionConfig):
        self.config = config
        self.steps = config.steps
        self.betas = betas_for(config)
        self.alphas_cumprod = torch.cumprod(1 - self.betas, dim=0)
        """abar_t; shape (T,), float64"""
        self.sigmas = (1 - self.alphas_cumprod).sqrt()
        """sigma_t; shape (T,), float64"""

    def noise(self, x0: Tensor, t: Tensor | int, eps: Tensor) -> Tensor:
        """x_t = sqrt(abar_t) x_0 + sigma_t eps (eq. 7)."""
        return (
            self._at(self.alphas_cumprod.sqrt(), t, x0) * x0 + self._at(self.sigmas, t, x0) * eps
        )

    def predict_x0(self, x: Tensor, t: Tensor | int, eps: Tensor) -> Tensor:
        """The clean image that this noise implies (Tweedie's formula, eq. 10)."""
        return (x - self._at(self.sigmas, t, x) * eps) / self._at(self.alphas_cumprod.sqrt(), t, x)

    def implied_eps(self, x: Tensor, t: Tensor | int, x0: Tensor) -> Tensor:
        """The noise that lies between x_0 and x_t."""
        return (x - self._at(self.alphas_cumprod.sqrt(), t, x) * x0) / self._at(self.sigmas, t, x)

    def posterior(self, x0: Tensor, x: Tensor, t: Tensor | int) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(x_{t-1} | x_t, x_0) (eq. 8); at t = 0 that is x_0 itself."""
        abar = self.alphas_cumprod
        before = torch.cat([abar.new_ones(1), abar[:-1]])
        variance = self.betas * (1 - before) / (1 - abar)
        from_x0 = before.sqrt() * self.betas / (1 - abar)
        from_x = (1 - self.betas).sqrt() * (1 - before) / (1 - abar)
        mean = self._at(from_x0, t, x) * x0 + self._at(from_x, t, x) * x
        return mean, self._at(variance, t, x)

    def reverse(
        self,
        eps: EpsFunction,
        seeds: Sequence[int],
        shape: Sequence[int],
        sampling: SampleConfig,
        *,
        clip: float | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        start: Tensor | None = None,
        begin: int = 0,
        corrector: Corrector | None = None,
    ) -> Iterator[ReverseStep]:
        """Turn noise into images, yielding every step.

        Image i is a function of `seeds[i]` alone: it has a generator of its own, which makes its
        x_T and all the noise it meets on its way.

        Args:
            eps: the predicted noise.
            seeds: one seed an image.
            shape: (C, H, W) of one image.
            sampling: which sampler, and how many steps; at most T.
            clip: keep the predicted x_0 within plus and minus this, at every step.
            start, begin: x_t to start from instead of noise, and the step that t belongs to
                (`timesteps` lists them).
            corrector: moves the images about at each new noise level, before the next step.
        """
        scheduler = self.scheduler(sampling, device)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        x = initial_noise(generators, shape, dtype).to(device) if start is None else start
        if begin and hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(begin)
        options: dict[str, Any] = {"generator": generators} if takes_generator(scheduler) else {}
        times = scheduler.timesteps.tolist()
        for index, t in enumerate(times[begin:], begin):
            predicted = eps(x, t)
            x0 = self.predict_x0(x, t, predicted)
            if clip is not None:
                # Done here and not by the scheduler, as only some can.
                x0 = x0.clamp(-clip, clip)
                predicted = self.implied_eps(x, t, x0)
            x = scheduler.step(predicted, t, x, return_dict=False, **options)[0]
            if corrector is not None and index + 1 < len(times):
                x = corrector(x, times[index + 1], generators)
            yield ReverseStep(index, len(times), t, x, x0)

    def timesteps(self, sampling: SampleConfig) -> list[int]:
        """The noise levels that a sampler's steps start from, the noisiest first."""
        return self.scheduler(sampling).timesteps.tolist()

    def scheduler(self, sampling: SampleConfig, device: torch.device | str = "cpu") -> Any:
        """The scheduler of diffusers that takes these steps."""
        return make_scheduler(sampling.sampler, self.betas.numpy(), sampling.steps, device)

    def invert(
        self, eps: EpsFunction, x0: Tensor, *, steps: int, begin: int, iterations: int = 8
    ) -> Iterator[ReverseStep]:
        """Run DDIM backwards, from an image to the x_t that its steps from `begin` on lead to it.

        A step x_s = a x_t + b eps(x_t, t) is solved for x_t by fixed-point iteration, so that
        sampling from what is found returns the image; it converges well where the noise does not
        drown the image, so not for the very first steps.
        """
        abar = self.alphas_cumprod
        levels = self.timesteps(SampleConfig(sampler="ddim", steps=steps))[begin:]
        below = [*levels[1:], None]
        x = x0
        for count, (t, s) in enumerate(reversed(list(zip(levels, below, strict=True)))):
            abar_s = abar.new_ones(()) if s is None else abar[s]
            a = float((abar_s / abar[t]).sqrt())
            b = float((1 - abar_s).sqrt()) - a * float(self.sigmas[t])
            found = x
            for _ in range(iterations):
                found = (x - b * eps(found, t)) / a
            x = found
            yield ReverseStep(count, len(levels), t, x, self.predict_x0(x, t, eps(x, t)))

    @staticmethod
    def _at(values: Tensor, t: Tensor | int, like: Tensor) -> Tensor:
        """values[t] in the dtype and place of `like`, with trailing axes to multiply images by."""
        picked = values.to(like.device)[t].to(like.dtype)
        return picked.reshape(-1, *[1] * (like.ndim - 1)) if picked.ndim else picked
