"""What a model draws, with the figures it is measured by."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from egc.metrics.generation import Generation
from egc.report.grid import image_grid
from egc.report.figures import COLOURS

ROWS, COLUMNS = 5, 10
SHARES = ("precision", "recall", "density", "coverage")


def generation_figure(found: Generation) -> Figure:
    """The first drawn images, sorted by class, and the shares beside those of real images."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.6, 1])
    order = np.argsort(found.preview_labels[: ROWS * COLUMNS], kind="stable")
    left.imshow(image_grid(found.preview[order], columns=COLUMNS), cmap="gray")
    left.set_axis_off()
    frechet = f"{found.figures.prefix}frechet" if found.figures.prefix else "FID"
    title = f"{frechet.replace('_', '-')} {found.figures.frechet:.3g}"
    if found.baseline is not None:
        title += f" (real images: {found.baseline.frechet:.3g})"
    left.set_title(f"{title}, {found.figures.counts[0]:,} images", fontsize=10)
    sets = {"drawn": found.figures, "real": found.baseline}
    for index, (name, figures) in enumerate(sets.items()):
        if figures is not None:
            places = np.arange(len(SHARES)) + 0.38 * (index - 0.5)
            values = [getattr(figures, share) for share in SHARES]
            right.bar(places, values, 0.36, label=name, color=COLOURS[index])
    right.set_xticks(range(len(SHARES)), SHARES)
    network = "a judge" if found.figures.kind == "judge" else "Inception"
    right.set_title(f"in the features of {network}", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    return figure
