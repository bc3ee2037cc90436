"""The table and the scatter plot of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from egc.report.figures import COLOURS, INK

Row = Mapping[str, Any]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "accuracy": ("accuracy", _percent),
    "fid": ("FID", lambda v: f"{v:.1f}"),
    "judge_frechet": ("judge-Frechet", lambda v: f"{v:.2f}"),
    "agreement": ("judge agrees", _percent),
    "robust": ("under PGD", _percent),
    "ece": ("ECE", _percent),
    "auroc": ("AUROC", _percent),
    "parameters": ("parameters", lambda v: f"{v / 1e6:.2f} M"),
    "mflop_per_image": ("MFLOP", lambda v: f"{v:,.0f}"),
    "steps": ("steps", lambda v: f"{v:,}"),
    "seconds": ("seconds", lambda v: f"{v:,.0f}"),
}
"""of the table: key, title, and how a figure is written"""


def comparison_table(rows: Sequence[Row], comparison: Any) -> str:
    """Markdown; a column that no entry has is left out, a figure that one lacks is a dash."""
    used = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    measures = comparison.measures
    titles = {key: COLUMNS[key][0] for key in used}
    if "robust" in titles:
        titles["robust"] += f"-{measures.attack_steps} at {measures.epsilon:g}/255"
    if "auroc" in titles:
        titles["auroc"] += f", {measures.others[0]}"
    lines = ["| | " + " | ".join(titles.values()) + " |", "| --- " * (len(used) + 1) + "|"]
    for row in rows:
        shown = ["-" if row.get(key) is None else COLUMNS[key][1](row[key]) for key in used]
        lines.append(f"| {row['name']} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def scatter_figure(rows: Sequence[Row]) -> Figure:
    """Distance of samples against accuracy; what has but one of them stands on a line of its own,
    as in the paper's first figure."""
    key = "fid" if any(row.get("fid") is not None for row in rows) else "judge_frechet"
    figure = Figure(figsize=(5.2, 4), layout="constrained")
    axis = figure.subplots()
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    distances = [row[key] for row in rows if row[key] is not None]
    nowhere_x = min(accuracies, default=0.0) - 0.08
    nowhere_y = 1.3 * max(distances, default=1.0)
    axis.axvline(nowhere_x, color=INK, linewidth=0.6, linestyle=":")
    axis.axhline(nowhere_y, color=INK, linewidth=0.6, linestyle=":")
    middle = (nowhere_x + max(accuracies, default=1.0)) / 2
    for index, row in enumerate(rows):
        x = nowhere_x if row["accuracy"] is None else row["accuracy"]
        y = nowhere_y if row[key] is None else row[key]
        axis.scatter([x], [y], color=COLOURS[index % len(COLOURS)], zorder=3)
        side = -1 if x > middle else 1  # towards the middle, so that the name fits
        axis.annotate(row["name"], (x, y), xytext=(7 * side, 4), textcoords="offset points",
                      fontsize=8, ha="right" if side < 0 else "left")  # fmt: skip
    axis.annotate("names nothing", (nowhere_x, 0), xycoords=("data", "axes fraction"),
                  xytext=(-9, 4), textcoords="offset points", fontsize=7, rotation=90)  # fmt: skip
    axis.annotate("draws nothing", (0, nowhere_y), xycoords=("axes fraction", "data"),
                  xytext=(14, 4), textcoords="offset points", fontsize=7)  # fmt: skip
    axis.set_xlabel("accuracy")
    axis.set_ylabel("FID" if key == "fid" else "judge-Frechet distance (not FID)")
    axis.margins(0.15)
    axis.grid(alpha=0.25)
    return figure
