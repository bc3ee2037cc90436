"""Figures of novelty: how far familiar images and others are apart, by each score."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from egc.metrics.out_of_distribution import Novelty, auroc
from egc.report.figures import COLOURS, INK

BINS = 50


def score_figure(novelty: Novelty) -> Figure:
    """The scores of familiar images and of others, one panel a score."""
    scores = list(novelty.familiar)
    figure = Figure(figsize=(3.4 * len(scores), 3.2), layout="constrained")
    for axis, score in zip(figure.subplots(1, len(scores), squeeze=False)[0], scores, strict=True):
        groups = [(novelty.name, novelty.familiar[score])]
        groups += [(name, found[score]) for name, found in novelty.others.items()]
        every = np.concatenate([values for _, values in groups])
        bins = np.linspace(every.min(), every.max(), BINS + 1)
        if score == "curve":  # distances: those of noise are hundreds of times those of images
            bins = np.geomspace(max(every.min(), 1e-3), max(every.max(), 1e-2), BINS + 1)
            axis.set_xscale("log")
        for index, (name, values) in enumerate(groups):
            shares = np.full(len(values), 1 / len(values))
            colour = COLOURS[(index - 1) % len(COLOURS)] if index else INK
            axis.hist(values, bins.tolist(), weights=shares, alpha=0.4, color=colour, label=name)
            axis.hist(values, bins.tolist(), weights=shares, histtype="step", color=colour)
        axis.set_xlabel(f"{score} (right: stranger)")
    figure.axes[0].set_ylabel("share of images")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def roc_figure(novelty: Novelty) -> Figure:
    """Novel against familiar images flagged: one panel a set of others, one line a score."""
    count = len(novelty.others)
    figure = Figure(figsize=(3.2 * count, 3.4), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for axis, (name, found) in zip(panels, novelty.others.items(), strict=True):
        for index, (score, novel) in enumerate(found.items()):
            familiar = novelty.familiar[score]
            thresholds = np.unique(np.concatenate([familiar, novel]))[::-1]
            axis.plot(
                [0, *(1 - np.searchsorted(np.sort(familiar), thresholds) / len(familiar))],
                [0, *(1 - np.searchsorted(np.sort(novel), thresholds) / len(novel))],
                color=COLOURS[index % len(COLOURS)],
                label=f"{score} {auroc(familiar, novel):.3f}",
            )
        axis.set_title(f"{novelty.name} against {name}", fontsize=10)
        axis.set_xlabel("familiar images flagged")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8, loc="lower right", title="AUROC", title_fontsize=8)
    figure.axes[0].set_ylabel("novel images flagged")
    return figure
