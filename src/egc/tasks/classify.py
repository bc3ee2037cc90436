"""Classification: p(y | x) = softmax(h(x)) at t = 0, the paper's protocol."""

from __future__ import annotations

import numpy as np
import torch

from egc.errors import ModelError
from egc.model import Model


def predict_proba(model: Model, images: np.ndarray, batch_size: int = 256) -> np.ndarray:
    """uint8 (N, H, W, C) -> class probabilities (N, classes)."""
    if not model.classes:
        raise ModelError("This model was trained without labels, so it cannot classify.")
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), batch_size):
            x = model.codec.encode(images[start : start + batch_size]).to(model.device)
            parts.append(model.net(x, 0).logits.softmax(dim=1).cpu())
    return torch.cat(parts).numpy()
