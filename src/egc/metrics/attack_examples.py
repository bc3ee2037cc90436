"""Images before and after an attack, to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from egc.codec import pixels_of
from egc.data.imageset import ImageSet
from egc.metrics.fitting import fitting, labelled
from egc.metrics.robustness import Strength
from egc.model import Model
from egc.metrics.attacks import judge, mixed
from egc.tasks.predict import Predictor


@dataclass(frozen=True)
class Examples:
    """Images, what an attack made of them, and what the model took that for."""

    images: np.ndarray
    """(N, H, W, C), floats in 0..1"""
    attacked: np.ndarray
    """of the same shape"""
    labels: np.ndarray
    taken_for: np.ndarray
    """class indices; (N,)"""
    classes: list[str]
    epsilon: float


def attack_examples(
    model: Model,
    data: ImageSet,
    *,
    epsilon: float,
    strength: Strength | None = None,
    attack: str = "pgd",
    count: int = 8,
    ensemble: int = 0,
    purify: int = 0,
    seed: int = 0,
) -> Examples:
    """Attack some images, with the seeds that `evaluate_robustness` gives them."""
    fitting(model, data)
    positions = labelled(data, count)
    asked = Predictor(model, ensemble, purify)
    pixels = ((pixels_of(data.images(positions)) + 1) / 2).to(model.device)
    labels = torch.as_tensor(data.labels[positions], device=model.device)
    seeds = mixed(positions.tolist(), seed)
    moved = (strength or Strength()).attack(attack, epsilon, asked, pixels, labels, seeds)
    answers = judge(asked, moved, seeds)
    before, after = (x.permute(0, 2, 3, 1).cpu().numpy() for x in (pixels, moved))
    return Examples(
        before, after, data.labels[positions], answers.cpu().numpy(), model.classes, epsilon
    )
