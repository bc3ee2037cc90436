"""What a run needs before it starts: the data, and a configuration that knows all about it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from egc.codec import MEASURED_IMAGES, at_once, measure_scale, settle_codec
from egc.config import AugmentConfig, Config
from egc.data import ImageSet, Splits, open_source
from egc.data.sources import split, with_wanted_labels
from egc.errors import ConfigError, DataError
from egc.model import Model, objective_of
from egc.training.batches import augmented

log = logging.getLogger("egc")

FOUND_OUT = {
    "data": ("image_size", "channels"),
    "codec": ("channels", "factor", "scale"),
    "train": ("start_from",),
}
"""keys that a run fills in where they are left open"""


ANCHOR_IMAGES, ANCHOR_VALUES = 8192, 2**27
"""that mean and spectrum are measured on, at most"""


def configure(
    data: Any,
    preset: str | Path | Config,
    settings: Sequence[str] = (),
    start_from: str | Path | None = None,
) -> tuple[Config, ImageSet | None]:
    """The configuration that is asked for, and the images if they are given; opens nothing."""
    config = preset if isinstance(preset, Config) else Config.load(preset)
    given = None if data is None or isinstance(data, str) else _as_image_set(data)
    if data is not None:
        config = config.replace(data={"source": data if given is None else given.name})
    config = config.with_settings(settings)
    if start_from is not None:
        config = config.replace(train={"start_from": str(start_from)})
    if not objective_of(config).uses_labels:
        streams = {"clean_stream": False, "noisy_stream": False}
        config = config.replace(data={"labels": False}, objective=streams)
    return config, given


def remember(config: Config, before: Config) -> Config:
    """The configuration with what an earlier start of the same run had found out filled in."""
    if config.data.source.startswith("latents:"):
        config = config.replace(codec={"autoencoder": before.codec.autoencoder})
    for section, names in FOUND_OUT.items():
        mine, earlier = getattr(config, section), getattr(before, section)
        found = {name: getattr(earlier, name) for name in names if getattr(mine, name) is None}
        config = config.replace(**{section: {k: v for k, v in found.items() if v is not None}})
    first = before.train.start_from
    if first is not None and first != config.train.start_from:
        log.info("The run goes on with weights of its own; it began with those of %s.", first)
        config = config.replace(train={"start_from": first})
    return config


def prepare(
    data: Any, preset: str | Path | Config, settings: Sequence[str] = ()
) -> tuple[Config, Splits]:
    """The configuration with what the data and the autoencoder say filled in, and the data."""
    config, given = configure(data, preset, settings)
    if given is None:
        splits = open_source(config.data)
    else:
        splits = split(with_wanted_labels([given], config.data), config.data)
    if objective_of(config).needs_labels and not splits.train.classes:
        raise ConfigError(
            f'objective.kind = "{config.objective.kind}" needs labels, and {splits.train.name} '
            'has none; take "egc-unsupervised" or "ddpm".'
        )
    shape = {"image_size": splits.train.image_size, "channels": splits.train.channels}
    config = settle_codec(_fit_latents(config.replace(data=shape), splits.train))
    if config.codec.kind == "latent" and config.codec.scale is None:
        images, _ = splits.train.take(0, MEASURED_IMAGES, seed=0)
        config = config.replace(codec={"scale": measure_scale(config, images)})
    return config, splits


def measure_anchor(model: Model, train: ImageSet) -> None:
    """Mean and spectrum of the training images, for a network that starts from them."""
    anchor = getattr(model.net, "anchor", None)
    if anchor is None:
        return
    data, codec = model.config.data, model.codec
    count = min(ANCHOR_IMAGES, max(ANCHOR_VALUES // math.prod(codec.shape), 1))
    images, _ = train.take(0, count, seed=0)
    shown = augmented(torch.as_tensor(images), data.augment, torch.Generator().manual_seed(0))
    anchor.measure(codec.encode(part) for part in shown.split(at_once(codec.image_size)))


def _fit_latents(config: Config, train: ImageSet) -> Config:
    """Stored latents know their autoencoder, and bear no more changes to pixels."""
    if train.autoencoder is None:
        return config
    if config.codec.kind != "latent":
        raise ConfigError(
            f'{train.name} needs codec.kind = "latent"; got {config.codec.kind!r}. '
            "Train with the preset they were encoded for."
        )
    streams = {"augment": config.data.augment}
    if config.data.clean_source is None:
        streams["augment_clean"] = config.data.augment_clean
    for stream, wanted in streams.items():
        mirrored = AugmentConfig(flip=wanted.flip and train.mirrored)
        if wanted != mirrored:
            key = next(k for k, v in vars(wanted).items() if v != getattr(mirrored, k))
            way = "encode them with --flip" if key == "flip" else f"set data.{stream}.{key} = 0"
            raise ConfigError(
                f"data.{stream}.{key} changes pixels, but {train.name} is encoded already; {way}."
            )
    return config.replace(codec={"autoencoder": train.autoencoder})


def open_clean(config: Config, train: ImageSet) -> ImageSet | None:
    """The images of the clean classification stream, where they are not those of the other.

    Where only some images have labels, the clean stream takes those alone, again and again.
    """
    if not config.objective.clean_stream:
        return None
    if config.data.clean_source is None:
        labelled = np.flatnonzero(train.labels >= 0)
        return train.subset(labelled) if 0 < len(labelled) < len(train) else None
    streaming = config.data.streaming and config.data.clean_source.startswith("hub:")
    changes = {"source": config.data.clean_source, "streaming": streaming}
    return open_source(config.replace(data=changes).data).train


def _as_image_set(data: Any) -> ImageSet:
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return ImageSet.from_arrays(*data)
    if isinstance(data, np.ndarray):
        return ImageSet.from_arrays(data)
    raise DataError(
        "Data is a source such as 'folder:photos', (images, labels), or an array of images; "
        f"got {type(data).__name__}."
    )
