"""From one image to another, through the noise they come from.

A deterministic sampler makes an image a function of its x_t. Walking between two of those along a
great circle (noise lives near a sphere, and a straight line would cut through it) and sampling
from every place on the way gives images that are each plausible; blending the two images
themselves gives ghosts. Given images are first led back to their x_t by running DDIM backwards
(`Diffusion.invert`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from egc.config import SampleConfig
from egc.diffusion import initial_noise
from egc.errors import ConfigError
from egc.model import Model
from egc.report.grid import image_grid
from egc.report.progress import progress_line
from egc.tasks.sample import (
    begin_at,
    check_integer,
    end_of,
    eps_for,
    first_step,
    labels_for,
    seeds_for,
)

LEVEL = 0.7
"""how much of the way to noise given images are led back: beyond, inversion loses them"""


@dataclass(frozen=True)
class Interpolation:
    """Two rows of the same length between the same ends."""

    images: np.ndarray
    """through noise; uint8 (frames, H, W, C)"""
    blended: np.ndarray
    """the end images mixed; uint8 (frames, H, W, C)"""

    def picture(self) -> Image.Image:
        """Both rows as one picture."""
        both = np.concatenate([self.images, self.blended])
        return image_grid(both, columns=len(self.images))


def slerp(a: Tensor, b: Tensor, share: float) -> Tensor:
    """The point at `share` of the great circle from a to b (with the lengths in proportion)."""
    cosine = torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0)
    angle = cosine.clamp(-1, 1).acos()
    if float(angle) < 1e-4:
        return torch.lerp(a, b, share)
    return (torch.sin((1 - share) * angle) * a + torch.sin(share * angle) * b) / torch.sin(angle)


def interpolate(
    model: Model,
    seeds: tuple[int, int] | None = None,
    images: np.ndarray | None = None,
    label: str | int | None = None,
    frames: int = 9,
    *,
    sampling: SampleConfig,
    progress: bool = True,
) -> Interpolation:
    """Between two seeds or two images; see `egc.EGC.interpolate`."""
    if (seeds is None) == (images is None):
        raise ConfigError("Give two seeds or two images to interpolate between.")
    frames = check_integer(frames, "The number of frames", 2)
    eps = eps_for(model, labels_for(model, label, frames), sampling)
    shares = np.linspace(0, 1, frames)
    begin, clip = first_step(model, sampling), model.codec.clip
    count = sampling.steps
    if images is not None:
        if len(images) != 2:
            raise ConfigError(f"Two images are needed to go between; got {len(images)}.")
        begin, clip = begin_at(model, LEVEL, sampling), None  # clipping cannot be run backwards
        count = 2 * (sampling.steps - begin)
    with progress_line("Interpolating", count, show=progress) as line:
        if images is not None:
            ends = model.codec.encode(images).to(model.device)
            two = eps_for(model, labels_for(model, label, 2), sampling)
            back = model.diffusion.invert(two, ends, steps=sampling.steps, begin=begin)
            start = end_of(back, line)
        else:
            assert seeds is not None
            checked = [int(seeds_for(seed, 1)[0]) for seed in seeds]
            generators = [torch.Generator().manual_seed(seed) for seed in checked]
            start = initial_noise(generators, model.codec.shape).to(model.device)
        way = torch.stack([slerp(start[0], start[1], float(share)) for share in shares])
        onward = model.diffusion.reverse(
            eps,
            [0] * frames,  # whatever noise a sampler adds on the way, all frames get the same
            model.codec.shape,
            sampling,
            clip=clip,
            device=model.device,
            start=way,
            begin=begin,
        )
        x = end_of(onward, line)
    mixed = torch.stack([torch.lerp(x[0], x[-1], float(share)) for share in shares])
    return Interpolation(model.codec.decode(x), model.codec.decode(mixed))
