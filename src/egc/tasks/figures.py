"""Figures of the tasks: guidance, edits, the way out of the noise, evidence, and the energy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from egc.report.grid import image_grid
from egc.report.figures import ACCENT, COLOURS
from egc.tasks.edit import Edit
from egc.tasks.landscape import Along, Plane
from egc.tasks.sweep import Sweep
from egc.tasks.watch import Watched

SHOWN_CLASSES = 5
"""lines in a plot of probabilities"""


def sweep_figure(sweep: Sweep, name: str) -> Figure:
    """A row of samples a scale, with what was measured on it."""
    count = len(sweep.rows)
    figure = Figure(figsize=(9, 0.95 * count + 0.4), layout="constrained")
    for axis, row, images in zip(
        np.atleast_1d(figure.subplots(count, 1)), sweep.rows, sweep.images, strict=True
    ):
        axis.imshow(image_grid(images, columns=len(images)), cmap="gray", aspect="equal")
        axis.set_axis_off()
        axis.set_title(
            f"guidance {row.scale:g}   diversity {row.pixel_diversity:.0f} (pixels) "
            f"{row.feature_diversity:.2f} (features)   {row.agreement:.0%} taken for {name}",
            fontsize=8,
            loc="left",
        )
    return figure


def edit_figure(edit: Edit, classes: Sequence[str]) -> Figure:
    """Before, after and the difference, one image a column."""
    count = len(edit.before)
    figure = Figure(figsize=(1.5 * count + 0.5, 5), layout="constrained")
    axes = np.reshape(figure.subplots(3, count), (3, count))
    rows = (
        (edit.before, edit.probabilities_before),
        (edit.after, edit.probabilities_after),
        (edit.difference, None),
    )
    for line, (images, probabilities) in zip(axes, rows, strict=True):
        for index, axis in enumerate(line):
            axis.imshow(image_grid(images[index][None]), cmap="gray", vmin=0, vmax=255)
            axis.set_axis_off()
            if probabilities is None:
                axis.set_title(f"strength {edit.strengths[index]:.2f}", fontsize=8)
            else:
                best = int(probabilities[index].argmax())
                title = f"{classes[best]} {probabilities[index][best]:.0%}"
                axis.set_title(title, fontsize=8)
    return figure


def watch_figure(watched: Watched, classes: Sequence[str]) -> Figure:
    """The strip, and under it p(y | x_t) of the classes that lead at some time."""
    rows = 1 if watched.probabilities is None else 2
    figure = Figure(figsize=(9, 1.2 + 2.4 * (rows - 1)), layout="constrained")
    ratios = [1, 2.2][:rows]
    axes = np.atleast_1d(figure.subplots(rows, 1, height_ratios=ratios))
    axes[0].imshow(watched.strip(), cmap="gray")
    axes[0].set_axis_off()
    if watched.probabilities is not None:
        leading = watched.probabilities.max(axis=0).argsort()[::-1][:SHOWN_CLASSES]
        for colour, index in zip(COLOURS, leading, strict=False):
            axes[1].plot(
                watched.times, watched.probabilities[:, index], color=colour, label=classes[index]
            )
        axes[1].invert_xaxis()
        axes[1].set_xlabel("noise level t")
        axes[1].set_ylabel("p(y | x_t)")
        axes[1].legend(frameon=False, fontsize=8)
        axes[1].grid(alpha=0.25)
    return figure


def evidence_figure(
    images: np.ndarray, maps: np.ndarray, classes: Sequence[str], top: int = 3
) -> Figure:
    """Each image, and where its strongest classes are seen; one image a row."""
    top = min(top, len(classes))
    figure = Figure(figsize=(1.9 * (top + 1), 1.9 * len(images)), layout="constrained")
    axes = np.reshape(figure.subplots(len(images), top + 1), (len(images), top + 1))
    for line, image, each in zip(axes, images, maps, strict=True):
        line[0].imshow(image_grid(image[None]), cmap="gray", vmin=0, vmax=255)
        best = each.mean(axis=(1, 2)).argsort()[::-1][:top]
        for axis, index in zip(line[1:], best, strict=True):
            axis.imshow(each[index], cmap="magma", vmin=0, vmax=1)
            axis.set_title(f"{classes[index]} {each[index].mean():.0%}", fontsize=8)
        for axis in line:
            axis.set_axis_off()
    return figure


def energy_figure(along: Along, planes: Sequence[Plane]) -> Figure:
    """The density along growing noise, and over two orthogonal noises, beside the Gaussian."""
    count = 1 + len(planes)
    figure = Figure(figsize=(4.4 * count, 3.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, count))
    colours = _shades(len(along.times))
    for colour, t, curve, fit in zip(
        colours, along.times, along.log_density, along.fit, strict=True
    ):
        axes[0].plot(along.levels, np.exp(curve), color=colour, label=f"t = {t} (fit {fit:.2f})")
    axes[0].plot(along.levels, np.exp(along.gaussian), "k--", label="folded normal")
    axes[0].set_xlabel("noise level, mean |noise|")
    axes[0].set_title("density along growing noise", fontsize=10)
    axes[0].legend(frameon=False, fontsize=7)
    axes[0].grid(alpha=0.25)
    for axis, plane in zip(axes[1:], planes, strict=True):
        extent = (plane.axis[0], plane.axis[-1], plane.axis[0], plane.axis[-1])
        axis.imshow(np.exp(plane.log_density), extent=extent, origin="lower", cmap="viridis")
        levels = np.exp(-0.5 * np.array([2.0, 1.5, 1.0, 0.5]) ** 2)
        a, b = np.meshgrid(plane.axis, plane.axis, indexing="ij")
        axis.contour(a, b, np.exp(plane.gaussian), levels, colors="white", linestyles="--",
                     linewidths=0.8)  # fmt: skip
        axis.contour(a, b, np.exp(plane.log_density.T), levels, colors=ACCENT, linewidths=0.8)
        axis.set_title(f"two orthogonal noises, t = {plane.t} (fit {plane.fit:.2f})", fontsize=10)
        axis.set_xlabel("dashed: Gaussian; solid: the network", fontsize=8)
    return figure


def _shades(count: int) -> list[tuple[float, float, float, float]]:
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * i / max(1, count - 1)) for i in range(count)]
