"""What the guidance scale does: the same seeds at every scale, how varied and how apt they are.

Diversity is the mean distance between two samples, in pixels (root mean square, of 0..255) and in
the network's own last features. Agreement is the share that the network itself, told nothing,
takes for the class asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from egc.errors import ConfigError
from egc.model import Model
from egc.tasks.classify import predict_proba
from egc.tasks.features import features, mean_distance
from egc.tasks.sample import sample


class Row(NamedTuple):
    """The samples of one scale, measured."""

    scale: float
    pixel_diversity: float
    feature_diversity: float
    agreement: float


@dataclass(frozen=True)
class Sweep:
    label: int
    rows: list[Row]
    images: np.ndarray
    """uint8 (scales, N, H, W, C)"""


def sweep_guidance(
    model: Model,
    label: str | int,
    scales: Sequence[float],
    count: int = 16,
    *,
    steps: int | None = None,
    sampler: str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Sweep:
    """Sample a class at several guidance scales; see `egc.EGC.sweep_guidance`."""
    if not scales:
        raise ConfigError("There is no guidance scale to try; say some, such as 0,1,2,6,20,200.")
    if count < 2:
        raise ConfigError(f"Diversity needs at least 2 images a scale; got {count}.")
    index = model.label_index(label)
    rows, images = [], []
    for scale in scales:
        drawn = sample(
            model,
            index,
            count,
            guidance=scale,
            steps=steps,
            sampler=sampler,
            seed=seed,
            progress=progress,
        ).images
        images.append(drawn)
        pixels = drawn.reshape(count, -1).astype(np.float64)
        rows.append(
            Row(
                scale=float(scale),
                pixel_diversity=mean_distance(pixels) / pixels.shape[1] ** 0.5,
                feature_diversity=mean_distance(features(model, drawn)),
                agreement=float((predict_proba(model, drawn).argmax(axis=1) == index).mean()),
            )
        )
    return Sweep(index, rows, np.stack(images))
