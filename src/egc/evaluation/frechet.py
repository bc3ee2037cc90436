"""The Frechet distance between two sets of features.

Both sets are taken for Gaussians; the distance is

    |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))
"""

from __future__ import annotations

import numpy as np


def frechet_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Features (N, D) and (M, D) -> distance; 0 for equal mean and covariance."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    mean1, mean2 = first.mean(axis=0), second.mean(axis=0)
    cov1, cov2 = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    # tr (C1 C2)^(1/2) = tr (S C2 S)^(1/2) with S = C1^(1/2), which is symmetric: no complex roots.
    values, vectors = np.linalg.eigh(cov1)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ cov2 @ root).clip(min=0)).sum()
    distance = np.square(mean1 - mean2).sum() + np.trace(cov1) + np.trace(cov2) - 2 * cross
    return float(max(distance, 0.0))
