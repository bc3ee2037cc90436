"""`data.source`: what it names, opened and split.

A source is a function `(config, rest) -> [all images]`, or `[train, test]` where the data has a
split of its own, registered under its name; `rest` is what follows `NAME:`. One of your own:

    from egc.data import sets_of_arrays
    from egc.registry import sources

    @sources.register("shapes")
    def shapes(config, rest):
        images, labels = ...  # uint8 (N, H, W, C), and 0.. (N,)
        return sets_of_arrays("shapes", [(images, labels)], ["circle", "square"], config)

`@described(...)` below the first decorator says more: the forms it has, and what is known of its
images without opening it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from egc.config import DataConfig
from egc.config.parse import build, plain, set_key
from egc.data.imageset import SPLIT_SEED, ImageSet, Splits, balanced, hold_out, keep_labels
from egc.data.streamed import StreamedSet
from egc.errors import ConfigError, DataError, suggest
from egc.registry import sources

Opener = TypeVar("Opener", bound=Callable[..., Any])


class Description(NamedTuple):
    """What is known of a source's images without having them; None: not before they are seen."""

    image_size: int | None = None
    channels: int | None = None
    classes: Sequence[str] = ()
    """empty: the images have no labels"""


def described(forms: tuple[str, ...] = ("",), **known: Any) -> Callable[[Opener], Opener]:
    """A decorator for the function that opens a source.

    Args:
        forms: what may follow the source's name: nothing (""), ":PATH", or another word.
        known: what its images always are, as in `Description`.
    """

    def add(opener: Opener) -> Opener:
        vars(opener).update(forms=forms, description=Description(**known) if known else None)
        return opener

    return add


def forms_of(opener: Callable[..., Any]) -> tuple[str, ...]:
    """What may follow the name of a source; nothing, unless it says otherwise."""
    return getattr(opener, "forms", ("",))


def source_forms() -> list[str]:
    """All that `data.source` may be: bare names, then forms such as folder:PATH."""
    forms = [name + form for name in sources.names() for form in forms_of(sources[name])]
    return sorted(forms, key=lambda form: (":" in form, form))


def find_source(source: str) -> tuple[Callable[..., list[ImageSet]], Any]:
    """The function that opens a source, and what follows its name: None, text, or a Path."""
    name, colon, rest = source.partition(":")
    if name in sources:
        opener = sources[name]
        follows = [form for form in forms_of(opener) if form]
        if not colon and "" in forms_of(opener):
            return opener, None
        if rest and follows:
            return opener, Path(rest).expanduser() if ":PATH" in follows else rest
        if colon and follows:
            forms = " or ".join(name + form for form in follows)
            raise ConfigError(f"data.source = {source!r} names no set; say {forms}.")
    known = source_forms()
    hint = suggest(source, known, most=len(known))
    raise ConfigError(
        f"data.source = {source!r} is not a known source. {hint} One of your own is known once "
        "its module is imported (--import MODULE)."
    )


def describe(source: str) -> Description | None:
    """What is known of a `data.source` without opening it; None: nothing.

    Named sets know their classes and colours, and most their size. What the configuration asks
    for (`data.image_size`, `data.channels`, `data.labels`) still goes before it.
    """
    return getattr(find_source(source)[0], "description", None)


def open_source(config: DataConfig) -> Splits:
    """Open `data.source` and split it."""
    return split(open_parts(config), config)


def open_parts(config: DataConfig) -> list[ImageSet]:
    """[all images] or [train, test] of `data.source`; without labels if they are not wanted."""
    opener, rest = find_source(config.source)
    if config.streaming and not config.source.startswith("hub:"):
        raise ConfigError(
            f"data.streaming is for hub: sources only; set it to false for {config.source!r}."
        )
    few = config.labels_fraction < 1 or config.labels_list is not None
    if config.streaming and (few or config.skip_unreadable):
        raise ConfigError(
            "data.skip_unreadable needs images that can be looked at first, as do "
            "data.labels_fraction and data.labels_list; set data.streaming = false."
        )
    parts = opener(config, rest)
    given = parts if isinstance(parts, list | tuple) else [parts]
    if len(given) not in (1, 2) or not all(isinstance(part, ImageSet) for part in given):
        got = ", ".join(type(part).__name__ for part in given)
        raise DataError(
            f"The source {config.source!r} must give a list of one ImageSet (all images) or two "
            f"(train, test); it gave {got or 'an empty list'}."
        )
    return with_wanted_labels(list(given), config)


def with_wanted_labels(parts: list[ImageSet], config: DataConfig) -> list[ImageSet]:
    """The images without their labels, if these are not wanted."""
    if config.labels:
        return parts
    return [replace(part, labels=np.full_like(part.labels, -1), classes=[]) for part in parts]


def split(parts: list[ImageSet], config: DataConfig) -> Splits:
    """[all] or [train, test] -> train, validation and test, by the configured shares."""
    if isinstance(parts[0], StreamedSet):
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
    config = DataConfig(
        source or own.source,
        image_size=own.image_size,
        channels=own.channels,
        test=own.test,
        validation=own.validation,
    )
    return open_source(with_settings(config, settings))


def with_settings(config: DataConfig, settings: Iterable[str]) -> DataConfig:
    """A copy with settings such as `data.test=0.5`; those of other sections are refused."""
    table: dict[str, Any] = {"data": plain(config)}
    for setting in settings:
        set_key(table, setting)
        if len(table) > 1:
            raise ConfigError(f"Only data.KEY=VALUE can be set here; got {setting!r}.")
    changed: DataConfig = build(DataConfig, table["data"], "data.")
    return changed
