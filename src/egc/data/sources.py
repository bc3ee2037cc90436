"""`data.source`: the names of data sets, and what each opens."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np

from egc.config import DataConfig
from egc.data.folder import open_folder
from egc.data.imageset import ImageSet, Splits, hold_out
from egc.errors import ConfigError, DataError, suggest


def open_digits(config: DataConfig) -> list[ImageSet]:
    """The 1,797 handwritten digits of 8x8 pixels that ship with the package."""
    if config.image_size not in (None, 8) or config.channels not in (None, 1):
        raise ConfigError("The digits are 8x8 and grey: leave out data.image_size and channels.")
    with (
        resources.as_file(resources.files("egc") / "data" / "assets" / "digits.npz") as path,
        np.load(path) as arrays,
    ):
        return [ImageSet.from_arrays(arrays["images"], arrays["labels"], name="digits")]


NAMED = {"digits": open_digits}
"""name -> function that gives [all images], or [train, test] for data with its own split"""


def open_source(config: DataConfig) -> Splits:
    """Open `data.source` and split it."""
    kind, separator, rest = config.source.partition(":")
    if kind == "folder" and separator:
        parts = open_folder(Path(rest).expanduser(), config.image_size, config.channels)
    elif config.source in NAMED:
        parts = NAMED[config.source](config)
    else:
        hint = suggest(config.source, [*NAMED, "folder:PATH"])
        raise ConfigError(f"data.source = {config.source!r} is not a known source. {hint}")
    return split(parts, config)


def split(parts: list[ImageSet], config: DataConfig) -> Splits:
    """[all] or [train, test] -> train, validation and test, by the configured shares."""
    rest, test = parts if len(parts) == 2 else hold_out(parts[0], config.test)
    train, validation = hold_out(rest, config.validation)
    if len(train) == 0:
        raise DataError(f"{rest.name} has no images left to train on.")
    return Splits(train, validation, test)
