"""How well a model classifies held-out images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from egc.data.imageset import ImageSet
from egc.errors import DataError
from egc.model import Model
from egc.processes import share, whole
from egc.tasks.classify import predict_proba

AT_ONCE = 256
"""images that are read together"""


@dataclass(frozen=True)
class Classification:
    """Accuracy and confusion on a labelled set."""

    accuracy: float
    confusion: np.ndarray
    """counts, true class by predicted class; (C, C)"""
    probabilities: np.ndarray
    """(N, C)"""
    labels: np.ndarray
    """true class indices; (N,)"""


def evaluate_classification(model: Model, data: ImageSet) -> Classification:
    """Classify the labelled images of `data`; of several processes, each takes its share."""
    known = np.flatnonzero(data.labels >= 0)
    if len(known) == 0:
        raise DataError(f"{data.name} has no labelled images to measure accuracy on.")
    labels = data.labels[known]
    mine = np.array(share(known.tolist()), dtype=int)
    rows: list[np.ndarray] = []
    for start in range(0, len(mine), AT_ONCE):  # large sets do not fit into memory
        rows += list(predict_proba(model, data.images(mine[start : start + AT_ONCE])))
    probabilities = np.stack(whole(rows))
    predicted = probabilities.argmax(axis=1)
    confusion = np.zeros((len(model.classes), len(model.classes)), dtype=int)
    np.add.at(confusion, (labels, predicted), 1)
    return Classification(float((predicted == labels).mean()), confusion, probabilities, labels)
