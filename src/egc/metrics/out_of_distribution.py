"""How well a model tells the images it was trained for from others.

Of two sets of scores (higher: stranger), that of familiar images and that of novel ones:

    AUROC   the chance that a novel image scores higher than a familiar one, ties counting half
    AUPR    average precision at finding the novel images: 1, or their share by guessing
    FPR95   the convention of the field, where familiar is positive: at the lowest threshold that
            accepts 95 % of the familiar images, the share of novel ones that are accepted too

Other images are any data source, in the size and colours of the model, or made from the familiar
ones (`MADE`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from egc.config import DataConfig
from egc.data.images import read_images
from egc.data.imageset import ImageSet
from egc.data.sources import KINDS, NAMED, open_parts
from egc.errors import ConfigError, DataError, ModelError, suggest
from egc.model import CONFIG_FILE, Model
from egc.distributed import share, gather
from egc.hub import find_model
from egc.tasks.out_of_distribution import (
    Curve,
    curve_vectors,
    flagging_score,
    ood_scores,
    offered,
)

SHARE = 0.95
"""of familiar images that a threshold accepts"""
MOST = 1000
"""images that a curve is fitted to, and a threshold set with"""
FOLDS = 10
"""parts that are measured by a fit to the others"""
LEAST = 20
"""images below which a threshold for 95 % means nothing"""


def _noise(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, images.shape, dtype=np.uint8)


def _gaussian_noise(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With the mean and deviation that the pixels of all images have."""
    values = images.mean() + images.std() * rng.standard_normal(images.shape)
    return values.round().clip(0, 255).astype(np.uint8)


