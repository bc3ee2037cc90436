"""DDPM (Ho et al. 2020): the same U-Net predicts the noise by its forward pass.

loss = mean (eps_hat(x_t, t) - eps)^2
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from egc.baselines.networks import NoisePredictor
from egc.objectives.base import Batch, Objective, Terms
from egc.registry import objectives


class Noised(NamedTuple):
    x: Tensor
    t: Tensor
    eps: Tensor
    share: float


@objectives.register("ddpm")
class DDPMObjective(Objective):
    network = NoisePredictor
    uses_labels = False

    def cost(self, forward: float, classify: float) -> float:
        return 3 * forward

    def plan(self, batch: Batch, share: float = 1.0) -> list[Noised]:
        x_t = self.diffusion.noise(batch.x0, batch.t, batch.eps)
        return [Noised(x_t, batch.t, batch.eps, share)]

    def forward(self, part: Noised) -> Terms:
        loss = part.share * (self.net(part.x, part.t) - part.eps).square().mean()
        return Terms.of(loss, score=loss)
