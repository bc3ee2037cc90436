"""Certified accuracy by randomized smoothing (Cohen et al. 2019): answers proven within a radius.

The smoothed model answers with the class that the network gives most often to an image plus
Gaussian noise of deviation s. If that class has probability p_A or more, then no change of the
image shorter than

    R = s Phi^-1(p_A)

(Euclidean, in pixels of 0..1) alters the answer. p_A is bounded from below by counting draws, so
R holds with a confidence of 1 - alpha; where the bound does not exceed 1/2 the model abstains.

Networks have to know noisy images for this, and ours does: it is trained on
x_t = sqrt(abar_t) x_0 + sigma_t eps, which is sqrt(abar_t) (x_0 + eps sigma_t / sqrt(abar_t)). So
each t has its s, half of sigma_t / sqrt(abar_t), as model space is two pixel ranges wide.
A network without time gets x_0 + s eps as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from egc.codec import UNIT, PixelCodec, unit_pixels
from egc.config.parse import key
from egc.data.imageset import ImageSet, Splits
from egc.errors import ConfigError, ModelError
from egc.metrics.attacks import mixed
from egc.metrics.base import Column, Measured, Metric, Row, percent
from egc.metrics.fitting import fitting, in_shares, labelled
from egc.model import Model
from egc.registry import metrics
from egc.report.figures import COLOURS, canvas, literal
from egc.report.page import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABSTAINED = -1
AT_ONCE = 512
"""draws that go through the network together"""

normal_quantile = NormalDist().inv_cdf
"""Phi^-1, the inverse of the standard normal distribution"""


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
            **{name: getattr(self, name) for name in ("t", "sigma", "n0", "n", "alpha")},
            "abstained": self.abstained,
            "mean_radius": float(np.where(self.predictions == self.labels, self.radii, 0).mean()),
            "largest_radius": self.largest,
            "radii": radii,
            "certified_accuracy": [self.accuracy_at(radius) for radius in radii],
        }

    def rows(self) -> list[Row]:
        return [
            *(
                (f"certified within {radius:.2f}", percent(self.accuracy_at(radius)))
                for radius in np.linspace(0, self.largest, 5)
            ),
            ("abstains", percent(self.abstained)),
            ("noise", f"sigma {self.sigma:.3f} (t = {self.t}), {self.n} draws"),
        ]

    def verdict(self) -> str:
        half = self.largest / 2
        return (
            f"For {percent(self.accuracy_at(half))} of {len(self.labels)} images the right answer "
            f"is proven within a distance of {half:.2f}."
        )

    def figures(self) -> list[Section]:
        return CertifiedMetric().figures({"the model": self})


@metrics.register("certified")
class CertifiedMetric(Metric):
    title = "accuracy that is proven within a radius"
    finds = ("smoothing", "randomized_smoothing", "radius")
    requires = ("classifies", "pixels")
    needs_labels = True

    @dataclass(frozen=True)
    class Options(Metric.Options):
        images: int | None = key(256, "test images to use", low=1, none="all")
        certify: float = key(
            0.25, "deviation of the noise to certify with, in pixels of 0..1", above=0
        )
        certify_draws: int = key(1000, "draws of noise for each certified image", above=0)

    def measure(self, model: Model, data: Splits, options: Options, progress: bool) -> Certified:
        sigma, n, count = options.certify, options.certify_draws, options.images
        return evaluate_certified(
            model, data.test, sigma=sigma, n=n, count=count, seed=options.seed, progress=progress
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
    label = "radius, Euclidean, in pixels of 0 to 1"
    axis.set(xlabel=label, ylabel="certified accuracy", ylim=(0, 1.02))
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    return figure


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
    progress: bool = True,
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

    def answer(position: np.ndarray) -> list[tuple[int, float]]:
        image = unit_pixels(data.images(position))[0].to(model.device)
        (own,) = mixed([seed], int(position[0]))
        return [smoothed.certify(image, n0=n0, n=n, alpha=alpha, seed=own)]

    what = "Certifying" if progress else None
    predictions, radii = zip(*in_shares(positions, answer, at_once=1, what=what), strict=True)
    answers = (np.array(predictions), np.array(radii), data.labels[positions])
    return Certified(*answers, smoothed.t, smoothed.sigma, n0, n, alpha)


def noise_levels(model: Model) -> np.ndarray:
    """s of every t, in pixels of 0..1; (T,)."""
    diffusion = model.diffusion
    return (diffusion.sigmas / diffusion.alphas_cumprod.sqrt() / UNIT).numpy()


def nearest_level(model: Model, sigma: float) -> int:
    """The t whose noise is nearest to `sigma`, in pixels of 0..1."""
    levels = noise_levels(model)
    if not levels[0] / 2 <= sigma <= levels[-1]:
        raise ConfigError(
            f"sigma, the noise on pixels of 0..1, must be {levels[0]:.2g} to {levels[-1]:.2g} "
            f"for this model; got {sigma:g}."
        )
    return int(np.abs(levels - sigma).argmin())


def lower_bound(hits: int, draws: int, alpha: float) -> float:
    """A probability is at least this, with confidence 1 - alpha (Clopper & Pearson)."""
    from scipy.special import betaincinv

    return float(betaincinv(hits, draws - hits + 1, alpha)) if hits else 0.0


@dataclass(frozen=True)
class Smoothed:
    """A model asked by vote over noise of level t."""

    model: Model
    t: int

    def __post_init__(self) -> None:
        self.model.needs("classifies")
        if not isinstance(self.model.codec, PixelCodec):
            raise ModelError(
                "A radius can be certified for models of pixels only: this one puts its noise on "
                "latents, where lengths are not those of pixels."
            )
        if not 0 <= self.t < self.model.diffusion.steps:
            last = self.model.diffusion.steps - 1
            raise ConfigError(f"The level to smooth at must be 0 to {last}; got {self.t}.")

    @property
    def sigma(self) -> float:
        """Deviation of the noise, in pixels of 0..1."""
        return float(noise_levels(self.model)[self.t])

    def certify(
        self, pixels: Tensor, *, n0: int = 100, n: int = 1000, alpha: float = 0.001, seed: int = 0
    ) -> tuple[int, float]:
        """One image (C, H, W) in 0..1 -> its class and radius, or (-1, 0) to abstain.

        Args:
            n0: draws to choose the class with.
            n: other draws to bound its probability with; the radius is at most
                s Phi^-1(alpha^(1/n)), however sure the model.
            alpha: how often a radius may be too large.
        """
        if n0 < 1 or n < 1 or not 0 < alpha < 0.5:
            raise ConfigError(
                "Certification needs n0 >= 1 and n >= 1 draws and alpha between 0 and 0.5; "
                f"got {n0}, {n} and {alpha:g}."
            )
        generator = torch.Generator().manual_seed(seed)
        chosen = int(self.votes(pixels, n0, generator).argmax())
        hits = int(self.votes(pixels, n, generator)[chosen])
        bound = lower_bound(hits, n, alpha)
        if bound <= 0.5:
            return ABSTAINED, 0.0
        return chosen, self.sigma * normal_quantile(bound)

    @torch.no_grad()
    def votes(self, pixels: Tensor, draws: int, generator: torch.Generator) -> Tensor:
        """How often each class is the answer under noise; (classes,)."""
        model, encode = self.model, self.model.codec.encode_unit
        counts = torch.zeros(len(model.classes), dtype=torch.long)
        for start in range(0, draws, AT_ONCE):
            shape = (min(AT_ONCE, draws - start), *pixels.shape)
            noise = torch.randn(shape, generator=generator).to(pixels)
            if model.net.denoises:
                x = model.diffusion.noise(encode(pixels), self.t, noise)
                logits = model.net.logits(x, self.t)
            else:
                logits = model.net.logits(encode(pixels + self.sigma * noise), 0)
            counts += torch.bincount(logits.argmax(dim=1).cpu(), minlength=len(counts))
        return counts
