"""What a model says of images: p(y|x), log-density, features; and the ways p(y|x) is asked for.

    plain       p(y|x) = softmax(h(x)) at t = 0, the paper's protocol
    ensemble    the mean of p(y|x_t) over draws of noise at small t
    purify      noise to T and denoise by the model's own score, then one of the above

`log_density` is f(x), evaluated at the image itself as a point x_t: no noise is added. Values are
comparable between images at one t. `EnergyModel.log_prob` compares noise levels too.

A `Predictor` takes pixels, as an attacker has them, and can be differentiated: through the codec
and the ensemble exactly, through purification as if it returned its input (BPDA: what it removes
is small, so the gradient behind it stands for the gradient before it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from egc.diffusion import initial_noise
from egc.errors import ConfigError, ModelError
from egc.model import Model
from egc.nn.backbone import Backbone
from egc.tasks.sample import check_integer, end_of, reverse

SPREAD = 0.05
"""the draws of an ensemble go up to this share of all noise levels"""
AT_ONCE = 256
"""images that go through the network together"""


def predict_proba(model: Model, images: np.ndarray) -> np.ndarray:
    """uint8 (N, H, W, C) -> class probabilities (N, classes)."""
    model.needs("classifies")
    return in_batches(model, images, lambda x: model.net.logits(x, 0).softmax(dim=1))


def log_density(model: Model, images: np.ndarray, t: int = 0) -> np.ndarray:
    """uint8 (N, H, W, C) -> f(x) at noise level t, (N,)."""
    model.needs("has_energy")
    t = check_times(model, [t])[0]
    return in_batches(model, images, lambda x: model.net(x, t).log_density)


def features(model: Model, images: np.ndarray) -> np.ndarray:
    """uint8 (N, H, W, C) -> the last hidden map at t = 0, averaged over positions; (N, width)."""
    backbone = cast(Backbone, model.net.backbone)

    def mean_features(x: Tensor) -> Tensor:
        t = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return backbone.features(x, t).mean(dim=(2, 3))

    return in_batches(model, images, mean_features)


def in_batches(
    model: Model,
    images: np.ndarray,
    ask: Callable[[Tensor], Tensor],
    at_once: int = AT_ONCE,
) -> np.ndarray:
    """What the network says of images in model space, a batch at a time, without gradients."""
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), at_once):
            x = model.codec.encode(images[start : start + at_once]).to(model.device)
            parts.append(ask(x).detach().cpu())
    return torch.cat(parts).numpy()


def check_times(model: Model, times: Sequence[int]) -> list[int]:
    """Noise levels that the model has."""
    last = model.diffusion.steps - 1
    checked = [check_integer(t, "t", 0) for t in times]
    if bad := [t for t in checked if t > last]:
        raise ConfigError(f"t must be 0 to {last}; got {bad[0]}.")
    return checked


@dataclass(frozen=True)
class Predictor:
    """A model and the way it is asked; (pixels, seeds) -> log p(y|x).

    Args:
        ensemble: draws of noise, at noise levels spread evenly from 0 on; 0: none, t = 0.
        purify: noise level to go to and come back from first; 0: none. By the model's own sampler.
    """

    model: Model
    ensemble: int = 0
    purify: int = 0

    def __post_init__(self) -> None:
        self.model.needs("classifies")
        if (self.ensemble or self.purify) and not self.model.net.denoises:
            raise ModelError(
                "Ensembles and purification need a network that knows noise levels, and this one "
                f"does not. ({self.model.net.about})"
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
        x = self.model.codec.encode_unit(pixels)
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        if self.purify:
            x = x + (self._purified(x.detach(), generators) - x).detach()
        if not self.ensemble:
            return self.model.net.logits(x, 0).log_softmax(dim=1)
        levels = torch.linspace(0, SPREAD * (self.model.diffusion.steps - 1), self.ensemble)
        votes = [self._vote(x, int(t), generators) for t in levels.round()]
        return torch.stack(votes).logsumexp(dim=0) - math.log(self.ensemble)

    def _vote(self, x: Tensor, t: int, generators: Sequence[torch.Generator]) -> Tensor:
        """log p(y|x_t) for one draw of noise."""
        noise = initial_noise(generators, x.shape[1:]).to(x)
        x_t = self.model.diffusion.noise(x, t, noise)
        return self.model.net.logits(x_t, t).log_softmax(dim=1)

    def _purified(self, x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Noise to the level nearest below `purify` that the sampler stops at, and denoise."""
        model, sampling = self.model, self.model.config.sample
        times = model.diffusion.timesteps(sampling)
        begin = next((i for i, t in enumerate(times) if t <= self.purify), len(times) - 1)
        noise = initial_noise(generators, x.shape[1:]).to(x)
        start = model.diffusion.noise(x, times[begin], noise)
        unlabelled, seeds = np.full(len(x), -1), [0] * len(x)
        return end_of(reverse(model, unlabelled, seeds, sampling, start=start, begin=begin))
