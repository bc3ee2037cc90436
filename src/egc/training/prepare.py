"""What a run needs before it starts: the data, and a configuration that knows all about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from egc.codec import MEASURED_IMAGES, measure_scale, settle_codec
from egc.config import AugmentConfig, Config
from egc.data import ImageSet, Splits, open_source
from egc.data.sources import split, with_wanted_labels
from egc.errors import ConfigError, DataError
from egc.model import objective_of


def prepare(
    data: Any,
    preset: str | Path | Config,
    settings: Sequence[str] = (),
    before: Config | None = None,
) -> tuple[Config, Splits]:
    """The configuration with what the data and the autoencoder say filled in, and the data.

    What a run that is resumed had measured `before` is not measured again.
    """
    config = preset if isinstance(preset, Config) else Config.load(preset)
    if isinstance(data, str):
        config = config.replace(data={"source": data})
    config = config.with_settings(settings)
    objective = objective_of(config)
    if not objective.uses_labels:
        streams = {"clean_stream": False, "noisy_stream": False}
        config = config.replace(data={"labels": False}, objective=streams)
    if data is None or isinstance(data, str):
        splits = open_source(config.data)
    else:
        splits = split(with_wanted_labels([_as_image_set(data)], config.data), config.data)
        config = config.replace(data={"source": splits.train.name})
    if objective.needs_labels and not splits.train.classes:
        raise ConfigError(
            f'objective.kind = "{config.objective.kind}" needs labels, and {splits.train.name} has none; '
            'take "egc-unsupervised" or "ddpm".'
        )
    shape = {"image_size": splits.train.image_size, "channels": splits.train.channels}
    config = settle_codec(_fit_latents(config.replace(data=shape), splits.train))
    if before is not None:
        if config.objective.gradient == "auto":
            config = config.replace(objective={"gradient": before.objective.gradient})
        if config.codec.scale is None and before.codec.scale is not None:
            config = config.replace(codec={"scale": before.codec.scale})
    if config.codec.kind == "latent" and config.codec.scale is None:
        images, _ = splits.train.take(0, MEASURED_IMAGES, seed=0)
        config = config.replace(codec={"scale": measure_scale(config, images)})
    return config, splits


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
