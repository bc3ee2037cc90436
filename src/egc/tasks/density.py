"""The log-density of images, up to a constant: how familiar the model finds them.

`log_density` is f(x), evaluated at the image itself as a point x_t: no noise is added. Values are
comparable between images at one t. To compare noise levels, divide by sigma_t: the network's f is
sigma_t times a log-density (see `egc.energy`).
"""

from __future__ import annotations

import numpy as np
import torch

from egc.errors import ConfigError
from egc.model import Model


def log_density(model: Model, images: np.ndarray, t: int = 0, batch_size: int = 256) -> np.ndarray:
    """uint8 (N, H, W, C) -> f(x) at noise level t, (N,)."""
    if not 0 <= t < model.diffusion.steps:
        raise ConfigError(f"t must be 0 to {model.diffusion.steps - 1}; got {t}.")
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), batch_size):
            x = model.codec.encode(images[start : start + batch_size]).to(model.device)
            parts.append(model.net(x, t).log_density.cpu())
    return torch.cat(parts).numpy()
