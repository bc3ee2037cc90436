"""What the network sees in an image: its last hidden map, and its opinion at every position."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from egc.errors import ModelError
from egc.model import Model
from egc.nn.backbone import Backbone


def features(model: Model, images: np.ndarray, batch_size: int = 256) -> np.ndarray:
    """uint8 (N, H, W, C) -> the last hidden map at t = 0, averaged over positions; (N, width)."""
    backbone = cast(Backbone, model.net.backbone)
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), batch_size):
            x = model.codec.encode(images[start : start + batch_size]).to(model.device)
            t = torch.zeros(len(x), dtype=torch.long, device=x.device)
            parts.append(backbone.features(x, t).mean(dim=(2, 3)).cpu())
    return torch.cat(parts).numpy()


def evidence(model: Model, images: np.ndarray) -> np.ndarray:
    """Where each class is seen: p(class) by every position's own channels; (N, classes, h, w).

    The `dense` readout pools a map whose channels are the classes. Before pooling, every position
    has an opinion of its own.
    """
    if model.config.network.readout != "dense":
        raise ModelError(
            "Only the `dense` readout has an opinion at every position; this model has the "
            f"{model.config.network.readout!r} one."
        )
    if not model.classes:
        raise ModelError("This model was trained without labels, so it sees no classes.")
    with torch.no_grad():
        x = model.codec.encode(images).to(model.device)
        t = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return model.net.backbone(x, t).softmax(dim=1).cpu().numpy()


def mean_distance(points: np.ndarray) -> float:
    """The mean Euclidean distance between two different points of (N, width)."""
    if len(points) < 2:
        return 0.0
    flat = torch.as_tensor(points.reshape(len(points), -1), dtype=torch.float64)
    return float(torch.nn.functional.pdist(flat).mean())
