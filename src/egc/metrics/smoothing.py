"""Randomized smoothing (Cohen et al. 2019): a radius within which an answer is proven.

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

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from egc.codec import UNIT, PixelCodec
from egc.errors import ConfigError, ModelError
from egc.model import Model

ABSTAINED = -1
AT_ONCE = 512
"""draws that go through the network together"""


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


def normal_quantile(probability: float) -> float:
    """Phi^-1, the inverse of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(probability))


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

    def votes(self, pixels: Tensor, draws: int, generator: torch.Generator) -> Tensor:
        """How often each class is the answer under noise; (classes,)."""
        counts = torch.zeros(len(self.model.classes), dtype=torch.long)
        for start in range(0, draws, AT_ONCE):
            shape = (min(AT_ONCE, draws - start), *pixels.shape)
            noise = torch.randn(shape, generator=generator).to(pixels)
            with torch.no_grad():
                answers = self._logits(pixels, noise).argmax(dim=1)
            counts += torch.bincount(answers.cpu(), minlength=len(counts))
        return counts

    def _logits(self, pixels: Tensor, noise: Tensor) -> Tensor:
        model, encode = self.model, self.model.codec.encode_unit
        if not model.net.denoises:
            return model.net.logits(encode(pixels + self.sigma * noise), 0)
        return model.net.logits(model.diffusion.noise(encode(pixels), self.t, noise), self.t)
