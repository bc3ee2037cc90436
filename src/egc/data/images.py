"""Images as users hand them over, made into what a model takes: uint8, square, grey or colour.

What can be converted naturally is converted, and said so in one line of the `egc` logger.
"""

from __future__ import annotations

import io
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from egc.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif")
MAX_NAMED = 10
"""unreadable images that a message names; it counts the others"""

log = logging.getLogger("egc")


class UnreadableError(DataError):
    """Images that are there and cannot be read: `reasons` has the name of each, and why."""

    def __init__(self, reasons: list[tuple[str, str]], advice: str = ""):
        self.reasons = reasons
        if len(reasons) == 1:
            words = "The image {!r} cannot be read: {}.".format(*reasons[0])
        else:
            words = f"{len(reasons):,} images cannot be read: {self.names()}."
        super().__init__(f"{words} {advice}".rstrip())

    @classmethod
    def of(cls, errors: Iterable[UnreadableError], advice: str = "") -> UnreadableError:
        """Several as one."""
        return cls([reason for error in errors for reason in error.reasons], advice)

    def names(self) -> str:
        named = [f"{name!r} ({why})" for name, why in self.reasons[:MAX_NAMED]]
        more = len(self.reasons) - len(named)
        return "; ".join(named) + (f"; and {more:,} more" if more else "")


def read_images(images: Any, image_size: int, channels: int) -> np.ndarray:
    """A path, PIL image, uint8 array, or a list of them -> uint8 (N, S, S, C).

    A path to a directory stands for all images in it. An array is (H, W), (H, W, C) or
    (N, H, W, C). If some cannot be read, one `UnreadableError` names all of them.
    """
    return read_readable_images(images, image_size, channels, skip=False)[0]


def read_readable_images(
    images: Any, image_size: int, channels: int, skip: bool = True
) -> tuple[np.ndarray, list[int]]:
    """The same without the images that cannot be read, of which a warning says how many.

    Gives uint8 (n, S, S, C), and the positions of these n among all the images.
    """
    pixels, notes, kept, unreadable = [], [], [], []
    for position, found in enumerate(_flat(images)):
        try:
            picture = open_image(found) if isinstance(found, Path) else found
        except UnreadableError as error:
            unreadable.append(error)
            continue
        fitted, done = fit(picture, image_size, channels)
        pixels.append(fitted)
        notes.append(done)
        kept.append(position)
    if unreadable and not (skip and kept):
        raise UnreadableError.of(unreadable)
    if not kept:
        raise DataError("There is no image to look at.")
    report_conversions(notes)
    report_skipped(unreadable, len(kept) + len(unreadable))
    return np.stack(pixels), kept


def image_files(folder: Path) -> list[Path]:
    """All images below a folder, sorted, hidden ones left out."""
    return [Path(path) for path in image_paths(folder)]


def image_paths(folder: str | Path) -> list[str]:
    """The same as plain strings, for folders of millions."""
    found: list[str] = []
    with os.scandir(folder) as entries:
        # By name, going down where a folder's turn comes: the order of whole paths.
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                found += image_paths(entry.path)
            elif entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                found.append(entry.path)
    return found


def open_image(source: str | Path | bytes, name: str = "") -> Image.Image:
    """Decode a file, or the bytes of one called `name`, whole: a truncated one is named here."""
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
            picture.load()
            return ImageOps.exif_transpose(picture)
    except FileNotFoundError:
        raise DataError(f"There is no image {str(source)!r}.") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UnreadableError([(name or str(source), str(error))]) from None


def fit(picture: Image.Image, image_size: int, channels: int) -> tuple[np.ndarray, list[str]]:
    """One picture in the size and colours asked for, (S, S, C), and notes on what was done."""
    mode = "L" if channels == 1 else "RGB"
    notes = []
    if picture.mode != mode:
        notes.append(f"{picture.mode} to {'grey' if channels == 1 else 'colour'}")
        picture = _convert(picture, mode)
    if picture.size != (image_size, image_size):
        width, height = picture.size
        crop = "" if width == height else "cut to a centred square and "
        notes.append(f"{crop}resized to {image_size}x{image_size}")
        picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.LANCZOS)
    pixels = np.asarray(picture, dtype=np.uint8).reshape(image_size, image_size, channels)
    return pixels, notes


def report_conversions(notes: Sequence[list[str]]) -> None:
    """Say in one line what was done to how many of the images."""
    counts = Counter(note for each in notes for note in each)
    if counts:
        done = ", ".join(f"{what} ({n} of {len(notes)})" for what, n in counts.items())
        log.info("Converted images: %s.", done)


def report_skipped(unreadable: Sequence[UnreadableError], count: int) -> None:
    """Say in one line how many of the images are left out, and which."""
    if unreadable:
        left_out = f"{len(unreadable):,} of {count:,} images"
        names = UnreadableError.of(unreadable).names()
        log.warning("Going on without %s, which cannot be read: %s.", left_out, names)


def _convert(picture: Image.Image, mode: str) -> Image.Image:
    if picture.mode.startswith("I"):
        # PIL would cut 16-bit values off at 255 instead of scaling them.
        values = np.asarray(picture).astype(np.uint32) >> 8
        return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert(mode)
    if "A" in picture.mode or "transparency" in picture.info:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return picture.convert(mode)


def _flat(images: Any) -> Iterable[Image.Image | Path]:
    if isinstance(images, Image.Image):
        yield images
    elif isinstance(images, str | Path) and not Path(images).is_dir():
        yield Path(images)
    elif isinstance(images, str | Path):
        files = image_files(Path(images))
        if not files:
            raise DataError(f"There are no images in {str(images)!r}.")
        yield from files
    elif isinstance(images, np.ndarray):
        yield from map(picture_of, _checked(images))
    elif isinstance(images, list | tuple):
        for item in images:
            yield from _flat(item)
    else:
        raise DataError(
            "An image is a path, a PIL image or a uint8 array (or a list of them); "
            f"got {type(images).__name__}."
        )


def picture_of(pixels: np.ndarray) -> Image.Image:
    """uint8 (H, W, C) as PIL has it."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _checked(array: np.ndarray) -> np.ndarray:
    """uint8 (N, H, W, C) of any array of images."""
    if array.dtype != np.uint8:
        raise DataError(
            f"An array of images is uint8 with values 0 to 255; got {array.dtype}. "
            "Scale it and call .astype('uint8') first."
        )
    array = array[..., None] if array.ndim == 2 else array
    array = array[None] if array.ndim == 3 else array
    if array.ndim != 4 or array.shape[-1] not in (1, 3, 4):
        raise DataError(
            "An array of images is (H, W), (H, W, C) or (N, H, W, C) with C = 1, 3 or 4; "
            f"got shape {array.shape}."
        )
    return array
