"""Certified accuracy: the share of images whose right answer is proven within a radius."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from egc.codec import pixels_of
from egc.data.imageset import ImageSet
from egc.errors import ConfigError
from egc.metrics.fitting import fitting, labelled
from egc.model import Model
from egc.distributed import share, gather
from egc.report.progress import progress_line
from egc.metrics.attacks import mixed
from egc.metrics.smoothing import ABSTAINED, Smoothed, nearest_level


@dataclass(frozen=True)
class Certified:
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
        return self.sigma * float(norm.ppf(self.alpha ** (1 / self.n)))

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
            image = (pixels_of(data.images(np.array([position])))[0] + 1) / 2
            (own,) = mixed([seed], position)
            answer = smoothed.certify(image.to(model.device), n0=n0, n=n, alpha=alpha, seed=own)
            found.append(answer)
            line.advance()
    predictions, radii = zip(*gather(found), strict=True)
    return Certified(
        np.array(predictions),
        np.array(radii),
        data.labels[positions],
        smoothed.t,
        smoothed.sigma,
        n0,
        n,
        alpha,
    )
