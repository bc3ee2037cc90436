"""Figures as PNG bytes, drawn without global state, so that they work anywhere.

matplotlib is imported by `canvas`, when there is something to draw: it takes long.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from egc.report.grid import image_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT = "#22252b", "#2f6fb3"
COLOURS = (ACCENT, "#d1793b", "#4f9d69", "#8a63a8", "#b5483f")

TITLES = {
    "score": "noise error, mean (s + eps)²",
    "class_noisy": "cross-entropy, noised images",
    "class_clean": "cross-entropy, clean images",
    "density_gap": "f of chains minus f of images",
}
"""terms of the loss"""
LAST = ("validation_accuracy",)
UNSHOWN = ("step", "loss", "lr", "gradient", "images_per_second", "skipped")
"""keys of metrics.jsonl without a panel of their own"""


def canvas(width: float, height: float) -> Figure:
    """An empty figure, so many inches large."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def literal(text: object) -> str:
    """Text that matplotlib writes as it is: between two $ it would see a formula."""
    return str(text).replace("$", r"\$")


def show_images(axis: Axes, picture: np.ndarray | Image.Image, title: object = "") -> None:
    """A picture, or uint8 images (N, H, W, C) in a row, with a title and no axes."""
    if isinstance(picture, np.ndarray):
        picture = image_grid(picture, columns=len(picture))
    axis.imshow(np.asarray(picture), cmap="gray", vmin=0, vmax=255)
    axis.set_title(literal(title), fontsize=8)
    axis.set_axis_off()


def png(figure: Figure | Image.Image) -> bytes:
    """The picture as the bytes of a PNG file."""
    buffer = io.BytesIO()
    if isinstance(figure, Image.Image):
        figure.save(buffer, format="PNG", optimize=True)
    else:
        figure.savefig(buffer, format="png", dpi=110, facecolor="white")
    return buffer.getvalue()


def run_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The metrics of one or several runs, one panel a metric, one colour a run."""
    seen = [n for records in runs.values() for record in records for n in record if record[n]]
    # First the terms that are known, then what else an objective counts; without terms, their sum.
    names = [name for name in dict.fromkeys(seen) if name not in UNSHOWN]
    names.sort(key=lambda name: (name not in TITLES, name in LAST))
    if set(names) <= set(LAST):
        names.insert(0, "loss")
    figure = canvas(4 * len(names), 3.2)
    for axis, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        for index, (run, records) in enumerate(runs.items()):
            points = [(r["step"], r[name]) for r in records if name in r]
            if points:
                steps, values = zip(*points, strict=True)
                marker = "o-" if len(points) < 30 else "-"
                colour = COLOURS[index % len(COLOURS)]
                axis.plot(steps, values, marker, color=colour, label=literal(run), markersize=3)
        if name not in LAST and all(r.get(name, 1) > 0 for rs in runs.values() for r in rs):
            axis.set_yscale("log")
        axis.set_title(literal(TITLES.get(name, name.replace("_", " "))), fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25, which="both")
    if len(runs) > 1:
        figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def confusion_figure(confusion: np.ndarray, classes: Sequence[str]) -> Figure:
    """True class by predicted class; counts written in where they fit."""
    count = len(classes)
    side = min(10.0, max(3.6, 0.42 * count + 1))
    figure = canvas(side, side)
    axis = figure.subplots()
    shares = confusion / confusion.sum(axis=1, keepdims=True).clip(min=1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    if count <= 20:
        names = [literal(name) for name in classes]
        axis.set_xticks(range(count), names, rotation=90 if max(map(len, classes)) > 2 else 0)
        axis.set_yticks(range(count), names)
        for row, column in zip(*np.nonzero(confusion), strict=True):
            axis.text(
                column,
                row,
                str(confusion[row, column]),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if shares[row, column] > 0.5 else INK,
            )
    return figure


def histogram(groups: Mapping[str, np.ndarray], label: str) -> Figure:
    """Several sets of values on one axis, each as a filled outline."""
    figure = canvas(6.4, 3)
    axis = figure.subplots()
    every = np.concatenate(list(groups.values()))
    bins = np.linspace(every.min(), every.max(), 60).tolist()
    for (name, values), colour in zip(groups.items(), COLOURS, strict=False):
        weights = np.full(len(values), 1 / len(values))
        axis.hist(values, bins, weights=weights, alpha=0.45, color=colour, label=literal(name))
        axis.hist(values, bins, weights=weights, histtype="step", color=colour)
    axis.set_xlabel(label)
    axis.set_ylabel("share of images")
    axis.legend(frameon=False)
    return figure
