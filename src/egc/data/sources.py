"""`data.source`: the names of data sets, and what each opens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from egc.config import DataConfig
from egc.config.parse import build, set_key
from egc.data.arrays import sets_of_arrays
from egc.data.cifar import open_cifar10, open_cifar100
from egc.data.folder import open_folder
from egc.data.hub import open_hub
from egc.data.idx import open_fashion_mnist, open_mnist
from egc.data.imagenet import open_celebahq, open_imagenet
from egc.data.imageset import SPLIT_SEED, ImageSet, Splits, balanced, hold_out, keep_labels
from egc.data.latents import open_latents
from egc.data.lsun import open_lsun_church
from egc.data.streamed import StreamedSet
from egc.errors import ConfigError, DataError, suggest


def open_digits(config: DataConfig) -> list[ImageSet]:
    """The 1,797 handwritten digits of 8x8 pixels that ship with the package."""
    with (
        resources.as_file(resources.files("egc") / "data" / "assets" / "digits.npz") as path,
        np.load(path) as arrays,
    ):
        parts = [(arrays["images"][..., None], arrays["labels"])]
        return sets_of_arrays("digits", parts, [str(digit) for digit in range(10)], config)


NAMED: dict[str, Callable[[DataConfig], list[ImageSet]]] = {
    "digits": open_digits,
    "cifar10": open_cifar10,
    "cifar100": open_cifar100,
    "mnist": open_mnist,
    "fashion-mnist": open_fashion_mnist,
    "imagenet": open_imagenet,
    "celebahq": open_celebahq,
    "lsun-church": open_lsun_church,
}
"""name -> function that gives [all images], or [train, test] for data with its own split"""

WITH_PATH: dict[str, Callable[[DataConfig, Path], list[ImageSet]]] = {
    "folder": lambda config, path: open_folder(path, config.image_size, config.channels),
    "imagenet": open_imagenet,
    "celebahq": open_celebahq,
    "lsun-church": open_lsun_church,
    "latents": lambda config, path: open_latents(path),
}
"""kind -> the same, for `KIND:PATH`"""

KINDS = (*(f"{kind}:PATH" for kind in WITH_PATH), "hub:NAME", "hub:NAME#SUBSET")
"""forms of sources that are not a bare name"""


def open_source(config: DataConfig) -> Splits:
    """Open `data.source` and split it."""
    return split(open_parts(config), config)


def open_parts(config: DataConfig) -> list[ImageSet]:
    """[all images] or [train, test] of `data.source`; without labels if they are not wanted."""
    kind, separator, rest = config.source.partition(":")
    if config.streaming and kind != "hub":
        raise ConfigError(
            f"data.streaming is for hub: sources only; set it to false for {config.source!r}."
        )
    if kind == "hub" and separator:
        parts = open_hub(config)
    elif kind in WITH_PATH and rest:
        parts = WITH_PATH[kind](config, Path(rest).expanduser())
    elif config.source in NAMED:
        parts = NAMED[config.source](config)
    else:
        known = [*NAMED, *KINDS]
        hint = suggest(config.source, known, most=len(known))
        raise ConfigError(f"data.source = {config.source!r} is not a known source. {hint}")
    return with_wanted_labels(parts, config)


def with_wanted_labels(parts: list[ImageSet], config: DataConfig) -> list[ImageSet]:
    """The images without their labels, if these are not wanted."""
    if config.labels:
        return parts
    return [replace(part, labels=np.full_like(part.labels, -1), classes=[]) for part in parts]


def split(parts: list[ImageSet], config: DataConfig) -> Splits:
    """[all] or [train, test] -> train, validation and test, by the configured shares."""
    if isinstance(parts[0], StreamedSet):
        if config.labels_fraction < 1 or config.labels_list is not None:
            raise ConfigError(
                "data.labels_fraction and data.labels_list need images that can be counted; set "
                "data.streaming = false."
            )
        # Nothing can be held out of a stream, so validation shares the test images.
        order = np.random.default_rng(SPLIT_SEED).permutation(len(parts[1]))
        return Splits(parts[0], parts[1].subset(order[::2]), parts[1].subset(order[1::2]))
    rest, test = parts if len(parts) == 2 else hold_out(parts[0], config.test)
    train, validation = hold_out(rest, config.validation)
    if len(train) == 0:
        raise DataError(f"{rest.name} has no images left to train on.")
    return Splits(_some_labels(train, config).with_twins(), validation, test)


def _some_labels(train: ImageSet, config: DataConfig) -> ImageSet:
    """The training images with as many of their labels as `config` wants."""
    if config.labels_list is not None:
        return keep_labels(train, _listed(train, Path(config.labels_list).expanduser()))
    if config.labels_fraction < 1 and train.classes:
        return keep_labels(train, balanced(train.labels, config.labels_fraction))
    return train


def _listed(train: ImageSet, path: Path) -> np.ndarray:
    """Positions of the images that a file lists by their number in the source."""
    try:
        wanted = {int(line) for line in path.read_text().split()}
    except FileNotFoundError:
        raise DataError(f"There is no list of labels {str(path)!r}.") from None
    except ValueError:
        raise DataError(
            f"{str(path)!r} is not a list of image numbers: whole numbers, one a line."
        ) from None
    kept = np.flatnonzero(np.isin(train.indices, list(wanted)) & (train.labels >= 0))
    if len(kept) == 0:
        raise DataError(
            f"{str(path)!r} lists none of the {len(train):,} training images of {train.name}."
        )
    return kept


def open_for(own: DataConfig, source: str | None = None, settings: Iterable[str] = ()) -> Splits:
    """The data of a model: what it was trained on, or another source in its size and colours.

    What has to be converted is converted, and said in one line.

    Args:
        own: `config.data` of the model, which knows the size and colours that it takes.
        settings: changes such as `"data.test=0.5"`.
    """
    kept = ("image_size", "channels", "test", "validation")
    table: dict[str, Any] = {"data": {"source": source or own.source}}
    table["data"] |= {name: value for name in kept if (value := getattr(own, name)) is not None}
    for setting in settings:
        set_key(table, setting)
    if extra := table.keys() - {"data"}:
        raise ConfigError(f"Only data.KEY=VALUE can be set here; got {min(extra)}.")
    return open_source(build(DataConfig, table["data"], "data."))
