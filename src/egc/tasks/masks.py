"""Masks of inpainting: shapes by name, arrays and pictures; white, or true, is to be filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from egc.data.images import open_image
from egc.errors import ConfigError, DataError, suggest

SHAPES = ("center", "left", "right", "top", "bottom", "random-strokes")


def make_mask(shape: str, side: int, seed: int = 0) -> np.ndarray:
    """A mask by name, bool (side, side); true is to be filled."""
    mask = np.zeros((side, side), dtype=bool)
    half, quarter = side // 2, side // 4
    if shape == "center":
        mask[quarter : side - quarter, quarter : side - quarter] = True
    elif shape in ("left", "right"):
        mask[:, slice(half) if shape == "left" else slice(side - half, None)] = True
    elif shape in ("top", "bottom"):
        mask[slice(half) if shape == "top" else slice(side - half, None)] = True
    elif shape == "random-strokes":
        mask = _strokes(side, seed)
    else:
        raise ConfigError(f"There is no mask {shape!r}. {suggest(shape, SHAPES)}")
    return mask


def _strokes(side: int, seed: int) -> np.ndarray:
    """A few straight strokes of a brush, over about a third of the image."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side]
    mask = np.zeros((side, side), dtype=bool)
    while mask.mean() < 0.3:
        (y0, x0), (y1, x1) = rng.uniform(0, side, (2, 2))
        along = np.array([y1 - y0, x1 - x0])
        share = ((rows - y0) * along[0] + (columns - x0) * along[1]) / max(along @ along, 1e-9)
        share = share.clip(0, 1)
        distance = np.hypot(rows - y0 - share * along[0], columns - x0 - share * along[1])
        mask |= distance <= max(0.5, side / 16)
    return mask


def read_mask(mask: Any, side: int, seed: int = 0) -> np.ndarray:
    """A shape's name, an array or a picture; never resized, since its size is its meaning."""
    if isinstance(mask, str) and mask in SHAPES:
        return make_mask(mask, side, seed)
    if isinstance(mask, np.ndarray):
        return check_mask(mask, side)
    if not isinstance(mask, str | Path | Image.Image):
        raise DataError(
            f"A mask is a shape ({', '.join(SHAPES)}), a path, a picture or an array; "
            f"got {type(mask).__name__}."
        )
    picture = mask if isinstance(mask, Image.Image) else open_image(Path(mask))
    return check_mask(np.asarray(picture.convert("L")), side)


def check_mask(mask: np.ndarray, side: int) -> np.ndarray:
    """bool (side, side), refused where there is nothing to fill or nothing to fill from."""
    mask = np.asarray(mask)
    if mask.ndim == 3:
        mask = mask.max(axis=2)
    if mask.shape != (side, side):
        raise DataError(
            f"The mask is {'x'.join(map(str, mask.shape))}, but the model's images are "
            f"{side}x{side}; both must have the same size."
        )
    mask = mask > (127 if mask.dtype == np.uint8 and mask.max() > 1 else 0)
    if not mask.any():
        raise DataError("The mask is all black: there is nothing to fill; white is to be filled.")
    if mask.all():
        raise DataError(
            "The mask is all white: nothing of the image is kept; use `sample` to draw freely."
        )
    return mask
