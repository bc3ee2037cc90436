"""Figures of p(y|x) and true classes: how often it is right, and whether it knows how often.

accuracy    the share of images whose most probable class is the true one
top-5       the share whose true class is among the five most probable
NLL         mean of -log p(true class), in nats
Brier       mean over images of the sum over classes of (p - [class is true])^2: 0 to 2
ECE         mean gap between confidence (the largest p) and accuracy, over equal bins of
            confidence, each weighted by its images (Guo et al. 2017); 15 bins
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from egc.metrics.base import fields_of

BINS = 15
"""of confidence"""
MIN_PROBABILITY = float(np.finfo(np.float32).tiny)
"""those below count as it: single precision cannot tell them from 0"""


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

    probabilities: np.ndarray
    """p(y|x); (N, C)"""
    labels: np.ndarray
    """true class indices; (N,)"""

    @cached_property
    def accuracy(self) -> float:
        return float((self.probabilities.argmax(axis=1) == self.labels).mean())

    @cached_property
    def confusion(self) -> np.ndarray:
        """Counts, true class by predicted class; (C, C)."""
        classes = self.probabilities.shape[1]
        counts = np.zeros((classes, classes), dtype=int)
        np.add.at(counts, (self.labels, self.probabilities.argmax(axis=1)), 1)
        return counts

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
        return float(-np.log(right.astype(np.float64).clip(min=MIN_PROBABILITY)).mean())

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
        return self.reliability.error

    def numbers(self) -> dict[str, float | None]:
        """The plain figures."""
        names = ("accuracy", "top5", "nll", "brier", "ece", "confidence")
        return {name: getattr(self, name) for name in names}

    def summary(self) -> dict[str, Any]:
        spread = np.sqrt(self.accuracy * (1 - self.accuracy) / len(self.labels))
        return {
            "images": len(self.labels),
            **self.numbers(),
            "accuracy_error": float(spread),
            "reliability": fields_of(self.reliability),
            "confusion": self.confusion.tolist(),
        }


def reliability(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> Reliability:
    """Images (N, C) sorted by confidence into `bins`, the last of which includes 1."""
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    places = np.digitize(confidence, np.linspace(0, 1, bins + 1)[1:-1])
    count = np.bincount(places, minlength=bins)
    filled = count.clip(min=1)
    return Reliability(
        confidence=np.bincount(places, confidence, minlength=bins) / filled,
        accuracy=np.bincount(places, right, minlength=bins) / filled,
        count=count,
    )
