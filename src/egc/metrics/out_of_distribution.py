"""How well a model tells the images it was trained for from others.

Of two sets of scores (higher: stranger), that of familiar images and that of strange ones:

    AUROC   the chance that a strange image scores higher than a familiar one, ties counting half
    AUPR    average precision at finding the strange images: 1, or their share by guessing
    FPR95   the convention of the field, where familiar is positive: at the lowest threshold that
            accepts 95 % of the familiar images, the share of strange ones that are accepted too

Strange images are any data source, in the size and colours of the model, or made from the
familiar ones (`MADE`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from egc.config import DataConfig
from egc.config.parse import key
from egc.data.images import read_images
from egc.data.imageset import ImageSet, Splits
from egc.data.sources import open_parts, source_forms
from egc.errors import ConfigError, suggest
from egc.metrics.base import Column, Measured, Metric, Row, percent
from egc.metrics.threshold import (
    MAX_IMAGES,
    accepting,
    fit_curve,
    pick_images,
    score_images,
    shared_vectors,
)
from egc.model import Model
from egc.registry import metrics, sources
from egc.report.figures import COLOURS, INK, canvas, literal
from egc.report.page import Section
from egc.tasks.out_of_distribution import flagging_score, offered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_OTHERS = ("noise", "upside-down", "shuffled")
BINS = 50
"""of the histograms"""


def _gaussian_noise(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With the mean and deviation that the pixels of all images have."""
    values = images.mean() + images.std() * rng.standard_normal(images.shape)
    return values.round().clip(0, 255).astype(np.uint8)


def _constant(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One colour an image."""
    colours = rng.integers(0, 256, (len(images), 1, 1, images.shape[-1]), dtype=np.uint8)
    return np.broadcast_to(colours, images.shape).copy()


def _shuffled(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The pixels of each image in random places: the right colours, no shapes."""
    count, height, width, channels = images.shape
    pixels = images.reshape(count, height * width, channels)
    order = np.argsort(rng.random((count, height * width)), axis=1)
    return np.take_along_axis(pixels, order[..., None], axis=1).reshape(images.shape)


MADE: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "noise": lambda images, rng: rng.integers(0, 256, images.shape, dtype=np.uint8),
    "gaussian-noise": _gaussian_noise,
    "constant": _constant,
    # Some look familiar then, such as a 0 or an 8, and should.
    "upside-down": lambda images, rng: images[:, ::-1, ::-1].copy(),
    "shuffled": _shuffled,
}
"""name -> other images made from familiar ones"""


def other_images(model: Model, name: str, images: np.ndarray, seed: int) -> np.ndarray:
    """As many other images as familiar ones, as the model takes them."""
    if name in MADE:
        return MADE[name](images, np.random.default_rng(seed))
    if ":" not in name and name not in sources:
        known = [*MADE, *source_forms()]
        hint = suggest(name, known, most=len(known))
        raise ConfigError(f"There are no other images {name!r}. {hint}")
    size, channels = model.codec.image_size, model.codec.channels
    data = open_parts(DataConfig(name, image_size=size, channels=channels))[-1]
    return read_images(pick_images(model, data, len(images), seed), size, channels)


@dataclass(frozen=True)
class OutOfDistribution(Measured):
    """The scores of familiar images and of others."""

    name: str
    """of the familiar images"""
    familiar: dict[str, np.ndarray]
    """score -> (N,)"""
    others: dict[str, dict[str, np.ndarray]]
    """name of other images -> score -> (M,)"""
    fitted_on: str
    """the images that the curve was fitted to"""
    flagged_by: str
    """the score that the model flags images by"""

    @cached_property
    def table(self) -> dict[str, dict[str, dict[str, float]]]:
        """Name of other images -> score -> AUROC, AUPR and FPR95."""
        return {
            other: {score: detection(self.familiar[score], found[score]) for score in found}
            for other, found in self.others.items()
        }

    def summary(self) -> dict[str, Any]:
        by = self.flagged_by
        return {
            "familiar": self.name,
            "images": len(self.familiar[by]),
            "other_images": {other: len(found[by]) for other, found in self.others.items()},
            "curve_fitted_on": self.fitted_on,
            "scores": list(self.familiar),
            "others": self.table,
            "flagged_by": by,
            "flagging": {other: scores[by] for other, scores in self.table.items()},
        }

    def rows(self) -> list[Row]:
        return [
            (
                f"{other}, by {score}",
                "  ".join(f"{k.upper()} {percent(v)}" for k, v in found.items()),
            )
            for other, scores in self.table.items()
            for score, found in scores.items()
        ]

    def verdict(self) -> str:
        found = self.summary()["flagging"]
        apart = ", ".join(f"{percent(f['auroc'])} from {other}" for other, f in found.items())
        return f"It tells {self.name} from other images by {self.flagged_by}: AUROC {apart}."

    def figures(self) -> list[Section]:
        scores, found = "Scores of familiar images and of others.", "Finds, by false alarms."
        return [
            Section("Familiar and strange", scores, score_figure(self)),
            Section("Telling them apart", found, roc_figure(self)),
        ]


def detection(familiar: np.ndarray, strange: np.ndarray) -> dict[str, float]:
    """AUROC, AUPR and FPR95 of scores that should be higher for strange images."""
    return {figure.__name__: figure(familiar, strange) for figure in (auroc, aupr, fpr95)}


def auroc(familiar: np.ndarray, strange: np.ndarray) -> float:
    ordered = np.sort(familiar)
    below, equal_too = (np.searchsorted(ordered, strange, side) for side in ("left", "right"))
    return float((below + equal_too).mean() / (2 * len(familiar)))


