"""How a model names an image: at once, averaged over noise, or after its score has cleaned it.

    plain       p(y|x) = softmax(h(x)) at t = 0, the paper's protocol
    ensemble    the mean of p(y|x_t) over draws of noise at small t
    purify      noise to T and denoise by the model's own score, then one of the above

A `Predictor` takes pixels, as an attacker has them, and can be differentiated: through the codec
and the ensemble exactly, through purification as if it returned its input (BPDA: what it removes
is small, so the gradient behind it stands for the gradient before it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from egc.diffusion import initial_noise
from egc.errors import ConfigError, ModelError
from egc.model import Model
from egc.tasks.sample import end_of

SPREAD = 0.05
"""the draws of an ensemble go up to this share of all noise levels"""


@dataclass(frozen=True)
class Predictor:
    """A model and the way it is asked; (pixels, seeds) -> log p(y|x).

    Args:
        ensemble: draws of noise, at noise levels spread evenly from 0 on; 0: none, t = 0.
        purify: noise level to go to and come back from first; 0: none.
    """

    model: Model
    ensemble: int = 0
    purify: int = 0

    def __post_init__(self) -> None:
        if not self.model.classes:
            raise ModelError("This model was trained without labels, so it cannot classify.")
        if (self.ensemble or self.purify) and not self.model.denoises:
            raise ModelError(
                "Ensembles and purification need a network that knows noise levels, and this one "
                f"does not (objective.kind = {self.model.config.objective.kind})."
            )
        if self.ensemble < 0:
            raise ConfigError(f"The ensemble must have at least 0 draws; got {self.ensemble}.")
        if not 0 <= self.purify < self.model.diffusion.steps:
            last = self.model.diffusion.steps - 1
            raise ConfigError(f"The level to purify from must be 0 to {last}; got {self.purify}.")

    @property
    def is_random(self) -> bool:
        """Whether the answer depends on the seeds."""
        return self.ensemble > 0 or self.purify > 0

    def __call__(self, pixels: Tensor, seeds: Sequence[int]) -> Tensor:
        """Pixels (B, C, H, W) in 0..1 and a seed for each -> log-probabilities (B, classes)."""
        x = self.model.codec.encode_pixels(2 * pixels - 1)
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        if self.purify:
            x = x + (self._purified(x.detach(), generators) - x).detach()
        if not self.ensemble:
            return self.model.net(x, 0).logits.log_softmax(dim=1)
        levels = torch.linspace(0, SPREAD * (self.model.diffusion.steps - 1), self.ensemble)
        votes = [self._vote(x, int(t), generators) for t in levels.round()]
        return torch.stack(votes).logsumexp(dim=0) - math.log(self.ensemble)

    def _vote(self, x: Tensor, t: int, generators: Sequence[torch.Generator]) -> Tensor:
        """log p(y|x_t) for one draw of noise."""
        noise = initial_noise(generators, x.shape[1:]).to(x)
        return self.model.net(self.model.diffusion.noise(x, t, noise), t).logits.log_softmax(dim=1)

    def _purified(self, x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Noise to the level nearest below `purify` that DDIM stops at, and denoise."""
        model, steps = self.model, self.model.config.sample.steps
        times = model.diffusion.timesteps("ddim", steps)
        begin = next((i for i, t in enumerate(times) if t <= self.purify), len(times) - 1)
        noise = initial_noise(generators, x.shape[1:]).to(x)
        way = model.diffusion.reverse(
            model.net.eps,
            [0] * len(x),
            x.shape[1:],
            steps=steps,
            clip=model.codec.clip,
            device=x.device,
            start=model.diffusion.noise(x, times[begin], noise),
            begin=begin,
        )
        return end_of(way)
