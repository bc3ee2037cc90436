"""How well a model names held-out images, and whether it knows how well.

With p(y|x) at t = 0, the paper's protocol, or as a `Predictor` asks for it:

    accuracy    the share of images whose most probable class is the true one
    top-5       the share whose true class is among the five most probable
    NLL         mean of -log p(true class), in nats
    Brier       mean over images of the sum over classes of (p - [class is true])^2: 0 to 2
    ECE         mean gap between confidence (the largest p) and accuracy, over equal bins of
                confidence, each weighted by its images (Guo et al. 2017); 15 bins
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from egc.codec import pixels_of
from egc.data.imageset import ImageSet
from egc.diffusion import initial_noise
from egc.errors import ConfigError, DataError, ModelError
from egc.metrics.fitting import fitting
from egc.model import Model
from egc.distributed import share, gather
from egc.tasks.predict import predict_proba
from egc.tasks.predict import Predictor

AT_ONCE = 256
"""images that are read together"""
BINS = 15
"""of confidence"""
LEAST = float(np.finfo(np.float32).tiny)
"""probabilities below it count as it: single precision cannot tell them from 0"""


@dataclass(frozen=True)
class Reliability:
    """Images by confidence, in equal bins from 0 to 1; each (bins,)."""

    confidence: np.ndarray
    """mean in each bin; 0 where there are no images"""
    accuracy: np.ndarray
    count: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error (ECE)."""
        gaps = np.abs(self.confidence - self.accuracy)
        return float((gaps * self.count).sum() / self.count.sum())


@dataclass(frozen=True)
class Classification:
    """Accuracy, confusion and calibration on a labelled set."""

    accuracy: float
    confusion: np.ndarray
    """counts, true class by predicted class; (C, C)"""
    probabilities: np.ndarray
    """(N, C)"""
    labels: np.ndarray
    """true class indices; (N,)"""

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray) -> Classification:
        """p(y|x) of images (N, C), and their true classes (N,)."""
        predicted = probabilities.argmax(axis=1)
        classes = probabilities.shape[1]
        confusion = np.zeros((classes, classes), dtype=int)
        np.add.at(confusion, (labels, predicted), 1)
        return cls(float((predicted == labels).mean()), confusion, probabilities, labels)

    @property
    def top5(self) -> float | None:
        """None where there are five classes or fewer."""
        if self.probabilities.shape[1] <= 5:
            return None
        best = np.argpartition(-self.probabilities, 4, axis=1)[:, :5]
        return float((best == self.labels[:, None]).any(axis=1).mean())

    @property
    def nll(self) -> float:
        right = self.probabilities[np.arange(len(self.labels)), self.labels]
        return float(-np.log(right.astype(np.float64).clip(min=LEAST)).mean())

    @property
    def brier(self) -> float:
        truth = np.eye(self.probabilities.shape[1])[self.labels]
        return float(((self.probabilities - truth) ** 2).sum(axis=1).mean())

    @property
    def confidence(self) -> float:
        """The mean of the largest probability."""
        return float(self.probabilities.max(axis=1).mean())

    @cached_property
    def reliability(self) -> Reliability:
        return reliability(self.probabilities, self.labels)

    @property
    def ece(self) -> float:
        # Imported here, as it takes seconds, which nobody should wait for who does not ask.
        from torchmetrics.functional.classification import multiclass_calibration_error

        # torchmetrics puts a confidence of exactly 1 into a bin of its own.
        shown = torch.as_tensor(self.probabilities.clip(max=1 - 1e-6))
        labels = torch.as_tensor(self.labels)
        error = multiclass_calibration_error(shown, labels, shown.shape[1], n_bins=BINS)
        return float(error)

    def figures(self) -> dict[str, float | None]:
        """The plain numbers."""
        return {
            "accuracy": self.accuracy,
            "top5": self.top5,
            "nll": self.nll,
            "brier": self.brier,
            "ece": self.ece,
            "confidence": self.confidence,
        }

    def summary(self) -> dict[str, Any]:
        """All figures and bins, for JSON."""
        bins = self.reliability
        spread = np.sqrt(self.accuracy * (1 - self.accuracy) / len(self.labels))
        return {
            "images": len(self.labels),
            **self.figures(),
            "accuracy_error": float(spread),
            "reliability": {
                "confidence": bins.confidence.tolist(),
                "accuracy": bins.accuracy.tolist(),
                "count": bins.count.tolist(),
            },
            "confusion": self.confusion.tolist(),
        }


