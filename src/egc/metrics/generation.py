"""How close generated images come to real ones.

Two sets of images are compared in the features of a frozen network (see `frechet`): Inception, or,
for small or grey images, a judge trained on the real training images. Figures of the judge carry
`judge` in their names: they are not FID, and are comparable only where judge and data are the
same. All figures depend on how many images are compared; beside them stands the `baseline`, that
of as many real training images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from egc.data.imageset import ImageSet
from egc.errors import ConfigError, DataError, ModelError, suggest
from egc.distributed import from_main, is_main
from egc.metrics.drawing import Drawing, draw
from egc.metrics.frechet import (
    FeatureNetwork,
    Statistics,
    fingerprint,
    gaussian_distance,
    inception_score,
    kernel_distance,
    load_statistics,
    neighbourhoods,
    reference_path,
    statistics_of,
    store_statistics,
)
from egc.metrics.inception import Inception
from egc.metrics.judge import JudgeFeatures
from egc.model import Model
from egc.report.progress import progress_line

KINDS = ("auto", "inception", "judge")
AT_ONCE = 256
"""images that are read together"""
INCEPTION_SIDE = 32
"""smaller images say little to a network for 299 x 299"""


@dataclass(frozen=True)
class Figures:
    """How far one set of images is from another, and by which features."""

    kind: str
    """"inception" or "judge\""""
    prefix: str
    """before the names of figures in `summary`"""
    weights: str
    """the hash of the network's weights"""
    counts: tuple[int, int]
    """images compared"""
    frechet: float
    kid: float
    kid_std: float
    """over subsets"""
    precision: float
    """share of the first set that could be of the second"""
    recall: float
    """share of the second set that could be of the first"""
    density: float
    coverage: float
    inception_score: float | None = None
    """of the first set; None without the logits of Inception"""
    inception_score_std: float | None = None
    """over splits"""

    def summary(self) -> dict[str, Any]:
        """Figures by names that nobody takes for others: only Inception gives `fid`."""
        frechet = "frechet" if self.prefix else "fid"
        named: dict[str, Any] = {f"{self.prefix}{frechet}": self.frechet}
        for name in ("kid", "kid_std", "precision", "recall", "density", "coverage"):
            named[f"{self.prefix}{name}"] = getattr(self, name)
        if self.inception_score is not None:
            named["inception_score"] = self.inception_score
            named["inception_score_std"] = self.inception_score_std
        return named


@dataclass(frozen=True)
class Generation:
    """What was drawn, and how close it comes to real images."""

    figures: Figures
    """drawn images against the reference"""
    baseline: Figures | None
    """as many training images against the reference; None if that is the training set itself, or
    if those are stored as latents"""
    agreement: float | None
    """share of the images that the judge assigns to the class asked for"""
    judge_accuracy: float | None
    """of the judge, on training images it was not trained on"""
    drawing: Drawing
    """how the images were drawn"""
    reference: str
    """what they were compared with"""
    preview: np.ndarray
    """the first of them; uint8 (n, H, W, C)"""
    preview_labels: np.ndarray
    """class indices, -1 for none; (n,)"""
    folder: Path | None
    """where the images are kept"""

    def summary(self) -> dict[str, Any]:
        """Figures that JSON can hold, with all that they depend on."""
        told: dict[str, Any] = {
            "measured_with": self.figures.kind,
            "feature_weights": self.figures.weights[:12],
            **self.figures.summary(),
            "baseline": self.baseline.summary() if self.baseline else None,
            "samples": self.figures.counts[0],
            "reference": self.reference,
            "reference_images": self.figures.counts[1],
            "baseline_images": self.baseline.counts[0] if self.baseline else None,
            **self.drawing.summary(),
        }
        if self.figures.kind == "judge":
            told |= {"agreement": self.agreement, "judge_accuracy": self.judge_accuracy}
        return told


