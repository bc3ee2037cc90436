"""The Gaussian anchor: the score of noised Gaussian data, known in closed form.

Were the images Gaussian, their noised score would be linear in the image, and nobody would have to
learn it. Natural images are not, but their mean and their power spectrum are most of what is left
of them at high noise. So the anchor is the log-density of Gaussian data with the mean image m of
the training images, and with the variance v_k that they have at each frequency k of a cosine
transform C (orthonormal, so white data has the same variance everywhere):

    f(x, t)  = -1/2 sum_k c_k r_k^2,     r = C (x - sqrt(abar_t) m)
    c_k      = sigma_t / (abar_t v_k + sigma_t^2)
    eps_hat  = -grad f = C^T (c r)

in the scale of f, whose gradient is minus the noise: f / sigma_t is the true log-density. What a
network learns beside it is how its data differs from a Gaussian.

Mean and variances are measured before training, and stored with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

SMALLEST = 1e-6
"""variance, for frequencies that the data does not have"""


class GaussianAnchor(nn.Module):
    """The log-density of noised Gaussian data; until it is measured, of N(0, 1).

    Args:
        shape: (C, H, W) of an image in model space.
        sigmas: sigma_t for t = 0..T-1.
    """

    mean: Tensor
    variance: Tensor
    sigmas: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(self, shape: tuple[int, int, int], sigmas: Tensor):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("sigmas", sigmas.to(torch.float32), persistent=False)
        self.register_buffer("rows", cosines(shape[1]), persistent=False)
        self.register_buffer("columns", cosines(shape[2]), persistent=False)

    @torch.no_grad()
    def measure(self, parts: Iterable[Tensor]) -> None:
        """Take mean and variances from images in model space, some (N, C, H, W) at a time."""
        count, first, second = 0, *torch.zeros(2, dtype=torch.float64)
        for x in parts:
            waves = self._transformed(x.to(torch.float64))
            count, first = count + len(x), first + waves.sum(dim=0)
            second = second + waves.square().sum(dim=0)
        mean = first / count
        self.mean.copy_(self.rows.to(mean).T @ mean @ self.columns.to(mean))
        self.variance.copy_((second / count - mean.square()).clamp(min=SMALLEST))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """f(x, t); (B,)."""
        c, r = self._parts(x, t)
        return -0.5 * (c * r.square()).sum(dim=(1, 2, 3))

    def eps(self, x: Tensor, t: Tensor) -> Tensor:
        """The noise that it predicts; the shape of x."""
        c, r = self._parts(x, t)
        return self.rows.to(x).T @ (c * r) @ self.columns.to(x)

    def _parts(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """c and r."""
        sigma = self.sigmas.to(x.device)[t].to(x.dtype).view(-1, 1, 1, 1)
        noise = sigma.square()
        c = sigma / ((1 - noise) * self.variance + noise)
        return c, self._transformed(x - (1 - noise).sqrt() * self.mean)

    def _transformed(self, x: Tensor) -> Tensor:
        return self.rows.to(x) @ x @ self.columns.to(x).T


def cosines(side: int) -> Tensor:
    """The orthonormal cosine transform (DCT-II); (side, side)."""
    k = torch.arange(side, device="cpu", dtype=torch.float64)
    matrix = torch.cos(math.pi / side * (k[None] + 0.5) * k[:, None]) * math.sqrt(2 / side)
    matrix[0] /= math.sqrt(2)
    return matrix.float()
