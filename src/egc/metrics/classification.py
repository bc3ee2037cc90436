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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from egc.codec import unit_pixels
from egc.config.parse import key
from egc.data.imageset import ImageSet, Splits
from egc.diffusion import initial_noise
from egc.errors import ConfigError
from egc.metrics.base import Column, Measured, Metric, Row, fields_of, percent
from egc.metrics.fitting import fitting, in_shares, labelled
from egc.model import Model
from egc.registry import metrics
from egc.report.figures import ACCENT, COLOURS, INK, canvas, confusion_figure, literal
from egc.report.page import Section
from egc.tasks.predict import Predictor, predict_proba

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@dataclass(frozen=True)
class AgainstT:
    """Accuracy and mean confidence of p(y|x_t) at several noise levels; each (levels,)."""

    times: list[int]
    accuracy: np.ndarray
    confidence: np.ndarray
    images: int

    def summary(self) -> dict[str, Any]:
        return fields_of(self)


def evaluate_classification(
    model: Model, data: ImageSet, *, ensemble: int = 0, purify: int = 0, seed: int = 0
) -> Classification:
    """Classify the labelled images of `data`; of several processes, each takes its share.

    `ensemble` and `purify` are those of a `Predictor`; where they draw noise, the image at
    position i has the seed `seed + i`.
    """
    known = labelled(data)
    if ensemble or purify:
        fitting(model, data)
    predictor = Predictor(model, ensemble, purify)

    def ask(positions: np.ndarray) -> np.ndarray:
        images = data.images(positions)
        if not predictor.is_random:
            return predict_proba(model, images)
        with torch.no_grad():
            pixels = unit_pixels(images).to(model.device)
            log_p = predictor(pixels, (seed + positions).tolist())
        return log_p.exp().cpu().numpy()

    return Classification(np.stack(in_shares(known, ask)), data.labels[known])


def accuracy_against_t(
    model: Model, data: ImageSet, times: Sequence[int], *, seed: int = 0
) -> AgainstT:
    """Classify x_t as what it is, an image at noise level t, for several t.

    The image at position i meets the noise of seed `seed + i`, the same at every t.
    """
    model.needs("classifies")
    last = model.diffusion.steps - 1
    if not times or not all(0 <= t <= last for t in times):
        raise ConfigError(f"The noise levels must be 0 to {last}, and some; got {list(times)}.")
    known = labelled(data)

    def ask(positions: np.ndarray) -> np.ndarray:
        """Whether each image is named rightly, and the confidence, at each t; (N, 2, levels)."""
        x = model.codec.encode(data.images(positions)).to(model.device)
        generators = [torch.Generator().manual_seed(seed + int(i)) for i in positions]
        noise = initial_noise(generators, x.shape[1:]).to(x)
        labels = torch.as_tensor(data.labels[positions], device=x.device)
        columns = []
        with torch.no_grad():
            for t in times:
                logits = model.net.logits(model.diffusion.noise(x, t, noise), t)
                confidence, predicted = logits.softmax(dim=1).max(dim=1)
                columns.append(torch.stack([(predicted == labels).to(x), confidence], dim=1))
        return torch.stack(columns, dim=2).cpu().numpy()

    accuracy, confidence = np.stack(in_shares(known, ask)).mean(axis=0, dtype=np.float64)
    return AgainstT(list(times), accuracy, confidence, len(known))


@dataclass(frozen=True)
class Classified(Measured):
    """Classification in all the ways that were asked for."""

    ways: dict[str, Classification]
    """`plain`, and how else the model was asked"""
    against_t: AgainstT | None
    classes: list[str]

    def summary(self) -> dict[str, Any]:
        found = self.ways["plain"].summary()
        found["ways"] = {name: result.numbers() for name, result in self.ways.items()}
        if self.against_t is not None:
            found["against_t"] = self.against_t.summary()
        return found

    def rows(self) -> list[Row]:
        lines: list[Row] = []
        for way, each in self.ways.items():
            tail = "" if way == "plain" else f", {way}"
            shown = {
                "accuracy": f"{percent(each.accuracy)} of {len(each.labels):,}",
                "top-5": None if each.top5 is None else percent(each.top5),
                "NLL": f"{each.nll:.4f}",
                "Brier": f"{each.brier:.4f}",
                "ECE": f"{100 * each.ece:.2f} %",
            }
            lines += [(f"{name}{tail}", text) for name, text in shown.items() if text]
        if self.against_t is not None:
            middle = len(self.against_t.times) // 2
            t, accuracy = self.against_t.times[middle], self.against_t.accuracy[middle]
            lines.append((f"accuracy at t = {t}", percent(accuracy)))
        return lines

    def verdict(self) -> str:
        plain = self.ways["plain"]
        return (
            f"It names {percent(plain.accuracy)} of {len(plain.labels):,} images rightly, "
            f"and its confidence is off by {100 * plain.ece:.1f} points."
        )

    def figures(self) -> list[Section]:
        sure, confused = "How often it is right when so sure.", "True class by predicted class."
        confusion = confusion_figure(self.ways["plain"].confusion, self.classes)
        sections = [
            Section("Confidence", sure, reliability_figure(self.ways)),
            Section("Confusion", confused, confusion),
        ]
        if self.against_t is not None:
            text = "Naming noised images as what they are."
            sections.append(Section("Against noise", text, against_t_figure(self.against_t)))
        return sections


