"""Random changes to a batch of training images, on uint8 pixels, before the codec."""

from __future__ import annotations

import torch
from torch import Tensor

from egc.config import AugmentConfig


def augment(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """uint8 (B, H, W, C) -> the same, changed as configured; random numbers from `generator`."""
    count, height, width, _ = images.shape
    if config.flip:
        flipped = torch.rand(count, generator=generator) < 0.5
        images = torch.where(flipped[:, None, None, None], images.flip(2), images)
    if config.shift:
        dy, dx = torch.randint(-config.shift, config.shift + 1, (2, count, 1), generator=generator)
        # Reading beyond the edge repeats the edge.
        rows = (torch.arange(height) + dy).clamp(0, height - 1)
        columns = (torch.arange(width) + dx).clamp(0, width - 1)
        every = torch.arange(count)[:, None, None]
        images = images[every, rows[:, :, None], columns[:, None, :]]
    return images
