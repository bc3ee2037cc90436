"""The threshold that images are flagged as out-of-distribution by, and the scores it is set with.

accepting   at a threshold, 95 % of validation images are accepted
fit         what the score `curve` compares with: the energies of familiar images
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from egc.data.imageset import ImageSet
from egc.distributed import gather, share
from egc.errors import DataError, ModelError
from egc.hub import find_model, is_shipped
from egc.metrics.other_images import pick_images
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


def fit_curve(model: Model, data: ImageSet, seed: int = 0) -> Curve:
    """The energies of familiar images, for the score `curve`."""
    vectors, classes = shared_vectors(model, pick_images(model, data, MAX_IMAGES, seed))
    return Curve.fit(vectors, classes, max(1, len(model.classes)))


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
        count = max(1, len(model.classes))
        vectors, classes = shared_vectors(model, images)
        scores = np.empty(len(images))
        for fold in range(FOLDS):
            held = np.arange(len(images)) % FOLDS == fold
            fit = Curve.fit(vectors[~held], classes[~held], count)
            scores[held] = fit.distance(vectors[held], classes[held])
        extra = Curve.fit(vectors, classes, count).to_dict()
    else:
        scores = score_images(model, images, score, None)
    return {
        "score": score,
        "threshold": accepting(scores),
        "share": ACCEPTED_SHARE,
        "images": len(images),
        **extra,
    }


def check_storable(path: str | Path) -> Path:
    """The directory of a model that a threshold can be stored with."""
    folder = find_model(path)
    if is_shipped(folder):
        raise ModelError(
            f"{str(path)!r} ships with the package, and is not written to; save a copy first "
            f"(in Python: egc.load({str(path)!r}).save('my-{folder.name}')), and name that."
        )
    return folder


def store_threshold(path: str | Path, threshold: Mapping[str, Any]) -> Path:
    """Write a threshold into the `config.json` of a model; the file is complete at any moment."""
    folder = check_storable(path)
    place = folder / CONFIG_FILE
    about = read_about(folder)
    about["facts"] = {**about.get("facts", {}), FACT: dict(threshold)}
    try:
        part = place.with_suffix(".part")
        part.write_text(json.dumps(about, indent=2) + "\n")
        part.replace(place)
    except OSError as error:
        raise ModelError(
            f"{place} cannot be written ({error.strerror}); save the model to a place of yours."
        ) from None
    return place


def score_images(model: Model, images: np.ndarray, score: str, curve: Curve | None) -> np.ndarray:
    """One score of all images; of several processes, each takes its share."""
    mine = _share(images)
    found = ood_scores(model, mine, score, curve).tolist() if len(mine) else []
    return np.array(gather(found))


def shared_vectors(model: Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mine = _share(images)
    rows: list[Any] = []
    if len(mine):
        rows = list(zip(*curve_vectors(model, mine), strict=True))
    vectors, classes = zip(*gather(rows), strict=True)
    return np.stack(vectors), np.array(classes)


def _share(images: np.ndarray) -> np.ndarray:
    return images[np.array(share(list(range(len(images)))), dtype=int)]
