"""The table and the scatter plot of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from egc.report.figures import COLOURS, canvas, literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from egc.baselines.compare import Comparison

Row = Mapping[str, Any]
DISTANCES = {"fid": "FID", "judge_frechet": "judge-Frechet distance (not FID)"}
"""of samples from real images; the first that an entry has is the one shown"""


def comparison_table(rows: Sequence[Row], comparison: Comparison) -> str:
    """Markdown: means, and the deviation over the seeds where there are several.

    A column that no entry has is left out, a figure that one lacks is a dash.
    """
    used = [c for c in comparison.columns() if any(row.get(c.key) is not None for row in rows)]
    lines = [
        "| | " + " | ".join(column.title for column in used) + " |",
        "| --- " * (len(used) + 1) + "|",
    ]
    for row in rows:
        shown = [_figure(row, column.key, column.show) for column in used]
        lines.append(f"| {row['name']} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _figure(row: Row, name: str, show: Callable[[Any], str]) -> str:
    if row.get(name) is None:
        return "-"
    each = row.get(f"{name}_each", [])
    spread = f" ± {show(float(np.std(each, ddof=1)))}" if len(each) > 1 else ""
    return show(row[name]) + spread


def scatter_figure(rows: Sequence[Row]) -> Figure:
    """Distance of samples against accuracy.

    What has but one of the two is not in the plane: it is a line in a strip beside it.
    """
    distance = next((k for k in DISTANCES if any(r.get(k) is not None for r in rows)), "fid")
    colours = dict(zip((row["name"] for row in rows), cycle(COLOURS), strict=False))

    def has(row: Row, *names: str) -> bool:
        return all((row.get(name) is not None) == (name in names) for name in (at, distance))

    at = "accuracy"
    figure = canvas(5.6, 4.4)
    grid = figure.add_gridspec(2, 2, width_ratios=(5, 1), height_ratios=(1, 6))
    plane = figure.add_subplot(grid[1, 0])
    for row in rows:
        colour = colours[row["name"]]
        if has(row, at, distance):
            plane.scatter([row[at]], [row[distance]], color=colour, label=literal(row["name"]))
    plane.set_xlabel("accuracy")
    plane.set_ylabel(DISTANCES[distance])
    plane.margins(0.15)
    plane.grid(alpha=0.25)

    unnamed = [row for row in rows if has(row, distance)]
    if unnamed:
        strip = figure.add_subplot(grid[1, 1], sharey=plane)
        strip.set_title("names\nnothing", fontsize=7)
        for row in unnamed:
            name = literal(row["name"])
            strip.axhline(row[distance], color=colours[row["name"]], label=name)
        strip.set_xticks([])
        strip.tick_params(labelleft=False)
    unsampled = [row for row in rows if has(row, at)]
    if unsampled:
        strip = figure.add_subplot(grid[0, 0], sharex=plane)
        strip.set_title("draws nothing", fontsize=7)
        for row in unsampled:
            strip.axvline(row[at], color=colours[row["name"]], label=literal(row["name"]))
        strip.set_yticks([])
        strip.tick_params(labelbottom=False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure
