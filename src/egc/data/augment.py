"""Random changes to a batch of training images, on uint8 pixels, before the codec."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from egc.config import AugmentConfig

GREY = 128
"""what cutout fills with: the middle of the range, zero to the network"""
TRIES = 10
"""at a part that fits into the image"""
RATIOS = (3 / 4, 4 / 3)


def augment(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """uint8 (B, H, W, C) -> the same, changed as configured; random numbers from `generator`."""
    if config.resized_crop:
        images = _resized_crop(images, config.resized_crop, generator)
    if config.pad_crop:
        images = _pad_crop(images, config.pad_crop, generator)
    if config.flip:
        images = _flip(images, generator)
    if config.shift:
        images = _shift(images, config.shift, generator)
    if config.cutout:
        images = _cutout(images, config.cutout, generator)
    return images


def _flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images left to right."""
    flipped = torch.rand(len(images), generator=generator) < 0.5
    # Picking whole images out of both copies is three times as fast as torch.where.
    both = torch.cat((images, images.flip(2)))
    return both.index_select(0, torch.arange(len(images)) + len(images) * flipped)


def _shift(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Move by up to `most` pixels each way; reading beyond the edge repeats the edge."""
    count, height, width, _ = images.shape
    dy, dx = torch.randint(-most, most + 1, (2, count, 1), generator=generator)
    rows = (torch.arange(height) + dy).clamp(0, height - 1)
    columns = (torch.arange(width) + dx).clamp(0, width - 1)
    every = torch.arange(count)[:, None, None]
    return images[every, rows[:, :, None], columns[:, None, :]]


def _pad_crop(images: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Cut the original size out of the image in a black frame of `pad` pixels."""
    count, height, width, _ = images.shape
    top, left = torch.randint(0, 2 * pad + 1, (2, count), generator=generator)
    framed = F.pad(images, (0, 0, pad, pad, pad, pad))
    # (B, tops, lefts, C, H, W): all windows, as a view
    windows = framed.unfold(1, height, 1).unfold(2, width, 1)
    return windows[torch.arange(count), top, left].permute(0, 2, 3, 1)


def _cutout(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Grey out a square around any pixel of the image, clipped at its border."""
    count, height, width, _ = images.shape
    y = torch.randint(height, (count, 1), generator=generator)
    x = torch.randint(width, (count, 1), generator=generator)
    rows = torch.arange(height) - (y - side // 2)
    columns = torch.arange(width) - (x - side // 2)
    rows, columns = (rows >= 0) & (rows < side), (columns >= 0) & (columns < side)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[..., None], GREY)


def _resized_crop(images: Tensor, smallest: float, generator: torch.Generator) -> Tensor:
    """Enlarge a part of each image to its whole size, bilinearly.

    The part's share of the area is uniform in `smallest`..1 and its ratio of width to height
    log-uniform in 3/4..4/3. The first of ten draws that fits into the image counts, at a random
    place; if none does, the whole image stays, as cutting it would only fit its own ratio.
    """
    count, height, width, _ = images.shape
    share = torch.rand((TRIES, count), generator=generator) * (1 - smallest) + smallest
    low, high = map(math.log, RATIOS)
    ratio = (torch.rand((TRIES, count), generator=generator) * (high - low) + low).exp()
    place = torch.rand((2, count), generator=generator)

    widths = (share * height * width * ratio).sqrt().round().clamp(min=1)
    heights = (share * height * width / ratio).sqrt().round().clamp(min=1)
    fits = (widths <= width) & (heights <= height)
    first = fits.to(torch.uint8).argmax(0, keepdim=True)
    some = fits.any(0)
    w = torch.where(some, widths.gather(0, first)[0], width)
    h = torch.where(some, heights.gather(0, first)[0], height)
    top, left = (place * torch.stack((height - h + 1, width - w + 1))).floor()

    resized = torch.empty_like(images)
    # One by one: each part has its own size, and the byte kernel beats any batched float one.
    for image, out, y, x, rows, columns in zip(
        images, resized, *(v.long().tolist() for v in (top, left, h, w)), strict=True
    ):
        part = image[y : y + rows, x : x + columns].permute(2, 0, 1)[None]
        large = F.interpolate(part, (height, width), mode="bilinear")
        out.copy_(large[0].permute(1, 2, 0))
    return resized