def evaluate_generation(
    model: Model,
    train: ImageSet,
    reference: ImageSet,
    *,
    count: int,
    features: str | FeatureNetwork = "auto",
    keep: Path | None = None,
    labels: str = "data",
    seed: int = 0,
    steps: int | None = None,
    sampler: str | None = None,
    guidance: float | None = None,
    cfg: float | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> Generation:
    """Draw `count` images and compare them with `reference`, beside real ones of `train`.

    Images are drawn and measured by all processes. `keep` is a folder for them: the same call
    again goes on where it was. `labels` are asked for in the proportions of the training images
    ("data"), as often each ("even"), or not at all ("none").
    """
    if not model.net.draws:
        raise ModelError("This model is a plain classifier: there are no images to measure.")
    if count < 2:
        raise ConfigError(f"Comparing images takes at least 2 of them; got count = {count}.")
    _check_pictures(*([train] if train.autoencoder is None else []), reference)
    shape = (model.codec.image_size, model.codec.channels)
    _check_same("The model's images", shape, reference.name, _shape(reference))
    proportions = class_proportions(model, train, labels)
    network = choose_features(features, train, model.device)
    known = _known(network, reference, progress)
    drawing = Drawing.of(
        model,
        proportions=proportions,
        seed=seed,
        steps=steps,
        sampler=sampler,
        guidance=guidance,
        cfg=cfg,
    )
    chunks = draw(model, count, keep, drawing=drawing, batch_size=batch_size, progress=progress)
    first = next(chunks)
    drawn = statistics_of(network, (chunk.images for chunk in chain([first], chunks)), count)
    agreement = accuracy = None
    if isinstance(network, JudgeFeatures) and drawn.probabilities is not None:
        accuracy = network.accuracy
        if proportions is not None and model.classes == train.classes:
            agreement = float((drawn.probabilities.argmax(1) == drawing.labels(count)).mean())
    return Generation(
        figures=_compared(network, drawn, known, seed),
        baseline=_baseline(network, train, reference, known, count, seed, progress),
        agreement=agreement,
        judge_accuracy=accuracy,
        drawing=drawing,
        reference=reference.name,
        preview=first.images[:100],
        preview_labels=first.labels[:100],
        folder=drawing.folder(keep) if keep else None,
    )


def compare_sets(
    first: ImageSet | np.ndarray,
    second: ImageSet | np.ndarray,
    features: str | FeatureNetwork = "inception",
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: bool = True,
) -> Figures:
    """How far the first set of images is from the second, which is taken for the real one."""
    sets = [_as_set(images) for images in (first, second)]
    _check_pictures(*sets)
    if isinstance(features, str) and features != "inception":
        raise ConfigError(
            f'Sets are compared in features="inception", or in a network of features such as '
            f"JudgeFeatures.train_on(data); got {features!r}."
        )
    network = Inception(device=device) if isinstance(features, str) else features
    measured, known = (_known(network, data, progress) for data in sets)
    return _compared(network, measured, known, seed)


def choose_features(
    features: str | FeatureNetwork, train: ImageSet, device: torch.device | str = "cpu"
) -> FeatureNetwork:
    """The network to compare in: "auto" takes a judge for labelled images, small or grey."""
    if not isinstance(features, str):
        return features
    if features not in KINDS:
        raise ConfigError(f"There are no features {features!r}. {suggest(features, KINDS)}")
    labelled = train.autoencoder is None and bool((train.labels >= 0).any())
    small = train.channels == 1 or train.image_size < INCEPTION_SIDE
    if features == "judge" or (features == "auto" and labelled and small):
        return JudgeFeatures.train_on(train, device=device)
    return Inception(device=device)


def class_proportions(model: Model, train: ImageSet, labels: str) -> np.ndarray | None:
    """How often each class is asked for; None: images are drawn without labels."""
    ways = ("data", "even", "none")
    if labels not in ways:
        raise ConfigError(f"Labels cannot be asked for by {labels!r}. {suggest(labels, ways)}")
    if labels == "none" or not model.classes or not model.net.has_energy:
        return None
    known = train.labels[train.labels >= 0]
    if labels == "even" or not len(known):
        return np.full(len(model.classes), 1 / len(model.classes))
    if train.classes != model.classes:
        raise DataError(
            f"{train.name} has other classes than the model ({len(train.classes)} and "
            f'{len(model.classes)}); use the data it was trained on, or labels="even".'
        )
    return np.bincount(known, minlength=len(model.classes)) / len(known)


def _compared(
    network: FeatureNetwork, first: Statistics | None, second: Statistics | None, seed: int
) -> Figures:
    """All figures, computed by the main process, which alone may have the stored statistics."""

    def compute() -> Figures:
        assert first is not None, "the main process has all statistics"
        assert second is not None
        kid, kid_std = kernel_distance(first.rows, second.rows, seed=seed)
        score: tuple[float | None, float | None] = (None, None)
        if network.kind == "inception" and first.probabilities is not None:
            score = inception_score(first.probabilities)
        return Figures(
            kind=network.kind,
            prefix=network.prefix,
            weights=network.digest,
            counts=(len(first), len(second)),
            frechet=gaussian_distance(first.gaussian, second.gaussian),
            kid=kid,
            kid_std=kid_std,
            inception_score=score[0],
            inception_score_std=score[1],
            **neighbourhoods(first.rows, second.rows, seed=seed),
        )

    return from_main(compute)


def _baseline(
    network: FeatureNetwork,
    train: ImageSet,
    reference: ImageSet,
    known: Statistics | None,
    count: int,
    seed: int,
    progress: bool,
) -> Figures | None:
    """The figures of `count` training images, or of all if there are not that many."""
    if train.autoencoder is not None or fingerprint(train) == fingerprint(reference):
        return None
    some = np.random.default_rng(seed).permutation(len(train))[:count]
    return _compared(network, _known(network, train.subset(some), progress), known, seed)


def _known(network: FeatureNetwork, data: ImageSet, progress: bool) -> Statistics | None:
    """The statistics of real images, measured once; stored ones only on the main process."""
    path = from_main(lambda: reference_path(network, data))
    stored = load_statistics(path) if is_main() else None
    if from_main(lambda: stored is not None):
        return stored
    found = statistics_of(network, _chunks(data, progress), len(data))
    store_statistics(path, found)
    return found


def _chunks(data: ImageSet, progress: bool) -> Iterator[np.ndarray]:
    with progress_line(f"Features of {data.name}", len(data), show=progress and is_main()) as line:
        for start in range(0, len(data), AT_ONCE):
            images = data.images(np.arange(start, min(start + AT_ONCE, len(data))))
            line.advance(len(images))
            yield images


def _as_set(images: ImageSet | np.ndarray) -> ImageSet:
    return images if isinstance(images, ImageSet) else ImageSet.from_arrays(images)


def _check_pictures(*sets: ImageSet) -> None:
    """Pictures of one kind, and enough of them for a covariance."""
    for data in sets:
        if len(data) < 2:
            raise DataError(
                f"{data.name} has {len(data)} images; comparing takes at least 2 in each set."
            )
        if data.autoencoder is not None:
            raise DataError(
                f"{data.name} holds latents, not pictures; give the pictures they were made from."
            )
    _check_same(sets[0].name, _shape(sets[0]), sets[-1].name, _shape(sets[-1]))


def _shape(data: ImageSet) -> tuple[int, int]:
    return data.image_size, data.channels


def _check_same(name: str, shape: tuple[int, int], other: str, expected: tuple[int, int]) -> None:
    if shape != expected:
        raise DataError(
            f"{name} and {other} do not fit together: {shape[0]} px with {shape[1]} channels "
            f"against {expected[0]} px with {expected[1]}; bring them to one size and colour."
        )
