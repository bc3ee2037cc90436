"""What the guidance scale does: the same seeds at every scale, how varied and how apt they are.

Diversity is the mean distance between two samples, in pixels (root mean square, of 0..255) and in
the network's own last features. Agreement is the share that the network itself, without the
label, takes for the class asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from egc.config import SampleConfig
from egc.config.parse import build
from egc.errors import ConfigError
from egc.model import Model
from egc.report.figures import canvas, literal, show_images
from egc.tasks.predict import features, predict_proba
from egc.tasks.sample import check_integer, sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Row(NamedTuple):
    """The samples of one scale, measured."""

    scale: float
    pixel_diversity: float
    feature_diversity: float
    agreement: float


@dataclass(frozen=True)
class Sweep:
    label: str
    rows: list[Row]
    images: np.ndarray
    """uint8 (scales, N, H, W, C)"""

    def picture(self) -> Figure:
        """A row of samples a scale, with what was measured on it."""
        count = len(self.rows)
        figure = canvas(9, 0.95 * count + 0.4)
        axes = np.atleast_1d(figure.subplots(count, 1))
        for axis, row, images in zip(axes, self.rows, self.images, strict=True):
            show_images(axis, images)
            title = (
                f"guidance {row.scale:g}   diversity {row.pixel_diversity:.0f} (pixels) "
                f"{row.feature_diversity:.2f} (features)   {row.agreement:.0%} taken for "
            )
            axis.set_title(title + literal(self.label), fontsize=8, loc="left")
        return figure


def sweep_guidance(
    model: Model,
    label: str | int,
    scales: Sequence[float],
    count: int = 16,
    *,
    sampling: SampleConfig,
    seed: int = 0,
    progress: bool = True,
) -> Sweep:
    """Sample a class at several guidance scales; see `egc.EGC.sweep_guidance`."""
    if not len(scales):
        raise ConfigError("There is no guidance scale to try; say some, such as 0 1 2 6 20 200.")
    count = check_integer(count, "The number of images a scale, for their diversity,", 2)
    index = model.label_index(label)
    rows, images = [], []
    for scale in scales:
        how: SampleConfig = build(SampleConfig, {**vars(sampling), "guidance": scale})
        found = sample(model, index, count, sampling=how, seed=seed, progress=progress).images
        images.append(found)
        pixels = found.reshape(count, -1).astype(np.float64)
        rows.append(
            Row(
                scale=float(scale),
                pixel_diversity=mean_distance(pixels) / pixels.shape[1] ** 0.5,
                feature_diversity=mean_distance(features(model, found)),
                agreement=float((predict_proba(model, found).argmax(axis=1) == index).mean()),
            )
        )
    return Sweep(model.classes[index], rows, np.stack(images))


def mean_distance(points: np.ndarray) -> float:
    """The mean Euclidean distance between two different points of (N, width)."""
    if len(points) < 2:
        return 0.0
    flat = torch.as_tensor(points.reshape(len(points), -1), dtype=torch.float64)
    return float(torch.nn.functional.pdist(flat).mean())
