"""How far one set of images is from another.

They are compared in the features of a frozen network (see `frechet`): Inception, or, for small or
grey images, a judge trained on the real training images. Figures of the judge carry `judge` in
their names: they are not FID, and are comparable only where judge and data are the same. All
figures depend on how many images are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from egc.data.files import data_home
from egc.data.imageset import ImageSet
from egc.distributed import from_main, is_main
from egc.errors import ConfigError, DataError, suggest
from egc.metrics.fitting import AT_ONCE
from egc.metrics.frechet import (
    FeatureNetwork,
    Statistics,
    fingerprint,
    gaussian_distance,
    inception_score,
    kernel_distance,
    load_statistics,
    neighbourhoods,
    statistics_of,
    store_statistics,
)
from egc.metrics.inception import Inception
from egc.metrics.judge import JudgeFeatures
from egc.report.progress import progress_line

FEATURES = ("auto", "inception", "judge")
INCEPTION_SIDE = 32
"""smaller images say little to a network for 299 x 299"""


@dataclass(frozen=True)
class Figures:
    """How far one set of images is from another, and by which features."""

    kind: str
    """of the features, as are the next two: see `FeatureNetwork`"""
    prefix: str
    weights: str
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
        names = ("frechet", "kid", "kid_std", "precision", "recall", "density", "coverage")
        named = {f"{self.prefix}{name}": getattr(self, name) for name in names}
        if not self.prefix:
            named = {"fid": named.pop("frechet"), **named}
        if self.inception_score is not None:
            named["inception_score"] = self.inception_score
            named["inception_score_std"] = self.inception_score_std
        return named


def compare_sets(
    first: ImageSet | np.ndarray,
    second: ImageSet | np.ndarray,
    features: str | FeatureNetwork = "inception",
    seed: int = 0,
) -> Figures:
    """How far the first set of images is from the second, which is taken for the real one."""
    sets = [x if isinstance(x, ImageSet) else ImageSet.from_arrays(x) for x in (first, second)]
    check_pictures(*sets)
    if isinstance(features, str) and features != "inception":
        raise ConfigError(
            f'Sets are compared in features="inception", or in a network of features such as '
            f"JudgeFeatures.train_on(data); got {features!r}."
        )
    network = Inception() if isinstance(features, str) else features
    measured, known = (known_statistics(network, data, progress=True) for data in sets)
    return compare_statistics(network, measured, known, seed)


def choose_features(
    features: str | FeatureNetwork, train: ImageSet, device: torch.device | str = "cpu"
) -> FeatureNetwork:
    """The network to compare in: "auto" takes a judge for labelled images, small or grey."""
    if not isinstance(features, str):
        return features
    if features not in FEATURES:
        raise ConfigError(f"There are no features {features!r}. {suggest(features, FEATURES)}")
    labelled = train.autoencoder is None and bool((train.labels >= 0).any())
    small = train.channels == 1 or train.image_size < INCEPTION_SIDE
    if features == "judge" or (features == "auto" and labelled and small):
        return JudgeFeatures.train_on(train, device=device)
    return Inception(device=device)


def compare_statistics(
    network: FeatureNetwork, first: Statistics | None, second: Statistics | None, seed: int
) -> Figures:
    """All figures, computed by the main process, which alone may have the stored statistics."""

    def compute() -> Figures:
        assert first is not None, "the main process has all statistics"
        assert second is not None
        kid, kid_std = kernel_distance(first.rows, second.rows, seed=seed)
        found: dict[str, float] = neighbourhoods(first.rows, second.rows, seed=seed)
        if network.kind == "inception" and first.probabilities is not None:
            score, score_std = inception_score(first.probabilities)
            found |= {"inception_score": score, "inception_score_std": score_std}
        return Figures(
            kind=network.kind,
            prefix=network.prefix,
            weights=network.digest,
            counts=(len(first), len(second)),
            frechet=gaussian_distance(first.gaussian, second.gaussian),
            kid=kid,
            kid_std=kid_std,
            **found,
        )

    return from_main(compute)


def known_statistics(network: FeatureNetwork, data: ImageSet, progress: bool) -> Statistics | None:
    """The statistics of real images, measured once; stored ones only on the main process."""
    # Named after what they are a function of.
    name = from_main(lambda: f"{fingerprint(data)[:20]}-{network.digest[:20]}.npz")
    path = data_home() / "reference" / name
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


def check_pictures(*sets: ImageSet) -> None:
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
    check_same(sets[0].name, (sets[0].image_size, sets[0].channels), sets[-1])


def check_same(name: str, shape: tuple[int, int], other: ImageSet) -> None:
    """Images of a size and number of channels, refused unless those of the other are the same."""
    if shape != (other.image_size, other.channels):
        raise DataError(
            f"{name} and {other.name} do not fit together: {shape[0]} px with {shape[1]} channels "
            f"against {other.image_size} px with {other.channels}; bring them to one size and "
            "colour."
        )
