"""Sets that come as arrays of one size, in the size and colours asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from PIL import Image

from egc.config import DataConfig
from egc.data.images import fit, report_conversions
from egc.data.imageset import ImageSet
from egc.data.reader import Reader

Arrays = tuple[np.ndarray, np.ndarray]
"""uint8 images (N, H, W, C) and labels (N,)"""


def sets_of_arrays(
    name: str, parts: Sequence[Arrays], classes: Sequence[str], config: DataConfig
) -> list[ImageSet]:
    """One set a part; images of another size than `config` asks for are resized as needed."""
    sets = [ImageSet.from_arrays(*part, classes=classes, name=name) for part in parts]
    image_size = config.image_size or sets[0].image_size
    channels = config.channels or sets[0].channels
    if (image_size, channels) == (sets[0].image_size, sets[0].channels):
        return sets
    # All images are alike, so the first one says what happens to each.
    _, notes = fit(_picture(parts[0][0], 0), image_size, channels)
    report_conversions([notes] * sum(map(len, sets)))
    return [
        replace(
            data,
            # Resizing is quick and the result may be many times larger: nothing is kept.
            read=Reader(partial(_picture, images), image_size, channels),
            image_size=image_size,
            channels=channels,
        )
        for data, (images, _) in zip(sets, parts, strict=True)
    ]


def _picture(images: np.ndarray, index: int) -> Image.Image:
    pixels = images[index]
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
