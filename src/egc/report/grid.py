"""Many small images as one picture."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

GAP = 128
"""grey between the images, which white strokes and dark grounds both stand out from"""


def image_grid(
    images: np.ndarray, columns: int | None = None, cell: int = 64, largest: int | None = None
) -> Image.Image:
    """uint8 (N, H, W, C) -> one picture, row by row, each image enlarged to about `cell` pixels.

    Enlarging is by whole factors and without smoothing, so that every pixel can be seen. Images
    with a side above `largest` are shrunk to it.
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
    return Image.fromarray(canvas[..., 0] if channels == 1 else canvas)


def _shrunk(pixels: np.ndarray, side: int) -> np.ndarray:
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(picture.height, picture.width, -1)
