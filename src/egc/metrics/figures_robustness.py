"""Figures of attacks and of what is proven against them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egc.metrics.certified import Certified
from egc.metrics.attack_examples import Examples
from egc.metrics.robustness import Robustness
from egc.report.figures import COLOURS, INK

TITLES = {
    "fgsm": "FGSM",
    "pgd": "PGD-{steps}",
    "autoattack": "AutoAttack",
    "random": "random search",
}
STYLES = {"accuracy": "-", "transfer": "--", "undefended": ":"}
WORDS = {
    "accuracy": "purified, attack knows it",
    "transfer": "purified, attack does not",
    "undefended": "not purified",
}
"""what the curves of a purified model are"""


def robustness_figure(results: Mapping[str, Robustness]) -> Figure:
    """Accuracy against epsilon: a panel an attack, a colour a model.

    Of purified models the adaptive figure is drawn through, the others are broken lines.
    """
    attacks = list(dict.fromkeys(name for result in results.values() for name in result.accuracy))
    figure = Figure(figsize=(3.6 * max(2, len(attacks)), 3.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(attacks), sharey=True))
    for axis, attack in zip(axes, attacks, strict=True):
        for (model, result), colour in zip(results.items(), cycle(COLOURS), strict=False):
            unit = 255 if result.strength.norm == "linf" else 1
            along = [0.0, *(unit * epsilon for epsilon in result.epsilons)]
            for kind, style in STYLES.items():
                curve = getattr(result, kind).get(attack)
                if curve is None:
                    continue
                clean = result.undefended_clean if kind == "undefended" else result.clean
                label = model if kind == "accuracy" else None
                axis.plot(along, [clean, *curve], f"o{style}", color=colour, label=label,
                          markersize=3)  # fmt: skip
            axis.set_xlabel("epsilon / 255" if unit == 255 else "epsilon, Euclidean")
            axis.set_title(TITLES[attack].format(steps=result.strength.steps), fontsize=10)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("accuracy")
    _legend(axes[0], any(result.purify for result in results.values()))
    return figure


def certified_figure(results: Mapping[str, Certified]) -> Figure:
    """The share of images that are provably named rightly, against the radius."""
    figure = Figure(figsize=(4.8, 3.2), layout="constrained")
    axis = figure.subplots()
    for (name, result), colour in zip(results.items(), cycle(COLOURS), strict=False):
        radii = np.linspace(0, result.largest, 200)
        shares = [result.accuracy_at(radius) for radius in radii]
        # Beyond this radius the draws were too few to prove anything.
        axis.plot([*radii, radii[-1]], [*shares, 0], color=colour, label=name)
    axis.set_ylim(0, 1)
    axis.set_xlabel("radius, Euclidean, in pixels of 0 to 1")
    axis.set_ylabel("certified accuracy")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    return figure


def examples_figure(examples: Examples) -> Figure:
    """Images, the change an attack made (0 is grey, epsilon black or white), and the outcome."""
    count = len(examples.images)
    change = examples.attacked - examples.images
    scale = 2 * max(float(np.abs(change).max()), 1e-6)
    rows = {"image": examples.images, "change": 0.5 + change / scale, "sum": examples.attacked}
    figure = Figure(figsize=(1.1 * count + 0.6, 3.8), layout="constrained")
    grid = np.atleast_2d(figure.subplots(len(rows), count, squeeze=False))
    for line, (title, pictures) in zip(grid, rows.items(), strict=True):
        line[0].set_ylabel(title, fontsize=9)
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
    for index in range(count):
        label, taken_for = examples.labels[index], examples.taken_for[index]
        grid[0, index].set_title(examples.classes[label], fontsize=9)
        colour = INK if label == taken_for else COLOURS[-1]
        grid[-1, index].set_xlabel(examples.classes[taken_for], fontsize=9, color=colour)
    return figure


def _legend(axis: Axes, purified: bool) -> None:
    """The models, and what the broken lines are."""
    handles, labels = axis.get_legend_handles_labels()
    if purified:
        for kind, style in STYLES.items():
            (line,) = axis.plot([], [], style, color=INK)
            handles.append(line)
            labels.append(WORDS[kind])
    axis.legend(handles, labels, frameon=False, fontsize=8)
