"""Edits and counterfactuals: what would have to change for this image to be of another class?

The image is noised to a share of the way to pure noise, its strength, and denoised again, guided
to the other class. The less strength, the more of the image survives; the smallest strength that
changes the network's mind shows what its opinion hangs on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from egc.diffusion import initial_noise
from egc.errors import ConfigError
from egc.model import Model
from egc.report.progress import progress_line
from egc.tasks.classify import predict_proba
from egc.tasks.interpolate import begin_at
from egc.tasks.sample import end_of, eps_for, seeds_for

STRENGTHS = tuple(np.arange(0.1, 1.0, 0.05).round(2).tolist())
"""tried in turn by `strength="auto"`"""


@dataclass(frozen=True)
class Edit:
    """Images before and after, and what the network thinks of them."""

    before: np.ndarray
    """uint8 (N, H, W, C)"""
    after: np.ndarray
    """uint8 (N, H, W, C)"""
    target: int
    """the class asked for"""
    strengths: np.ndarray
    """of each image; (N,)"""
    probabilities_before: np.ndarray
    """(N, classes)"""
    probabilities_after: np.ndarray
    """(N, classes)"""

    @property
    def flipped(self) -> np.ndarray:
        """Whether each image now passes for the class asked for; (N,)."""
        return self.probabilities_after.argmax(axis=1) == self.target

    @property
    def difference(self) -> np.ndarray:
        """What changed: grey is nothing, light was added, dark taken away; uint8 (N, H, W, C)."""
        change = self.after.astype(np.int16) - self.before
        return (128 + change / 2).clip(0, 255).astype(np.uint8)


def edit(
    model: Model,
    images: np.ndarray,
    to: str | int,
    strength: float | str = "auto",
    *,
    steps: int | None = None,
    guidance: float | None = None,
    cfg: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Edit:
    """Edit images towards a class; see `egc.EGC.edit`."""
    target = model.label_index(to)
    if isinstance(strength, str) and strength != "auto":
        raise ConfigError(f"The strength is a number from 0 to 1, or 'auto'; got {strength!r}.")
    if not isinstance(strength, str) and not 0 <= strength <= 1:
        raise ConfigError(f"The strength must be 0 to 1; got {strength:g}.")
    steps = model.config.sample.steps if steps is None else steps
    before = predict_proba(model, images)
    after, chosen = images.copy(), np.zeros(len(images))
    tried = STRENGTHS if isinstance(strength, str) else (float(strength),)
    left = np.arange(len(images))
    if isinstance(strength, str):
        left = left[before.argmax(axis=1) != target]  # the others pass already
    with progress_line("Editing", len(tried), show=progress) as line:
        for level in tried:
            if len(left) == 0:
                break
            after[left] = _edited(model, images[left], target, level, steps, guidance, cfg, seed)
            chosen[left] = level
            if isinstance(strength, str):
                passes = predict_proba(model, after[left]).argmax(axis=1) == target
                left = left[~passes]
            line.advance()
    return Edit(images, after, target, chosen, before, predict_proba(model, after))


def _edited(
    model: Model,
    images: np.ndarray,
    target: int,
    strength: float,
    steps: int,
    guidance: float | None,
    cfg: float | None,
    seed: int,
) -> np.ndarray:
    """Noise to the strength's level and denoise towards the class."""
    begin = begin_at(model, strength, steps)
    times = model.diffusion.timesteps("ddim", steps)
    if begin == len(times):
        return images
    labels = np.full(len(images), target)
    seeds = seeds_for(seed, len(images))
    generators = [torch.Generator().manual_seed(int(each)) for each in seeds]
    noise = initial_noise(generators, model.codec.shape).to(model.device)
    x0 = model.codec.encode(images).to(model.device)
    way = model.diffusion.reverse(
        eps_for(model, labels, guidance, cfg),
        seeds.tolist(),
        model.codec.shape,
        sampler="ddim",
        steps=steps,
        clip=model.codec.clip,
        device=model.device,
        start=model.diffusion.noise(x0, times[begin], noise),
        begin=begin,
    )
    return model.codec.decode(end_of(way))