def aupr(familiar: np.ndarray, strange: np.ndarray) -> float:
    """Precision at each threshold, weighted by the strange images it adds; ties together."""
    scores = np.concatenate([familiar, strange])
    thresholds = np.unique(scores)[::-1]
    found = len(strange) - np.searchsorted(np.sort(strange), thresholds)
    raised = len(scores) - np.searchsorted(np.sort(scores), thresholds)
    return float((found / raised * np.diff(found, prepend=0)).sum() / len(strange))


def fpr95(familiar: np.ndarray, strange: np.ndarray) -> float:
    return float((strange <= accepting(familiar)).mean())


def evaluate_out_of_distribution(
    model: Model,
    data: ImageSet,
    others: Sequence[str] = DEFAULT_OTHERS,
    *,
    fit_on: ImageSet,
    count: int | None = MAX_IMAGES,
    seed: int = 0,
) -> OutOfDistribution:
    """All scores that the model offers, on its own images and on others.

    Args:
        data: familiar images, held out from training.
        others: names in `MADE`, or data sources such as `fashion-mnist` or `folder:PATH`, of
            which the test images are taken if there are any.
        fit_on: familiar images that are not in `data`: what `curve` compares with.
        count: images of each set at most, picked at random; others as many as familiar ones.
    """
    if (count is not None and count < 1) or not others:
        raise ConfigError(
            "Telling images apart needs at least 1 image and other data; "
            f"got {count} and {list(others)}."
        )
    images = pick_images(model, data, count, seed)
    sets = {name: other_images(model, name, images, seed) for name in others}
    scores = offered(model)
    curve = None
    if "curve" in scores:
        known = pick_images(model, fit_on, MAX_IMAGES, seed)
        curve = fit_curve(model, *shared_vectors(model, known))

    def scored(pictures: np.ndarray) -> dict[str, np.ndarray]:
        return {score: score_images(model, pictures, score, curve) for score in scores}

    return OutOfDistribution(
        data.name,
        scored(images),
        {name: scored(pictures) for name, pictures in sets.items()},
        f"{min(MAX_IMAGES, len(fit_on))} images of {fit_on.name}" if curve else "",
        flagging_score(model),
    )


@metrics.register("out_of_distribution")
class OutOfDistributionMetric(Metric):
    title = "telling familiar images from others"
    finds = ("ood", "novelty", "auroc", "aupr", "fpr95", "anomaly", "outlier")

    @dataclass(frozen=True)
    class Options(Metric.Options):
        images: int | None = key(MAX_IMAGES, "test images to use", low=1, none="all")
        others: tuple[str, ...] = key(
            DEFAULT_OTHERS, f"images that should be strange: data sources, or {', '.join(MADE)}"
        )

    def measure(
        self, model: Model, data: Splits, options: Options, progress: bool
    ) -> OutOfDistribution:
        count, others = options.images, options.others
        return evaluate_out_of_distribution(
            model, data.test, others, fit_on=data.validation, count=count, seed=options.seed
        )

    def columns(self, options: Options) -> list[Column]:
        return [
            Column(f"auroc_{other}", f"AUROC, {other}", percent, ("flagging", other, "auroc"))
            for other in options.others
        ]


def score_figure(found: OutOfDistribution) -> Figure:
    """The scores of familiar images and of others, one panel a score."""
    scores = list(found.familiar)
    figure = canvas(3.4 * len(scores), 3.2)
    for axis, score in zip(figure.subplots(1, len(scores), squeeze=False)[0], scores, strict=True):
        groups = [(found.name, found.familiar[score])]
        groups += [(name, each[score]) for name, each in found.others.items()]
        every = np.concatenate([values for _, values in groups])
        bins = np.linspace(every.min(), every.max(), BINS + 1)
        if score == "curve":  # distances: those of noise are hundreds of times those of images
            bins = np.geomspace(max(every.min(), 1e-3), max(every.max(), 1e-2), BINS + 1)
            axis.set_xscale("log")
        for (name, values), colour in zip(groups, chain([INK], cycle(COLOURS)), strict=False):
            how: Any = {"weights": np.full(len(values), 1 / len(values)), "color": colour}
            axis.hist(values, bins.tolist(), alpha=0.4, label=literal(name), **how)
            axis.hist(values, bins.tolist(), histtype="step", **how)
        axis.set_xlabel(f"{score} (right: stranger)")
    figure.axes[0].set_ylabel("share of images")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def roc_figure(found: OutOfDistribution) -> Figure:
    """Strange against familiar images flagged: one panel a set of others, one line a score."""
    count = len(found.others)
    figure = canvas(3.2 * count, 3.4)
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for axis, (name, scores) in zip(panels, found.others.items(), strict=True):
        for (score, strange), colour in zip(scores.items(), cycle(COLOURS), strict=False):
            familiar = found.familiar[score]
            thresholds = np.unique(np.concatenate([familiar, strange]))[::-1]
            axis.plot(
                [0, *(1 - np.searchsorted(np.sort(familiar), thresholds) / len(familiar))],
                [0, *(1 - np.searchsorted(np.sort(strange), thresholds) / len(strange))],
                color=colour,
                label=f"{score} {auroc(familiar, strange):.3f}",
            )
        axis.set_title(literal(f"{found.name} against {name}"), fontsize=10)
        axis.set_xlabel("familiar images flagged")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8, loc="lower right", title="AUROC", title_fontsize=8)
    figure.axes[0].set_ylabel("strange images flagged")
    return figure
