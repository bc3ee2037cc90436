"""Many small images as one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

GAP = 128
"""grey between the images, which white strokes and dark grounds both stand out from"""
LETTERS = 14
"""height of a name in pixels"""
MAX_NAME = 24
"""letters of a name that are shown"""


def image_grid(
    images: np.ndarray,
    columns: int | None = None,
    cell: int = 64,
    largest: int | None = None,
    labels: Sequence[str] | None = None,
) -> Image.Image:
    """uint8 (N, H, W, C) -> one picture, row by row, each image enlarged to about `cell` pixels.

    Enlarging is by whole factors and without smoothing, so that every pixel can be seen. Images
    with a side above `largest` are shrunk to it. `labels` are written beside the rows.
    """
    if largest is not None and max(images.shape[1:3]) > largest:
        images = np.stack([_shrunk(pixels, largest) for pixels in images])
    count, height, width, channels = images.shape
    columns = columns or max(1, round(math.sqrt(count)))
    rows = math.ceil(count / columns)
    factor = max(1, cell // max(height, width))
    gap = max(2, factor // 2)
    big = images.repeat(factor, axis=1).repeat(factor, axis=2)
    height, width = height * factor, width * factor
    canvas = np.full(
        (rows * (height + gap) - gap, columns * (width + gap) - gap, channels), GAP, dtype=np.uint8
    )
    for index, pixels in enumerate(big):
        top, left = (index // columns) * (height + gap), (index % columns) * (width + gap)
        canvas[top : top + height, left : left + width] = pixels
    picture = as_picture(canvas)
    return picture if labels is None else _named(picture, labels, height, height + gap)


def as_picture(pixels: np.ndarray) -> Image.Image:
    """uint8 (H, W, C) with one channel or three."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _named(grid: Image.Image, labels: Sequence[str], height: int, apart: int) -> Image.Image:
    """Names to the left of rows of a height, which lie so many pixels apart."""
    font = ImageFont.load_default(LETTERS)
    names = [name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…" for name in labels]
    margin = math.ceil(max((font.getlength(name) for name in names), default=0)) + LETTERS
    named = Image.new(grid.mode, (margin + grid.width, max(grid.height, LETTERS)), "white")
    named.paste(grid, (margin, 0))
    pen = ImageDraw.Draw(named)
    for row, name in enumerate(names):
        place = (margin - LETTERS // 2, row * apart + height / 2)
        pen.text(place, name, fill="black", font=font, anchor="rm")
    return named


def _shrunk(pixels: np.ndarray, side: int) -> np.ndarray:
    picture = as_picture(pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(picture.height, picture.width, -1)
