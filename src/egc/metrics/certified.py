"""Certified accuracy: the share of images whose right answer is proven within a radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from egc.codec import unit_pixels
from egc.config.parse import key
from egc.data.imageset import ImageSet, Splits
from egc.distributed import gather, share
from egc.errors import ConfigError
from egc.metrics.attacks import mixed
from egc.metrics.base import Column, Measured, Metric, Row, percent
from egc.metrics.fitting import fitting, labelled
from egc.metrics.smoothing import ABSTAINED, Smoothed, nearest_level, normal_quantile
from egc.model import Model
from egc.registry import metrics
from egc.report.figures import COLOURS, canvas, literal
from egc.report.page import Section
from egc.report.progress import progress_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Certified(Measured):
    """Answers of a smoothed model and the L2 radius (pixels of 0..1) that each is proven for."""

    predictions: np.ndarray
    """class indices, -1 where the model abstains; (N,)"""
    radii: np.ndarray
    """0 where it abstains; (N,)"""
    labels: np.ndarray
    t: int
    sigma: float
    """of the noise that t stands for, in pixels of 0..1"""
    n0: int
    n: int
    alpha: float

    def accuracy_at(self, radius: float) -> float:
        """The share of images that are named rightly, provably within this radius."""
        right = (self.predictions == self.labels) & (self.radii >= radius)
        return float(right.mean())

    @property
    def abstained(self) -> float:
        """The share of images without an answer."""
        return float((self.predictions == ABSTAINED).mean())

    @property
    def largest(self) -> float:
        """The radius that so many draws can prove at most, however sure the model."""
        return self.sigma * normal_quantile(self.alpha ** (1 / self.n))

    def summary(self, radii: Sequence[float] | None = None) -> dict[str, Any]:
        """Figures for JSON; the curve at these radii, by default at nine up to the largest."""
        radii = np.linspace(0, self.largest, 9).tolist() if radii is None else list(radii)
        return {
            "images": len(self.labels),
            "t": self.t,
            "sigma": self.sigma,
            "n0": self.n0,
            "n": self.n,
            "alpha": self.alpha,
            "abstained": self.abstained,
            "mean_radius": float(np.where(self.predictions == self.labels, self.radii, 0).mean()),
            "largest_radius": self.largest,
            "radii": radii,
            "certified_accuracy": [self.accuracy_at(radius) for radius in radii],
        }

    def rows(self) -> list[Row]:
        found = self.summary()
        curve = list(zip(found["radii"], found["certified_accuracy"], strict=True))[::2]
        about = f"sigma {self.sigma:.3f} (t = {self.t}), {self.n} draws"
        return [
            *((f"certified within {radius:.2f}", percent(share)) for radius, share in curve),
            ("abstains", percent(self.abstained)),
            ("noise", about),
        ]

    def verdict(self) -> str:
        half = self.largest / 2
        return (
            f"For {percent(self.accuracy_at(half))} of {len(self.labels)} images the right answer "
            f"is proven within a distance of {half:.2f}."
        )

    def figures(self) -> list[Section]:
        return CertifiedMetric().figures({"the model": self})


def evaluate_certified(
    model: Model,
    data: ImageSet,
    *,
    t: int | None = None,
    sigma: float | None = None,
    n0: int = 100,
    n: int = 1000,
    alpha: float = 0.001,
    count: int | None = 200,
    seed: int = 0,
    show: bool = True,
) -> Certified:
    """Certify the answers on labelled images; of several processes, each takes its share.

    Args:
        t, sigma: the noise, as a level or as its deviation in pixels of 0..1, of which the
            nearest level is taken; one of the two.
        n0, n, alpha: see `Smoothed.certify`; Cohen et al. take 100, 100,000 and 0.001.
        count: images to take, spread evenly over the set; None: all.
    """
    if t is None and sigma is not None:
        t = nearest_level(model, sigma)
    elif t is None or sigma is not None:
        raise ConfigError("Give the noise to certify with as either t or sigma.")
    fitting(model, data)
    smoothed = Smoothed(model, t)
    positions = labelled(data, count)
    mine, found = share(positions.tolist()), []
    with progress_line("Certifying", len(mine), show=show) as line:
        for position in mine:
            image = unit_pixels(data.images(np.array([position])))[0]
            (own,) = mixed([seed], position)
            answer = smoothed.certify(image.to(model.device), n0=n0, n=n, alpha=alpha, seed=own)
            found.append(answer)
            line.advance()
    predictions, radii = zip(*gather(found), strict=True)
    answers = (np.array(predictions), np.array(radii), data.labels[positions])
    return Certified(*answers, smoothed.t, smoothed.sigma, n0, n, alpha)


@metrics.register("certified")
class CertifiedMetric(Metric):
    title = "accuracy that is proven within a radius"
    finds = ("smoothing", "randomized_smoothing", "radius")
    needs_labels = True

    @dataclass(frozen=True)
    class Options(Metric.Options):
        images: int | None = key(256, "test images to use", low=1, none="all")
        certify: float = key(
            0.25, "deviation of the noise to certify with, in pixels of 0..1", above=0
        )
        certify_draws: int = key(1000, "draws of noise for each certified image", above=0)

    def obstacle(self, model: Model) -> str | None:
        if not model.classifies:
            return "it names nothing"
        if model.config.codec.kind != "pixel":
            return "it works on latents, and the figure would be one of latents"
        return None

    def measure(self, model: Model, data: Splits, options: Options, progress: bool) -> Certified:
        sigma, n, count = options.certify, options.certify_draws, options.images
        return evaluate_certified(
            model, data.test, sigma=sigma, n=n, count=count, seed=options.seed, show=progress
        )

    def figures(self, results: Mapping[str, Certified]) -> list[Section]:
        text = "Accuracy that no change within a radius can break."
        return [Section("Proven", text, certified_figure(results))]

    def columns(self, options: Options) -> list[Column]:
        title = f"mean certified radius, noise {options.certify:g}"
        return [Column("certified_radius", title, "{:.3f}".format, ("mean_radius",))]


def certified_figure(results: Mapping[str, Certified]) -> Figure:
    """The share of images that are provably named rightly, against the radius."""
    figure = canvas(4.8, 3.2)
    axis = figure.subplots()
    for (name, result), colour in zip(results.items(), cycle(COLOURS), strict=False):
        radii = np.linspace(0, result.largest, 200)
        shares = [result.accuracy_at(radius) for radius in radii]
        # Beyond this radius the draws were too few to prove anything.
        axis.plot([*radii, radii[-1]], [*shares, 0], color=colour, label=literal(name))
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("radius, Euclidean, in pixels of 0 to 1")
    axis.set_ylabel("certified accuracy")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    return figure
