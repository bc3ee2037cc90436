"""Figures of classification: whether a model knows how often it is right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import beta

from egc.metrics.classification import AgainstT, Classification
from egc.report.figures import ACCENT, COLOURS, INK


def reliability_figure(results: Mapping[str, Classification]) -> Figure:
    """Accuracy by confidence, one colour a way of asking; below, how many images are where."""
    figure = Figure(figsize=(4.4, 4.8), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    for index, (name, result) in enumerate(results.items()):
        bins, colour = result.reliability, COLOURS[index % len(COLOURS)]
        filled = bins.count > 0
        accuracy, count = bins.accuracy[filled], bins.count[filled]
        # Of a few images nothing is sure: Jeffreys intervals, 95 %, say how little.
        right, wrong = accuracy * count + 0.5, (1 - accuracy) * count + 0.5
        low, high = beta.ppf([[0.025], [0.975]], right, wrong)
        upper.errorbar(
            bins.confidence[filled],
            accuracy,
            np.stack([accuracy - low, high - accuracy]).clip(min=0),
            fmt="o",
            markersize=4,
            elinewidth=1,
            color=colour,
            label=f"{name}: ECE {result.ece:.1%}",
        )
        edges = np.linspace(0, 1, len(bins.count) + 1)
        lower.stairs(bins.count, edges, color=colour)
    upper.set_ylabel("accuracy")
    upper.set_xlim(0, 1.01)
    upper.set_ylim(-0.02, 1.03)
    upper.grid(alpha=0.25)
    upper.legend(frameon=False, fontsize=9)
    lower.set_yscale("symlog", linthresh=1)
    lower.set_xlabel("confidence")
    lower.set_ylabel("images")
    return figure


def against_t_figure(result: AgainstT) -> Figure:
    """Accuracy and confidence of p(y|x_t) as noise grows."""
    figure = Figure(figsize=(5.2, 4.8), layout="constrained")
    axis = figure.subplots()
    axis.plot(result.times, result.accuracy, "o-", color=ACCENT, markersize=3, label="accuracy")
    axis.plot(
        result.times, result.confidence, "o-", color=COLOURS[1], markersize=3, label="confidence"
    )
    axis.set_xlabel("noise level t")
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return figure
