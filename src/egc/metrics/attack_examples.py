"""Images before and after an attack, to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from egc.data.imageset import ImageSet
from egc.metrics.attacks import judge, mixed
from egc.metrics.fitting import fitting, labelled
from egc.metrics.trial import Strength, images_at
from egc.report.figures import COLOURS, INK, canvas, literal
from egc.tasks.predict import Predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Examples:
    """Images, what an attack made of them, and what the model took that for."""

    images: np.ndarray
    """(N, H, W, C), floats in 0..1"""
    attacked: np.ndarray
    """of the same shape"""
    labels: np.ndarray
    taken_for: np.ndarray
    """class indices; (N,)"""
    classes: list[str]
    attack: str
    epsilon: float


def attack_examples(
    asked: Predictor,
    data: ImageSet,
    *,
    epsilon: float,
    strength: Strength | None = None,
    attack: str = "pgd",
    count: int = 8,
    seed: int = 0,
) -> Examples:
    """Attack some images, with the seeds that a `Trial` of all images gives them."""
    fitting(asked.model, data)
    positions = labelled(data, count)
    pixels, labels = images_at(asked.model, data, positions)
    seeds = mixed(positions.tolist(), seed)
    moved = (strength or Strength()).attack(attack, epsilon, asked, pixels, labels, seeds)
    answers = judge(asked, moved, seeds).cpu().numpy()
    before, after = (x.permute(0, 2, 3, 1).cpu().numpy() for x in (pixels, moved))
    classes = asked.model.classes
    return Examples(before, after, data.labels[positions], answers, classes, attack, epsilon)


def examples_figure(examples: Examples) -> Figure:
    """Images, the change an attack made (0 is grey, epsilon black or white), and the outcome."""
    count = len(examples.images)
    change = examples.attacked - examples.images
    scale = 2 * max(float(np.abs(change).max()), 1e-6)
    rows = {"image": examples.images, "change": 0.5 + change / scale, "sum": examples.attacked}
    figure = canvas(1.1 * count + 0.6, 3.8)
    grid = np.atleast_2d(figure.subplots(len(rows), count, squeeze=False))
    for line, (title, pictures) in zip(grid, rows.items(), strict=True):
        line[0].set_ylabel(title, fontsize=9)
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
    for index in range(count):
        label, taken_for = examples.labels[index], examples.taken_for[index]
        grid[0, index].set_title(literal(examples.classes[label]), fontsize=9)
        colour = INK if label == taken_for else COLOURS[-1]
        name = literal(examples.classes[taken_for])
        grid[-1, index].set_xlabel(name, fontsize=9, color=colour)
    return figure
