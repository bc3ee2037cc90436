"""Edits and counterfactuals: what would have to change for this image to be of another class?

The image is noised to a share of the way to pure noise, its strength, and denoised again, guided
to the other class. The less strength, the more of the image survives; the smallest strength that
changes the network's mind shows what its opinion hangs on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from egc.config import SampleConfig
from egc.diffusion import initial_noise
from egc.errors import ConfigError
from egc.model import Model
from egc.report.figures import canvas, show_images
from egc.report.progress import progress_line
from egc.tasks.predict import predict_proba
from egc.tasks.sample import begin_at, end_of, reverse, seeds_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    classes: list[str]

    @property
    def flipped(self) -> np.ndarray:
        """Whether each image now passes for the class asked for; (N,)."""
        return self.probabilities_after.argmax(axis=1) == self.target

    @property
    def difference(self) -> np.ndarray:
        """What changed: grey is nothing, light was added, dark taken away; uint8 (N, H, W, C)."""
        change = self.after.astype(np.int16) - self.before
        return (128 + change / 2).clip(0, 255).astype(np.uint8)

    def picture(self) -> Figure:
        """Before, after and the difference, one image a column."""
        count = len(self.before)
        figure = canvas(1.5 * count + 0.5, 5)
        axes = np.reshape(figure.subplots(3, count), (3, count))
        for index, (top, middle, bottom) in enumerate(axes.T):
            for axis, images, table in (
                (top, self.before, self.probabilities_before),
                (middle, self.after, self.probabilities_after),
            ):
                best = int(table[index].argmax())
                title = f"{self.classes[best]} {table[index][best]:.0%}"
                show_images(axis, images[index][None], title)
            title = f"strength {self.strengths[index]:.2f}"
            show_images(bottom, self.difference[index][None], title)
        return figure


def edit(
    model: Model,
    images: np.ndarray,
    to: str | int,
    strength: float | str = "auto",
    *,
    sampling: SampleConfig,
    seed: int = 0,
    progress: bool = True,
) -> Edit:
    """Edit images towards a class; see `egc.EGC.edit`."""
    target = model.label_index(to)
    model.needs("denoises")
    automatic = strength == "auto"
    if not automatic and (isinstance(strength, str) or not 0 <= strength <= 1):
        raise ConfigError(f"The strength is a number from 0 to 1, or 'auto'; got {strength!r}.")
    seeds = seeds_for(seed, len(images))
    before = predict_proba(model, images)
    after, chosen = images.copy(), np.zeros(len(images))
    tried = STRENGTHS if automatic else (float(strength),)
    left = np.arange(len(images))
    if automatic:
        left = left[before.argmax(axis=1) != target]  # the others pass already
    with progress_line("Editing", len(tried), show=progress) as line:
        for level in tried:
            if len(left) == 0:
                break
            after[left] = _edited(model, images[left], target, level, sampling, seeds[: len(left)])
            chosen[left] = level
            if automatic:
                passes = predict_proba(model, after[left]).argmax(axis=1) == target
                left = left[~passes]
            line.advance()
    return Edit(images, after, target, chosen, before, predict_proba(model, after), model.classes)


def _edited(
    model: Model,
    images: np.ndarray,
    target: int,
    strength: float,
    sampling: SampleConfig,
    seeds: np.ndarray,
) -> np.ndarray:
    """Noise to the strength's level and denoise towards the class."""
    begin = begin_at(model, strength, sampling)
    times = model.diffusion.timesteps(sampling)
    if begin == len(times):
        return images
    generators = [torch.Generator().manual_seed(int(each)) for each in seeds]
    noise = initial_noise(generators, model.codec.shape).to(model.device)
    x0 = model.codec.encode(images).to(model.device)
    start = model.diffusion.noise(x0, times[begin], noise)
    labels = np.full(len(images), target)
    return model.codec.decode(
        end_of(reverse(model, labels, seeds, sampling, start=start, begin=begin))
    )
