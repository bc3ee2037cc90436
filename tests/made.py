"""Small images, as arrays and as encoded files."""

import io

import numpy as np
from PIL import Image


def pictures(count, size, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def encoded(pixels, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, lossless=True)
    return out.getvalue()
