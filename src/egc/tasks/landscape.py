"""Seeing the energy: is the density that the network learned the one it should have?

Around an image x_0, the noised images x_t = sqrt(abar_t) x_0 + sigma_t eps have the density
q(x_t | x_0), a Gaussian in eps. As long as the noise hides which image it was, the network's
density must fall like a mixture of such Gaussians; close to one image, like that one.

`along_noise` (the paper's figure a): scale one noise by r and look at f(x_t) / sigma_t against the
level of the noise, mean |r eps|. exp(-r^2 d / 2), d the number of values, is far too sharp to see;
like the paper we look at the density of one value, exp(log-density / d), which for a Gaussian is
the folded normal exp(-r^2 / 2).

`over_plane` (figures b, c): x_t = sqrt(abar_t) x_0 + sigma_t (a e1 + b e2) for two orthogonal
noises of the length that noise has, against the Gaussian exp(-(a^2 + b^2) / 2).

Goodness of fit is the share of the variance of the Gaussian's log-density that the network's
explains, 1 - sum (l - g)^2 / sum g^2, each centred on its mean, as both are known up to a
constant; 1 is perfect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from egc.model import Model
from egc.report.figures import ACCENT, canvas
from egc.tasks.predict import check_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REACH = 2.0
"""standard deviations each way"""


@dataclass(frozen=True)
class Along:
    """Figure a: the density along growing noise, at several noise levels t."""

    times: list[int]
    levels: np.ndarray
    """mean absolute noise; (R,)"""
    log_density: np.ndarray
    """of one value, largest 0; (T, R)"""
    gaussian: np.ndarray
    """what it should be; (R,)"""
    fit: list[float]
    """goodness of fit of each t"""

    def draw(self, axis: Axes) -> None:
        """A curve a noise level, and the Gaussian that it should be."""
        from matplotlib import colormaps

        shades = colormaps["viridis"](np.linspace(0, 0.9, len(self.times)))
        for colour, t, curve, fit in zip(
            shades, self.times, self.log_density, self.fit, strict=True
        ):
            axis.plot(self.levels, np.exp(curve), color=colour, label=f"t = {t} (fit {fit:.2f})")
        axis.plot(self.levels, np.exp(self.gaussian), "k--", label="folded normal")
        axis.set_xlabel("noise level, mean |noise|")
        axis.set_title("density along growing noise", fontsize=10)
        axis.legend(frameon=False, fontsize=7)
        axis.grid(alpha=0.25)


@dataclass(frozen=True)
class Plane:
    """Figures b and c: the density over two orthogonal noises."""

    t: int
    axis: np.ndarray
    """a and b, in standard deviations; (R,)"""
    log_density: np.ndarray
    """of one value, largest 0; (R, R)"""
    gaussian: np.ndarray
    """(R, R)"""
    fit: float

    def draw(self, axis: Axes) -> None:
        """The density in colours, with the lines of the Gaussian and its own."""
        extent = (self.axis[0], self.axis[-1], self.axis[0], self.axis[-1])
        axis.imshow(np.exp(self.log_density), extent=extent, origin="lower", cmap="viridis")
        levels = np.exp(-0.5 * np.array([2.0, 1.5, 1.0, 0.5]) ** 2)
        a, b = np.meshgrid(self.axis, self.axis, indexing="ij")
        for values, colour, line in (
            (self.gaussian, "white", "--"),
            (self.log_density.T, ACCENT, "-"),
        ):
            style: Any = {"colors": colour, "linestyles": line, "linewidths": 0.8}
            axis.contour(a, b, np.exp(values), levels, **style)
        axis.set_title(f"two orthogonal noises, t = {self.t} (fit {self.fit:.2f})", fontsize=10)
        axis.set_xlabel("dashed: Gaussian; solid: the network", fontsize=8)


@dataclass(frozen=True)
class Landscape:
    """The density around images: along growing noise, and over planes of two noises."""

    along: Along
    planes: list[Plane]

    def picture(self) -> Figure:
        """The density along growing noise and over the planes, beside the Gaussian."""
        parts: list[Along | Plane] = [self.along, *self.planes]
        figure = canvas(4.4 * len(parts), 3.6)
        for axis, part in zip(
            figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True
        ):
            part.draw(axis)
        return figure


def landscape(model: Model, images: np.ndarray, seed: int = 0) -> Landscape:
    """The paper's figures a, b and c; see `egc.EGC.landscape`."""
    model.needs("has_energy")
    model.needs("denoises")
    last = model.diffusion.steps - 1
    times = [round(last * share) for share in (0.1, 0.2, 0.35, 0.5, 0.7, 0.9)]
    planes = [over_plane(model, images[0], round(last * s), seed=seed) for s in (0.5, 0.2)]
    return Landscape(along_noise(model, images, times, seed=seed), planes)


def along_noise(
    model: Model, images: np.ndarray, times: list[int], points: int = 41, seed: int = 0
) -> Along:
    """The mean over some images of the log-density along scaled noise."""
    check_times(model, times)
    x0, eps = _noised(model, images, seed)
    scales = torch.linspace(0, REACH, points)
    rows = []
    for t in times:
        place = torch.cat([model.diffusion.noise(x0, t, r * eps) for r in scales])
        rows.append(_per_value(model, place, t).reshape(points, len(images)).mean(axis=1))
    curves = np.stack(rows)
    gaussian = -0.5 * scales.numpy() ** 2
    return Along(
        times=times,
        levels=scales.numpy() * float(eps.abs().mean()),
        log_density=curves - curves.max(axis=1, keepdims=True),
        gaussian=gaussian,
        fit=[goodness(curve, gaussian) for curve in curves],
    )


def over_plane(model: Model, image: np.ndarray, t: int, points: int = 25, seed: int = 0) -> Plane:
    """The log-density over the plane of two orthogonal noises, around one noised image."""
    check_times(model, [t])
    x0, first = _noised(model, image[None], seed)
    _, second = _noised(model, image[None], seed + 1)
    second = second - first * (first * second).sum() / first.square().sum()
    length = x0.numel() ** 0.5
    first, second = (each * (length / each.norm()) for each in (first, second))
    axis = torch.linspace(-REACH, REACH, points)
    rows = []
    for a in axis:
        eps = torch.cat([a * first + b * second for b in axis])
        rows.append(_per_value(model, model.diffusion.noise(x0.expand_as(eps), t, eps), t))
    values = np.stack(rows)
    a, b = np.meshgrid(axis.numpy(), axis.numpy(), indexing="ij")
    gaussian = -0.5 * (a**2 + b**2)
    return Plane(t, axis.numpy(), values - values.max(), gaussian, goodness(values, gaussian))


def goodness(found: np.ndarray, expected: np.ndarray) -> float:
    """1 - unexplained / total variance of `expected`; both are known up to a constant."""
    found, expected = found - found.mean(), expected - expected.mean()
    return float(1 - ((found - expected) ** 2).sum() / (expected**2).sum())


def _noised(model: Model, images: np.ndarray, seed: int) -> tuple[Tensor, Tensor]:
    x0 = model.codec.encode(images).to(model.device)
    generator = torch.Generator().manual_seed(seed)
    return x0, torch.randn(x0.shape, generator=generator).to(x0)


def _per_value(model: Model, x: Tensor, t: int, batch_size: int = 256) -> np.ndarray:
    """log p_t up to a constant, for one of the values of x."""
    with torch.no_grad():
        parts = [model.net.log_prob(part, t) for part in x.split(batch_size)]
    return (torch.cat(parts) / x[0].numel()).cpu().numpy()
