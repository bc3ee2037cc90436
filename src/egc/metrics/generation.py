"""How close generated images come to real ones.

They are compared with held-out images (see `distances`). Beside the figures stands the
`baseline`, that of as many real training images. Labels are asked for in the proportions of the
training images.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from egc.config.parse import key, plain
from egc.data.imageset import ImageSet, Splits
from egc.errors import ConfigError, DataError, suggest
from egc.metrics.base import Column, Measured, Metric, Row, percent
from egc.metrics.distances import (
    Figures,
    check_pictures,
    check_same,
    choose_features,
    compare_statistics,
    known_statistics,
)
from egc.metrics.frechet import FeatureNetwork, fingerprint, statistics_of
from egc.metrics.judge import JudgeFeatures
from egc.metrics.sampled import Drawing, draw
from egc.model import Model
from egc.registry import metrics
from egc.report.figures import COLOURS, canvas
from egc.report.grid import image_grid
from egc.report.page import Section
from egc.tasks.sample import Samples

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

MAX_ROWS, COLUMNS = 10, 10
"""of samples that are shown"""
NUMBER = "{:.4g}".format
SHOWN = {
    **dict.fromkeys(("fid", "frechet", "kid", "inception_score"), NUMBER),
    **dict.fromkeys(("precision", "recall", "agreement"), percent),
}
"""figures of the table, and how they are written"""
SHARES = ("precision", "recall", "density", "coverage")
SHARES_TEXT = "Shares of images that could be of the other set, by their neighbours."


@dataclass(frozen=True)
class Generation(Measured):
    """What was sampled, and how close it comes to real images."""

    compared: Figures
    """samples against the reference"""
    baseline: Figures | None
    """as many training images, or all, against the reference; None if that is the training set
    itself, or if those are stored as latents"""
    agreement: float | None
    """share of the images that the judge assigns to the class asked for"""
    judge_accuracy: float | None
    """of the judge, on training images it was not trained on"""
    drawing: Drawing
    """how the images were drawn"""
    reference: str
    """what they were compared with"""
    preview: Samples
    """the first of them"""
    folder: Path | None
    """where the images are kept"""

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "measured_with": self.compared.kind,
            "feature_weights": self.compared.weights[:12],
            **self.compared.summary(),
            "baseline": self.baseline.summary() if self.baseline else None,
            "samples": self.compared.counts[0],
            "reference": self.reference,
            "reference_images": self.compared.counts[1],
            "baseline_images": self.baseline.counts[0] if self.baseline else None,
            **self.drawing.summary(),
        }
        if self.compared.kind == "judge":
            found |= {"agreement": self.agreement, "judge_accuracy": self.judge_accuracy}
        return found

    def rows(self) -> list[Row]:
        found = {**self.compared.summary(), "agreement": self.agreement}
        real = self.baseline.summary() if self.baseline else {}
        lines = []
        for name, value in found.items():
            show = SHOWN.get(name.removeprefix(self.compared.prefix))
            if show is not None and value is not None:
                beside = f" (real training images {show(real[name])})" if real.get(name) else ""
                lines.append((name.replace("_", " "), f"{show(value)}{beside}"))
        made, reference = self.compared.counts
        count = f"{made:,} samples against {reference:,} images"
        return [*lines, ("measured on", count), ("sampled by", self._how())]

    def _how(self) -> str:
        how = self.drawing.summary()
        guided = f", guidance {how['guidance']:g}" if how["conditional"] else ", without labels"
        return f"{how['sampler']}, {how['steps']} steps{guided}, seed {how['seed']}"

    def verdict(self) -> str:
        name = "the judge's Frechet distance" if self.compared.prefix else "FID"
        real = "" if self.baseline is None else f", of real images {self.baseline.frechet:.3g}"
        agreed = ""
        if self.agreement is not None:
            agreed = f"; a judge sees the class asked for in {percent(self.agreement)}"
        return f"Of its samples {name} is {self.compared.frechet:.3g}{real}{agreed}."

    def figures(self) -> list[Section]:
        grid, about = samples_grid(self.preview)
        return [
            Section("Samples", f"{about} {self._how()}.".replace("..", "."), grid),
            Section("Samples beside real images", SHARES_TEXT, shares_figure(self)),
        ]


def evaluate_generation(
    model: Model,
    train: ImageSet,
    reference: ImageSet,
    *,
    count: int,
    features: str | FeatureNetwork = "auto",
    keep: str | Path | None = None,
    labels: str = "data",
    seed: int = 0,
    progress: bool = True,
    **how: Any,
) -> Generation:
    """Draw `count` images and compare them with `reference`, beside real ones of `train`.

    Images are drawn and measured by all processes. `keep` is a folder for them: the same call
    again goes on where it was. `labels` are asked for in the proportions of the training images
    ("data"), or not at all ("none"). `how` are keys of a `SampleConfig`.
    """
    model.needs("draws")
    if count < 2:
        raise ConfigError(f"Comparing images takes at least 2 of them; got count = {count}.")
    check_pictures(*([train] if train.autoencoder is None else []), reference)
    shape = (model.codec.image_size, model.codec.channels)
    check_same("The model's images", shape, reference)
    proportions = class_proportions(model, train, labels)
    network = choose_features(features, train, model.device)
    known = known_statistics(network, reference, progress)
    drawing = Drawing.of(model, proportions=proportions, seed=seed, **how)
    root = None if keep is None else Path(keep)
    chunks = draw(model, count, root, drawing=drawing, progress=progress)
    first = next(chunks)
    samples = statistics_of(network, (chunk.images for chunk in chain([first], chunks)), count)
    agreement = accuracy = None
    if isinstance(network, JudgeFeatures) and samples.probabilities is not None:
        accuracy = network.accuracy
        if proportions is not None and model.classes == train.classes:
            agreement = float((samples.probabilities.argmax(1) == drawing.labels(count)).mean())
    baseline = None
    if train.autoencoder is None and fingerprint(train) != fingerprint(reference):
        some = train.subset(np.random.default_rng(seed).permutation(len(train))[:count])
        real = known_statistics(network, some, progress)
        baseline = compare_statistics(network, real, known, seed)
    return Generation(
        compared=compare_statistics(network, samples, known, seed),
        baseline=baseline,
        agreement=agreement,
        judge_accuracy=accuracy,
        drawing=drawing,
        reference=reference.name,
        preview=first,
        folder=drawing.folder(root) if root else None,
    )


def class_proportions(model: Model, train: ImageSet, labels: str = "data") -> np.ndarray | None:
    """How often each class is asked for; None: images are drawn without labels."""
    ways = ("data", "none")
    if labels not in ways:
        raise ConfigError(f"Labels cannot be asked for by {labels!r}. {suggest(labels, ways)}")
    guided = model.net.classifies or model.net.takes_label
    if labels == "none" or not model.classes or not guided:
        return None
    known = train.labels[train.labels >= 0]
    if not len(known):
        return np.full(len(model.classes), 1 / len(model.classes))
    if train.classes != model.classes:
        raise DataError(
            f"{train.name} has other classes than the model ({len(train.classes)} and "
            f'{len(model.classes)}); use the data it was trained on, or labels="none".'
        )
    return np.bincount(known, minlength=len(model.classes)) / len(known)


@metrics.register("generation")
class GenerationMetric(Metric):
    title = "how close samples come to real images"
    finds = ("fid", "kid", "frechet", "judge", "precision", "recall", "inception_score", "samples")
    requires = ("draws",)

    @dataclass(frozen=True)
    class Options(Metric.Options):
        count: int = key(1000, "samples to make", low=2)
        features: Literal["auto", "inception", "judge"] = key(
            "auto", "what distances are measured in; auto: a judge for small or grey images"
        )
        keep: str | None = key(None, "directory to keep the samples in, and to go on from")

    def measure(self, model: Model, data: Splits, options: Options, progress: bool) -> Generation:
        asked = model.config.sample.guidance > 0 or model.net.takes_label
        return evaluate_generation(
            model, data.train, data.test, labels="data" if asked else "none", progress=progress,
            **plain(options),
        )  # fmt: skip

    def columns(self, options: Options) -> list[Column]:
        return [
            Column("fid", "FID", "{:.1f}".format, ("fid",)),
            Column("judge_frechet", "judge-Frechet", "{:.2f}".format, ("judge_frechet",)),
            *(
                Column(name, name.removeprefix("judge_"), percent, (name,))
                for name in ("precision", "recall", "judge_precision", "judge_recall")
            ),
            Column("agreement", "judge agrees", percent, ("agreement",)),
        ]


def samples_grid(samples: Samples) -> tuple[Image, str]:
    """A row a class, with its name, or the first images where no label was asked for."""
    images, labels = samples.images, samples.labels
    known = np.unique(labels[labels >= 0])[:MAX_ROWS].tolist()
    if not known:
        grid = image_grid(images[: 5 * COLUMNS], columns=COLUMNS, cell=48, largest=128)
        return grid, "The first of the samples."
    width = min(COLUMNS, *(int((labels == index).sum()) for index in known))
    rows = np.concatenate([images[labels == index][:width] for index in known])
    names = [samples.classes[index] for index in known]
    grid = image_grid(rows, columns=width, cell=48, largest=128, labels=names)
    return grid, "The first samples of each class."


def shares_figure(found: Generation) -> Figure:
    """Precision, recall, density and coverage, beside those of real images."""
    figure = canvas(5.4, 3.2)
    axis = figure.subplots()
    sets = {"samples": found.compared, "real training images": found.baseline}
    for index, (name, figures) in enumerate(sets.items()):
        if figures is not None:
            places = np.arange(len(SHARES)) + 0.38 * (index - 0.5)
            values = [getattr(figures, share) for share in SHARES]
            axis.bar(places, values, 0.36, label=name, color=COLOURS[index])
    axis.set_xticks(range(len(SHARES)), SHARES)
    axis.set_ylabel("share of images")
    network = "a judge" if found.compared.kind == "judge" else "Inception"
    axis.set_title(f"in the features of {network}", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    return figure