@metrics.register("classification")
class ClassificationMetric(Metric):
    title = "accuracy and calibration"
    finds = ("accuracy", "ece", "calibration", "nll", "brier", "top5", "confusion")
    requires = ("classifies",)
    needs_labels = True

    @dataclass(frozen=True)
    class Options(Metric.Options):
        images: int | None = key(None, "test images to use", low=1, none="all")
        ensemble: int = key(0, "average p(y|x) over so many draws of noise; 0: not", low=0)
        purify: int = key(0, "noise level to clean images from before naming them; 0: not", low=0)
        levels: int = key(9, "noise levels to measure accuracy at; 0: none", low=0)

    def measure(self, model: Model, data: Splits, options: Options, progress: bool) -> Classified:
        test = data.test
        fitting(model, test)
        if options.images is not None:
            test = test.subset(labelled(test, options.images))
        seed, ensemble, purify = options.seed, options.ensemble, options.purify
        ways = {"plain": evaluate_classification(model, test)}
        if ensemble:
            averaged = evaluate_classification(model, test, ensemble=ensemble, seed=seed)
            ways[f"ensemble of {ensemble}"] = averaged
        if purify:
            purified = evaluate_classification(model, test, purify=purify, seed=seed)
            ways[f"purified from {purify}"] = purified
        against = None
        if options.levels and model.net.denoises:
            levels = np.linspace(0, model.diffusion.steps - 1, options.levels)
            times = levels.round().astype(int).tolist()
            against = accuracy_against_t(model, test, times, seed=seed)
        return Classified(ways, against, model.classes)

    def columns(self, options: Options) -> list[Column]:
        shown = {"accuracy": "accuracy", "ece": "ECE"}
        return [Column(name, title, percent, (name,)) for name, title in shown.items()]


def reliability_figure(results: Mapping[str, Classification]) -> Figure:
    """Accuracy by confidence, one colour a way of asking; below, how many images are where."""
    from scipy.special import betaincinv

    figure = canvas(4.4, 4.8)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    for (name, result), colour in zip(results.items(), cycle(COLOURS), strict=False):
        bins, filled = result.reliability, result.reliability.count > 0
        accuracy, count = bins.accuracy[filled], bins.count[filled]
        # Of a few images nothing is sure: Jeffreys intervals, 95 %, say how little.
        right, wrong = accuracy * count + 0.5, (1 - accuracy) * count + 0.5
        low, high = (betaincinv(right, wrong, edge) for edge in (0.025, 0.975))
        upper.errorbar(
            bins.confidence[filled],
            accuracy,
            np.stack([accuracy - low, high - accuracy]).clip(min=0),
            fmt="o",
            markersize=4,
            elinewidth=1,
            color=colour,
            label=f"{literal(name)}: ECE {result.ece:.1%}",
        )
        lower.stairs(bins.count, np.linspace(0, 1, len(bins.count) + 1), color=colour)
    upper.set(ylabel="accuracy", xlim=(0, 1.01), ylim=(-0.02, 1.03))
    upper.grid(alpha=0.25)
    upper.legend(frameon=False, fontsize=9)
    lower.set_yscale("symlog", linthresh=1)
    lower.set(xlabel="confidence", ylabel="images")
    return figure


def against_t_figure(result: AgainstT) -> Figure:
    """Accuracy and confidence of p(y|x_t) as noise grows."""
    figure = canvas(5.2, 4.8)
    axis = figure.subplots()
    for name, colour in (("accuracy", ACCENT), ("confidence", COLOURS[1])):
        values = getattr(result, name)
        axis.plot(result.times, values, "o-", color=colour, markersize=3, label=name)
    label = "share of images, mean confidence"
    axis.set(xlabel="noise level t", ylabel=label, ylim=(0, 1.02))
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return figure
