"""What the verbs that use a model are given: classes, files to write, and pictures to work on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from egc.cli.base import check_images
from egc.errors import ConfigError, DataError, EGCError, ModelError, suggest

if TYPE_CHECKING:
    import numpy as np

    from egc.api import EGC

log = logging.getLogger("egc")


def check_labels(model: str, labels: Iterable[str | None]) -> None:
    """Refuse a class that the model does not have, before PyTorch is imported."""
    from egc.hub import find_model

    try:
        classes = json.loads((find_model(model) / "config.json").read_text())["classes"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # opening the model will say what is wrong with it
    for label in labels:
        known = label is None or label in classes
        if classes and not known and not (str(label).isdigit() and int(str(label)) < len(classes)):
            raise ModelError(f"This model has no class {label!r}. {suggest(str(label), classes)}")


def listed_images(given: Iterable[str]) -> list[Path]:
    """Image files that are there; those of directories one by one."""
    from egc.data.images import image_files

    found: list[Path] = []
    for path in check_images(given):
        files = image_files(path) if path.is_dir() else [path]
        if not files:
            raise DataError(f"There is no image in {str(path)!r}.")
        found += files
    return found


def check_samples_file(out: str) -> None:
    """Refuse a name that samples cannot be saved under."""
    suffix = Path(out).suffix.lower()
    if suffix in ("", ".png", ".npz"):
        return
    from PIL import Image

    if suffix not in Image.registered_extensions():
        raise ConfigError(f"Samples are saved as .png, .npz or a directory; got {out!r}.")


def check_at_least(value: int | None, low: int, flag: str) -> None:
    if value is not None and value < low:
        raise ConfigError(f"{flag} must be at least {low}; got {value}.")


def some_pictures(model: EGC, source: str | None, count: int, seed: int) -> np.ndarray:
    """Test images of the data asked for, else of the model's own data, else its own samples.

    One of each class first, as far as they go; uint8 (N, H, W, C).
    """
    import numpy as np

    from egc.data.sources import open_for

    try:
        test = open_for(model.config.data, source).test
        if not len(test):
            raise DataError(f"{test.name} has no test images.")
        first = np.unique(test.labels, return_index=True)[1].tolist()
        images = test.images(np.array(list(dict.fromkeys([*first, *range(len(test))]))[:count]))
    except EGCError as error:
        if source is not None:
            raise
        log.warning("Using samples, not real images: %s", error)
        return model.sample(count=count, seed=seed).images
    return images if images.dtype == np.uint8 else model.codec.decode(model.codec.encode(images))
