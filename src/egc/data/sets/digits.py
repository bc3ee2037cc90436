"""The handwritten digits that ship with the package."""

from __future__ import annotations

import io

import numpy as np

from egc.config import DataConfig
from egc.data.files import asset
from egc.data.imageset import ImageSet
from egc.data.reader import sets_of_arrays
from egc.data.sources import described
from egc.registry import sources

CLASSES = [str(digit) for digit in range(10)]


@sources.register("digits")
@described(image_size=8, channels=1, classes=CLASSES)
def open_digits(config: DataConfig, rest: None = None) -> list[ImageSet]:
    """1,797 handwritten digits of 8x8 pixels, grey, which ship with the package; [all]."""
    arrays = np.load(io.BytesIO(asset("digits.npz")))
    return sets_of_arrays("digits", [(arrays["images"], arrays["labels"])], CLASSES, config)