def _constant(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One colour an image."""
    colours = rng.integers(0, 256, (len(images), 1, 1, images.shape[-1]), dtype=np.uint8)
    return np.broadcast_to(colours, images.shape).copy()


def _upside_down(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turned by 180 degrees. Some look familiar then, such as a 0 or an 8, and should."""
    return images[:, ::-1, ::-1].copy()


def _shuffled(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The pixels of each image in random places: the right colours, no shapes."""
    count, height, width, channels = images.shape
    pixels = images.reshape(count, height * width, channels)
    order = np.argsort(rng.random((count, height * width)), axis=1)
    return np.take_along_axis(pixels, order[..., None], axis=1).reshape(images.shape)


MADE: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "noise": _noise,
    "gaussian-noise": _gaussian_noise,
    "constant": _constant,
    "upside-down": _upside_down,
    "shuffled": _shuffled,
}
"""name -> other images made from familiar ones"""
DEFAULT_OTHERS = ("noise", "upside-down", "shuffled")


@dataclass(frozen=True)
class Novelty:
    """The scores of familiar images and of others."""

    name: str
    """of the familiar images"""
    familiar: dict[str, np.ndarray]
    """score -> (N,)"""
    others: dict[str, dict[str, np.ndarray]]
    """name of other images -> score -> (M,)"""
    fitted_on: str
    """the images that the curve was fitted to"""

    def table(self) -> dict[str, dict[str, dict[str, float]]]:
        """name of other images -> score -> AUROC, AUPR and FPR95."""
        return {
            other: {score: detection(self.familiar[score], found[score]) for score in found}
            for other, found in self.others.items()
        }

    def summary(self) -> dict[str, Any]:
        return {
            "familiar": self.name,
            "images": len(next(iter(self.familiar.values()))),
            "other_images": {
                other: len(next(iter(found.values()))) for other, found in self.others.items()
            },
            "curve_fitted_on": self.fitted_on,
            "scores": list(self.familiar),
            "others": self.table(),
        }


def detection(familiar: np.ndarray, novel: np.ndarray) -> dict[str, float]:
    """AUROC, AUPR and FPR95 of scores that should be higher for novel images."""
    return {
        "auroc": auroc(familiar, novel),
        "aupr": aupr(familiar, novel),
        "fpr95": fpr95(familiar, novel),
    }


def auroc(familiar: np.ndarray, novel: np.ndarray) -> float:
    ordered = np.sort(familiar)
    below, equal_too = (np.searchsorted(ordered, novel, side) for side in ("left", "right"))
    return float((below + equal_too).mean() / (2 * len(familiar)))


def aupr(familiar: np.ndarray, novel: np.ndarray) -> float:
    """Precision at each threshold, weighted by the novel images it adds; equal scores together."""
    scores = np.concatenate([familiar, novel])
    thresholds = np.unique(scores)[::-1]
    found = len(novel) - np.searchsorted(np.sort(novel), thresholds)
    raised = len(scores) - np.searchsorted(np.sort(scores), thresholds)
    return float((found / raised * np.diff(found, prepend=0)).sum() / len(novel))


def fpr95(familiar: np.ndarray, novel: np.ndarray) -> float:
    return float((novel <= accepting(familiar)).mean())


def accepting(scores: np.ndarray, share: float = SHARE) -> float:
    """The lowest of the scores that at least this share of them do not exceed."""
    needed = np.arange(1, len(scores) + 1) / len(scores) >= share
    return float(np.sort(scores)[needed.argmax()])


def evaluate_novelty(
    model: Model,
    data: ImageSet,
    others: Sequence[str] = DEFAULT_OTHERS,
    *,
    fit_on: ImageSet,
    count: int = MOST,
    seed: int = 0,
) -> Novelty:
    """All scores that the model offers, on its own images and on others.

    Args:
        data: familiar images, held out from training.
        others: names in `MADE`, or data sources such as `fashion-mnist` or `folder:PATH`, of
            which the test images are taken if there are any.
        fit_on: familiar images that are not in `data`: what `curve` compares with.
        count: images of each set at most, picked at random; others as many as familiar ones.
    """
    if count < 1 or not others:
        raise ConfigError(
            f"Novelty needs at least 1 image and other data; got {count} and {list(others)}."
        )
    images = _pictures(model, data, count, seed)
    sets = {name: _others(model, name, images, seed) for name in others}
    scores = offered(model)
    curve = fit_curve(model, fit_on, seed) if "curve" in scores else None

    def scored(pictures: np.ndarray) -> dict[str, np.ndarray]:
        return {score: _scored(model, pictures, score, curve) for score in scores}

    return Novelty(
        data.name,
        scored(images),
        {name: scored(pictures) for name, pictures in sets.items()},
        f"{min(MOST, len(fit_on))} images of {fit_on.name}" if curve else "",
    )


def fit_curve(model: Model, data: ImageSet, seed: int = 0) -> Curve:
    """The energies of familiar images, for the score `curve`."""
    vectors, classes = _vectors(model, _pictures(model, data, MOST, seed))
    return Curve.fit(vectors, classes, max(1, len(model.classes)))


def novelty_threshold(model: Model, validation: ImageSet) -> dict[str, Any]:
    """The threshold that 95 % of validation images stay below, to store with the model.

    Where the score is fitted to familiar images, each tenth of them is measured by a fit to the
    others, as new images will be; what is stored is the fit to all.
    """
    if len(validation) < LEAST:
        raise DataError(
            f"A novelty threshold needs {LEAST} validation images or more; "
            f"{validation.name} has {len(validation)}."
        )
    images = _pictures(model, validation, MOST, seed=0)
    score = flagging_score(model)
    extra: dict[str, Any] = {}
    if score == "curve":
        count = max(1, len(model.classes))
        vectors, classes = _vectors(model, images)
        scores = np.empty(len(images))
        for fold in range(FOLDS):
            held = np.arange(len(images)) % FOLDS == fold
            fit = Curve.fit(vectors[~held], classes[~held], count)
            scores[held] = fit.distance(vectors[held], classes[held])
        extra = Curve.fit(vectors, classes, count).to_dict()
    else:
        scores = _scored(model, images, score, None)
    return {
        "score": score,
        "threshold": accepting(scores),
        "share": SHARE,
        "images": len(images),
        **extra,
    }


def store_threshold(path: str | Path, threshold: Mapping[str, Any]) -> Path:
    """Write a threshold into the `config.json` of a model; the file is whole at any moment."""
    folder = find_model(path)
    place = folder / CONFIG_FILE
    try:
        about = json.loads(place.read_text())
        about["facts"] = {**about.get("facts", {}), "novelty": dict(threshold)}
    except FileNotFoundError:
        raise ModelError(f"{folder} has no {CONFIG_FILE}; is it a model directory?") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(
            f"{place} is damaged ({error}); export or download the model again."
        ) from None
    try:
        part = place.with_suffix(".part")
        part.write_text(json.dumps(about, indent=2) + "\n")
        part.replace(place)
    except OSError as error:
        raise ModelError(
            f"{place} cannot be written ({error.strerror}); save the model to a place of yours."
        ) from None
    return place


def _others(model: Model, name: str, images: np.ndarray, seed: int) -> np.ndarray:
    """As many other images as familiar ones, as the model takes them."""
    if name in MADE:
        return MADE[name](images, np.random.default_rng(seed))
    if ":" not in name and name not in NAMED:
        known = [*MADE, *NAMED, *KINDS]
        hint = suggest(name, known, most=len(known))
        raise ConfigError(f"There are no other images {name!r}. {hint}")
    size, channels = model.codec.image_size, model.codec.channels
    # The digits come in one size only.
    config = (
        DataConfig(name)
        if name == "digits"
        else DataConfig(name, image_size=size, channels=channels)
    )
    data = open_parts(config)[-1]
    return read_images(_pictures(model, data, len(images), seed), size, channels)


def _pictures(model: Model, data: ImageSet, count: int, seed: int) -> np.ndarray:
    """`count` images of a set, picked at random; latents become pictures again."""
    if len(data) == 0:
        raise DataError(f"{data.name} has no images; choose another source or split.")
    picked = np.random.default_rng(seed).permutation(len(data))[:count]
    images = data.images(np.sort(picked))
    if data.autoencoder is None:
        return images
    if model.codec.clip is not None:
        raise DataError(f"{data.name} has latents, but the model takes pictures; give those.")
    return model.codec.decode(model.codec.encode(images))


def _scored(model: Model, images: np.ndarray, score: str, curve: Curve | None) -> np.ndarray:
    """One score of all images; of several processes, each takes its share."""
    mine = _share(images)
    found = ood_scores(model, mine, score, curve).tolist() if len(mine) else []
    return np.array(gather(found))


def _vectors(model: Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mine = _share(images)
    rows: list[Any] = []
    if len(mine):
        rows = list(zip(*curve_vectors(model, mine), strict=True))
    vectors, classes = zip(*gather(rows), strict=True)
    return np.stack(vectors), np.array(classes)


def _share(images: np.ndarray) -> np.ndarray:
    return images[np.array(share(list(range(len(images)))), dtype=int)]
