"""The threshold that images are flagged as out-of-distribution by, and what it is set with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from egc.data.files import replaced
from egc.data.imageset import ImageSet
from egc.errors import DataError, ModelError
from egc.hub import find_model, is_shipped
from egc.metrics.fitting import in_shares
from egc.model import CONFIG_FILE, Model, read_about
from egc.tasks.out_of_distribution import (
    FACT,
    MIN_VALIDATION_IMAGES,
    Curve,
    curve_vectors,
    flagging_score,
    ood_scores,
)

ACCEPTED_SHARE = 0.95
"""of familiar images that a threshold accepts"""
MAX_IMAGES = 1000
"""that a curve is fitted to, and a threshold set with"""
FOLDS = 10
"""parts that are measured by a fit to the others"""


def accepting(scores: np.ndarray, share: float = ACCEPTED_SHARE) -> float:
    """The lowest of the scores that at least this share of them do not exceed."""
    needed = np.arange(1, len(scores) + 1) / len(scores) >= share
    return float(np.sort(scores)[needed.argmax()])


def pick_images(model: Model, data: ImageSet, count: int | None, seed: int) -> np.ndarray:
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


def ood_threshold(model: Model, validation: ImageSet) -> dict[str, Any]:
    """The threshold that 95 % of validation images stay below, to store with the model.

    Where the score is fitted to familiar images, each tenth of them is measured by a fit to the
    others, as new images will be; what is stored is the fit to all.
    """
    if len(validation) < MIN_VALIDATION_IMAGES:
        raise DataError(
            f"An out-of-distribution threshold needs {MIN_VALIDATION_IMAGES} validation images or "
            f"more; {validation.name} has {len(validation)}."
        )
    images = pick_images(model, validation, MAX_IMAGES, seed=0)
    score = flagging_score(model)
    extra: dict[str, Any] = {}
    if score == "curve":
        vectors, classes = shared_vectors(model, images)
        scores = np.empty(len(images))
        for fold in range(FOLDS):
            held = np.arange(len(images)) % FOLDS == fold
            fit = fit_curve(model, vectors[~held], classes[~held])
            scores[held] = fit.distance(vectors[held], classes[held])
        extra = fit_curve(model, vectors, classes).to_dict()
    else:
        scores = score_images(model, images, score)
    found = {"score": score, "threshold": accepting(scores), "share": ACCEPTED_SHARE}
    return {**found, "images": len(images), **extra}


def store_threshold(path: str | Path, threshold: Mapping[str, Any]) -> Path:
    """Write a threshold into the `config.json` of a model; the file is complete at any moment."""
    folder = find_model(path)
    if is_shipped(folder):
        raise ModelError(
            f"{str(path)!r} ships with the package, and is not written to; save a copy first "
            f"(in Python: egc.load({str(path)!r}).save('my-{folder.name}')), and name that."
        )
    place = folder / CONFIG_FILE
    about = read_about(folder)
    about["facts"] = {**about.get("facts", {}), FACT: dict(threshold)}
    try:
        with replaced(place) as out:
            out.write(f"{json.dumps(about, indent=2)}\n".encode())
    except OSError as error:
        raise ModelError(
            f"{place} cannot be written ({error.strerror}); save the model to a place of yours."
        ) from None
    return place


def score_images(
    model: Model, images: np.ndarray, score: str, curve: Curve | None = None
) -> np.ndarray:
    """One score of all images; of several processes, each takes its share."""
    every = range(len(images))
    return np.array(in_shares(every, lambda i: ood_scores(model, images[i], score, curve)))


def shared_vectors(model: Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The `curve_vectors` of all images, and the classes predicted."""
    rows = in_shares(
        range(len(images)), lambda i: zip(*curve_vectors(model, images[i]), strict=True)
    )
    vectors, classes = zip(*rows, strict=True)
    return np.stack(vectors), np.array(classes)


def fit_curve(model: Model, vectors: np.ndarray, classes: np.ndarray) -> Curve:
    """What the score `curve` compares with: the energies of familiar images."""
    return Curve.fit(vectors, classes, max(1, len(model.classes)))
