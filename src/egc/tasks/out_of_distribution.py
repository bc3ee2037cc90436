"""How strange an image is to a model: scores that are higher for stranger images.

    energy      -f(x) at t = 0
    softmax     1 - the largest p(y|x)
    gradient    the length of grad_x f(x) at t = 0: how far from a place of rest
    curve       how unusual the energies of x at several t are, all together
    denoising   mean (eps - eps_hat)^2 of x_t, over several t

Energy alone has a blind side: a plain image may be more probable than any training image, and
still be none. `curve` looks to both sides. Its vector is the log-density at each t of the image
itself (no noise is added), in the parts it is a sum of: a pyramid has an anchor and an energy at
each level (`EnergyModel.log_densities`). Familiar images give the mean for
each class and a covariance for all. The score is the Mahalanobis distance to the mean of the class
that the model takes the image for, since some classes are richer in detail than others, and have
more energy.

A score is a function of the image alone: the noise of `denoising` is the same for all images.
A model offers those that its network can give (`offered`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egc.errors import ModelError, suggest
from egc.model import Model
from egc.tasks.predict import in_batches

FACT = "out_of_distribution"
"""what the threshold is called among a model's facts"""
SCORES = ("energy", "softmax", "gradient", "curve", "denoising")
FLAGGING = ("curve", "energy", "denoising")
"""what images are flagged by: the first of them that a model offers"""
STILL = (0.0, 0.05, 0.1, 0.2, 0.4)
"""noise levels of `curve`, as shares of T; beyond, all images look the same"""
NOISED = STILL[1:]
"""noise levels of `denoising`"""
MIN_VALIDATION_IMAGES = 20
"""images below which a threshold that 95 % of them pass means nothing"""
PRIOR = 1
"""images that the mean of all, and independence of the levels, count as in a fit"""


@dataclass(frozen=True)
class Curve:
    """The energies that familiar images have at several noise levels."""

    means: np.ndarray
    """of each class, in one row for models without; (C, levels)"""
    covariance: np.ndarray
    """around them; (levels, levels)"""

    @classmethod
    def fit(cls, vectors: np.ndarray, classes: np.ndarray, count: int) -> Curve:
        """Vectors (N, levels) of familiar images, and which of `count` classes each is in."""
        sums = np.zeros((count, vectors.shape[1]))
        np.add.at(sums, classes, vectors)
        sizes = np.bincount(classes, minlength=count)[:, None]
        means = (sums + PRIOR * vectors.mean(axis=0)) / (sizes + PRIOR)
        apart = vectors - means[classes]
        covariance = apart.T @ apart / len(vectors)
        own = np.diag(np.diag(covariance))
        weight = PRIOR / (len(vectors) + PRIOR)
        return cls(means, (1 - weight) * covariance + weight * own)

    def distance(self, vectors: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """How far vectors (N, levels) of images in these classes are from what is usual; (N,)."""
        apart = vectors - self.means[classes]
        precision = np.linalg.pinv(self.covariance, hermitian=True)
        return np.sqrt(np.einsum("ni,ij,nj->n", apart, precision, apart).clip(min=0))

    def to_dict(self) -> dict[str, Any]:
        return {"means": self.means.tolist(), "covariance": self.covariance.tolist()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Curve:
        return cls(np.asarray(stored["means"]), np.asarray(stored["covariance"]))


def offered(model: Model) -> tuple[str, ...]:
    """The scores that this kind of network can give."""
    names = {"gradient"}
    net = model.net
    if net.has_energy:
        names |= {"energy", "softmax"} if model.classifies else {"energy"}
    if net.denoises:
        names |= {"denoising", "curve"} if net.has_energy else {"denoising"}
    return tuple(name for name in SCORES if name in names)


def flagging_score(model: Model) -> str:
    """The score that images are flagged by."""
    return next(name for name in FLAGGING if name in offered(model))


def ood_scores(
    model: Model,
    images: np.ndarray,
    name: str,
    curve: Curve | None = None,
    batch_size: int = 100,
) -> np.ndarray:
    """uint8 (N, H, W, C) -> one score of `SCORES` for each image, (N,); `curve` needs a fit."""
    if name not in offered(model):
        raise ModelError(
            f"This model has no out-of-distribution score {name!r}. "
            f"{suggest(name, offered(model))}"
        )
    if name == "curve":
        if curve is None:
            raise ModelError("The score 'curve' needs the curve of familiar images, fitted first.")
        return curve.distance(*curve_vectors(model, images, batch_size))
    of_batch = {
        "energy": lambda x: -model.net(x, 0).log_density,
        "softmax": lambda x: 1 - model.net.logits(x, 0).softmax(dim=1).amax(dim=1),
        "gradient": lambda x: model.net.score(x, 0).flatten(1).norm(dim=1),
        "denoising": lambda x: _denoising_error(model, x),
    }[name]
    return in_batches(model, images, of_batch, batch_size).astype(np.float64)


def curve_vectors(
    model: Model, images: np.ndarray, batch_size: int = 100
) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (N, H, W, C) -> the parts of f(x, t) / sigma_t, (N, parts x noise levels), and the
    classes predicted, (N,)."""
    times = _times(model, STILL)
    sigmas = model.diffusion.sigmas

    def of_batch(x: Tensor) -> Tensor:
        levels = [model.net.log_densities(x, t).double() / float(sigmas[t]) for t in times]
        named = x.new_zeros(len(x), 1).double()
        if model.classifies:
            named = model.net.logits(x, 0).argmax(dim=1, keepdim=True).double()
        return torch.cat([*levels, named], dim=1)

    table = in_batches(model, images, of_batch, batch_size)
    return table[:, :-1], table[:, -1].astype(int)


def is_out_of_distribution(model: Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (N, H, W, C) -> whether each image is stranger than 95 % of those the model was
    checked with, (N,), and its score, (N,)."""
    stored = stored_threshold(model)
    curve = Curve.from_dict(stored) if stored["score"] == "curve" else None
    scores = ood_scores(model, images, stored["score"], curve)
    return scores > stored["threshold"], scores


def stored_threshold(model: Model) -> dict[str, Any]:
    """What is kept with the model: the score, its threshold and what it is computed with."""
    stored = model.facts.get(FACT, model.facts.get("novelty"))  # as it was called once
    if stored is None:
        raise ModelError(
            "This model has no out-of-distribution threshold stored with it; `egc evaluate MODEL "
            "--metrics out_of_distribution --store` finds one, if its data has at least "
            f"{MIN_VALIDATION_IMAGES} validation images (data.validation)."
        )
    needed = {"score", "threshold"}
    if isinstance(stored, Mapping) and stored.get("score") == "curve":
        needed |= {"means", "covariance"}
    if not isinstance(stored, Mapping) or not needed <= stored.keys():
        raise ModelError(
            "The out-of-distribution threshold stored with this model is incomplete; "
            "run `egc evaluate MODEL --metrics out_of_distribution --store` again."
        )
    return dict(stored)


def _denoising_error(model: Model, x: Tensor) -> Tensor:
    total = torch.zeros(len(x), device=x.device)
    times = _times(model, NOISED)
    for t in times:
        generator = torch.Generator().manual_seed(t)
        noise = torch.randn(x.shape[1:], generator=generator).to(x).expand_as(x)
        missed = model.net.eps(model.diffusion.noise(x, t, noise), t) - noise
        total += missed.square().flatten(1).mean(dim=1) / len(times)
    return total


def _times(model: Model, shares: tuple[float, ...]) -> list[int]:
    return sorted({round(share * (model.diffusion.steps - 1)) for share in shares})
