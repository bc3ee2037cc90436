"""Images that are put before a model: whether they fit, asked before long work starts, which of
them are used, and how processes share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from egc.data.imageset import ImageSet
from egc.distributed import gather, share
from egc.errors import ConfigError, DataError, ModelError
from egc.model import Model
from egc.report.progress import progress_line

NAMED_COLOURS = {1: "grey", 3: "colour"}
AT_ONCE = 256
"""images that are worked on together: large sets do not fit into memory"""


def fitting(model: Model, data: ImageSet, *, labels: bool = True) -> None:
    """Refuse images that the model cannot take, in one sentence that names the fix.

    Args:
        labels: whether the labels are needed too, as they are to count right answers.
    """
    if len(data) == 0:
        raise DataError(f"{data.name} has no images; choose another source or split.")
    if data.autoencoder is not None:
        raise DataError(
            f"{data.name} has latents, not pictures; give the images they were encoded from."
        )
    codec = model.codec
    if data.channels != codec.channels:
        colours = [NAMED_COLOURS.get(n, f"{n}-channel") for n in (data.channels, codec.channels)]
        raise DataError(
            f"{data.name} has {colours[0]} images, but the model takes {colours[1]} ones; "
            f"open the data with data.channels = {codec.channels}, or choose other data."
        )
    if data.image_size != codec.image_size:
        raise DataError(
            f"{data.name} has images of {data.image_size}x{data.image_size} pixels, but the model "
            f"takes {codec.image_size}x{codec.image_size}; open the data with "
            f"data.image_size = {codec.image_size}, or choose other data."
        )
    if not labels:
        return
    if not model.classes:
        raise ModelError("This model was trained without labels, so it cannot classify.")
    labelled(data)
    if len(data.classes) != len(model.classes):
        raise DataError(
            f"{data.name} has {len(data.classes)} classes, but the model has "
            f"{len(model.classes)}; choose data of the model's own classes."
        )
    for index, (theirs, ours) in enumerate(zip(data.classes, model.classes, strict=True)):
        if theirs != ours:
            raise DataError(
                f"Class {index} is {theirs!r} in {data.name}, but {ours!r} in the model; "
                "name and order the classes of the data as the model does."
            )


def labelled(data: ImageSet, count: int | None = None) -> np.ndarray:
    """Positions of labelled images: all, or `count` of them spread evenly over the set."""
    if count is not None and count < 1:
        raise ConfigError(f"The number of images must be at least 1; got {count}.")
    known = np.flatnonzero(data.labels >= 0)
    if not len(known):
        raise DataError(
            f"{data.name} has no labelled images; choose data with labels, such as a folder "
            "with a directory for each class."
        )
    if count is None or count >= len(known):
        return known
    return known[np.linspace(0, len(known) - 1, count).round().astype(int)]


def in_shares(
    positions: Iterable[int],
    work: Callable[[np.ndarray], Iterable[Any]],
    *,
    at_once: int = AT_ONCE,
    what: str | None = None,
) -> list[Any]:
    """What `work` finds for each position, given some at a time, in their order.

    Of several processes, each takes its share. `what` is shown beside how far it is.
    """
    mine = np.array(share(list(positions)), dtype=int)
    found: list[Any] = []
    with progress_line(what or "", len(mine), show=what is not None) as line:
        for start in range(0, len(mine), at_once):
            part = mine[start : start + at_once]
            found.extend(work(part))
            line.advance(len(part))
    return gather(found)