@dataclass(frozen=True)
class AgainstT:
    """Accuracy and mean confidence of p(y|x_t) at several noise levels; each (levels,)."""

    times: list[int]
    accuracy: np.ndarray
    confidence: np.ndarray
    images: int

    def summary(self) -> dict[str, Any]:
        return {
            "times": self.times,
            "accuracy": self.accuracy.tolist(),
            "confidence": self.confidence.tolist(),
            "images": self.images,
        }


def evaluate_classification(
    model: Model, data: ImageSet, *, ensemble: int = 0, purify: int = 0, seed: int = 0
) -> Classification:
    """Classify the labelled images of `data`; of several processes, each takes its share.

    `ensemble` and `purify` are those of a `Predictor`; where they draw noise, the image at
    position i has the seed `seed + i`.
    """
    known = _labelled(data)
    if ensemble or purify:
        fitting(model, data)
        predictor = Predictor(model, ensemble, purify)
    rows: list[np.ndarray] = []
    for positions in _parts(known):
        images = data.images(positions)
        if ensemble or purify:
            pixels = (pixels_of(images).to(model.device) + 1) / 2
            with torch.no_grad():
                log_p = predictor(pixels, (seed + positions).tolist())
            rows += list(log_p.exp().cpu().numpy())
        else:
            rows += list(predict_proba(model, images))
    return Classification.of(np.stack(gather(rows)), data.labels[known])


def accuracy_against_t(
    model: Model, data: ImageSet, times: Sequence[int], *, seed: int = 0
) -> AgainstT:
    """Classify x_t as what it is, an image at noise level t, for several t.

    The image at position i meets the noise of seed `seed + i`, the same at every t.
    """
    if not model.classes:
        raise ModelError("This model was trained without labels, so it cannot classify.")
    last = model.diffusion.steps - 1
    if not times or not all(0 <= t <= last for t in times):
        raise ConfigError(f"The noise levels must be 0 to {last}, and some; got {list(times)}.")
    known = _labelled(data)
    rows: list[np.ndarray] = []
    for positions in _parts(known):
        x = model.codec.encode(data.images(positions)).to(model.device)
        generators = [torch.Generator().manual_seed(seed + int(i)) for i in positions]
        noise = initial_noise(generators, x.shape[1:]).to(x)
        labels = torch.as_tensor(data.labels[positions], device=x.device)
        columns = []
        with torch.no_grad():
            for t in times:
                joint = model.net(model.diffusion.noise(x, t, noise), t)
                confidence, predicted = joint.logits.softmax(dim=1).max(dim=1)
                columns.append(torch.stack([(predicted == labels).to(x), confidence]))
        rows += list(torch.stack(columns).permute(2, 1, 0).cpu().numpy())
    accuracy, confidence = np.stack(gather(rows)).mean(axis=0, dtype=np.float64)
    return AgainstT(list(times), accuracy, confidence, len(known))


def reliability(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> Reliability:
    """Images (N, C) sorted by confidence into `bins`, the last of which includes 1."""
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    places = np.digitize(confidence, inner)
    count = np.bincount(places, minlength=bins)
    filled = count.clip(min=1)
    return Reliability(
        confidence=np.bincount(places, confidence, minlength=bins) / filled,
        accuracy=np.bincount(places, right, minlength=bins) / filled,
        count=count,
    )


def _labelled(data: ImageSet) -> np.ndarray:
    """Positions of the images whose class is known."""
    known = np.flatnonzero(data.labels >= 0)
    if len(known) == 0:
        raise DataError(f"{data.name} has no labelled images to measure accuracy on.")
    return known


def _parts(positions: np.ndarray) -> list[np.ndarray]:
    """What this process works on, in parts: large sets do not fit into memory."""
    mine = np.array(share(positions.tolist()), dtype=int)
    return [mine[start : start + AT_ONCE] for start in range(0, len(mine), AT_ONCE)]
