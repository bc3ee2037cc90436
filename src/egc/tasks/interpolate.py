"""From one image to another, through the noise they come from.

DDIM is deterministic: an image is a function of its x_t. Walking between two of those along a
great circle (noise lives near a sphere, and a straight line would cut through it) and running DDIM
from every place on the way gives images that are each plausible; blending the two images
themselves gives ghosts. Given images are first led back to their x_t (`Diffusion.invert`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from egc.diffusion import initial_noise
from egc.errors import ConfigError
from egc.report.grid import image_grid
from egc.model import Model
from egc.report.progress import progress_line
from egc.tasks.sample import end_of, eps_for, first_step, labels_for, seeds_for

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
    steps: int | None = None,
    guidance: float | None = None,
    cfg: float | None = None,
    progress: bool = True,
) -> Interpolation:
    """Between two seeds or two images; see `egc.EGC.interpolate`."""
    if (seeds is None) == (images is None):
        raise ConfigError("Give two seeds or two images to interpolate between.")
    if frames < 2:
        raise ConfigError(f"The number of frames must be at least 2; got {frames}.")
    steps = model.config.sample.steps if steps is None else steps
    eps = eps_for(model, labels_for(model, label, frames), guidance, cfg)
    shares = np.linspace(0, 1, frames)
    begin, clip = first_step(model, "ddim", steps), model.codec.clip
    count = steps
    if images is not None:
        if len(images) != 2:
            raise ConfigError(f"Two images are needed to go between; got {len(images)}.")
        begin, clip = begin_at(model, LEVEL, steps), None  # clipping cannot be run backwards
        count = 2 * (steps - begin)
    with progress_line("Interpolating", count, show=progress) as line:
        if images is not None:
            ends = model.codec.encode(images).to(model.device)
            two = eps_for(model, labels_for(model, label, 2), guidance, cfg)
            start = end_of(model.diffusion.invert(two, ends, steps=steps, begin=begin), line)
        else:
            assert seeds is not None
            drawn = [seeds_for(seed, 1)[0] for seed in seeds]
            generators = [torch.Generator().manual_seed(int(seed)) for seed in drawn]
            start = initial_noise(generators, model.codec.shape).to(model.device)
        way = torch.stack([slerp(start[0], start[1], float(share)) for share in shares])
        onward = model.diffusion.reverse(
            eps,
            [0] * frames,  # DDIM draws no noise
            model.codec.shape,
            sampler="ddim",
            steps=steps,
            clip=clip,
            device=model.device,
            start=way,
            begin=begin,
        )
        x = end_of(onward, line)
    mixed = torch.stack([torch.lerp(x[0], x[-1], float(share)) for share in shares])
    return Interpolation(model.codec.decode(x), model.codec.decode(mixed))


def begin_at(model: Model, level: float, steps: int) -> int:
    """The first of the DDIM steps whose noise level is at most this share of T."""
    times = model.diffusion.timesteps("ddim", steps)
    most = level * model.diffusion.steps
    begin = next((i for i, t in enumerate(times) if t < most), len(times))
    return max(begin, first_step(model, "ddim", steps))
