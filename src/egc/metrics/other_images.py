"""Images that a model should find strange: made from familiar ones, or of another source."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from egc.config import DataConfig
from egc.data.images import read_images
from egc.data.imageset import ImageSet
from egc.data.sources import open_parts, source_forms
from egc.errors import ConfigError, DataError, suggest
from egc.model import Model
from egc.registry import sources


def _noise(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, images.shape, dtype=np.uint8)


def _gaussian_noise(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With the mean and deviation that the pixels of all images have."""
    values = images.mean() + images.std() * rng.standard_normal(images.shape)
    return values.round().clip(0, 255).astype(np.uint8)


def _constant(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One colour an image."""
    colours = rng.integers(0, 256, (len(images), 1, 1, images.shape[-1]), dtype=np.uint8)
    return np.broadcast_to(colours, images.shape).copy()


def _upside_down(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turned by 180 degrees. Some look familiar then, such as a 0 or an 8, and should."""
    return images[:, ::-1, ::-1].copy()


def _shuffled(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The pixels of each image in random places: the right colours, no shapes."""
    count, height, width, channels = images.shape
    pixels = images.reshape(count, height * width, channels)
    order = np.argsort(rng.random((count, height * width)), axis=1)
    return np.take_along_axis(pixels, order[..., None], axis=1).reshape(images.shape)


MADE: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "noise": _noise,
    "gaussian-noise": _gaussian_noise,
    "constant": _constant,
    "upside-down": _upside_down,
    "shuffled": _shuffled,
}
"""name -> other images made from familiar ones"""


def other_images(model: Model, name: str, images: np.ndarray, seed: int) -> np.ndarray:
    """As many other images as familiar ones, as the model takes them."""
    if name in MADE:
        return MADE[name](images, np.random.default_rng(seed))
    if ":" not in name and name not in sources:
        known = [*MADE, *source_forms()]
        hint = suggest(name, known, most=len(known))
        raise ConfigError(f"There are no other images {name!r}. {hint}")
    size, channels = model.codec.image_size, model.codec.channels
    data = open_parts(DataConfig(name, image_size=size, channels=channels))[-1]
    return read_images(pick_images(model, data, len(images), seed), size, channels)


def pick_images(model: Model, data: ImageSet, count: int | None, seed: int) -> np.ndarray:
    """`count` images of a set, picked at random; latents become pictures again."""
    if len(data) == 0:
        raise DataError(f"{data.name} has no images; choose another source or split.")
    picked = np.random.default_rng(seed).permutation(len(data))[:count]
    images = data.images(np.sort(picked))
    if data.autoencoder is None:
        return images
    if model.codec.clip is not None:
        raise DataError(f"{data.name} has latents, but the model takes pictures; give those.")
    return model.codec.decode(model.codec.encode(images))
