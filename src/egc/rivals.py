"""The networks that EGC is compared with, in the place of an `EnergyModel`.

`StillEnergy` (`classifier`, `jem`)
    The same backbone without time: one joint energy of clean images and labels. A JEM is trained
    to be one, and draws by Langevin dynamics on it (`langevin`); a plain classifier has one by
    accident, since any logits do (Grathwohl et al. 2020).

`NoisePredictor` (`ddpm`)
    The same backbone, whose map is the noise itself. It has no energy and names nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from egc.energy import EnergyModel, Joint
from egc.errors import ModelError


class StillEnergy(EnergyModel):
    """A joint energy that knows no noise levels: t is ignored, and no noise is predicted."""

    def score(self, x: Tensor, t: Tensor | int = 0, cond: Tensor | None = None) -> Tensor:
        """grad_x f(x); the shape of x."""
        return self.log_joint_gradient(x)

    def log_joint_gradient(
        self, x: Tensor, labels: Tensor | None = None, guidance: float = 1.0
    ) -> Tensor:
        """grad_x [ f(x) + w log p(y|x) ]; a label of -1 is none."""
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            joint = self(x, 0)
            potential = joint.log_density
            if labels is not None and guidance != 0:
                log_p = joint.logits.log_softmax(dim=1)
                named = log_p.gather(1, labels.clamp(min=0)[:, None])[:, 0]
                potential = potential + guidance * (labels >= 0) * named
            return torch.autograd.grad(potential.sum(), x)[0]

    def eps(self, x: Tensor, t: Tensor | int, *args: object, **options: object) -> Tensor:
        raise ModelError(
            "This network knows no noise levels (objective.kind is classifier or jem), so it "
            "cannot denoise; take a model trained with objective.kind = egc."
        )


class NoisePredictor(EnergyModel):
    """(x_t, t) -> the noise, by one forward pass.

    A backbone with a strided stem gives a map that is smaller than the image; each of its
    positions then holds the noise of a square of `stride` by `stride` pixels.
    """

    def __init__(self, backbone: nn.Module, sigmas: Tensor, stride: int = 1):
        super().__init__(backbone, nn.Identity(), sigmas)
        self.stride = stride

    def forward(self, x: Tensor, t: Tensor | int, cond: Tensor | None = None) -> Joint:
        raise ModelError(
            "This network predicts noise and has no energy (objective.kind = ddpm): it can draw, "
            "but neither classify nor tell the familiar from the strange."
        )

    def predict(self, x: Tensor, t: Tensor | int) -> Tensor:
        """The predicted noise, with its gradient in the weights."""
        noise = F.pixel_shuffle(self.backbone(x, self._each(t, x)), self.stride)
        return noise[..., : x.shape[-2], : x.shape[-1]]  # odd sides were rounded up

    def score(self, x: Tensor, t: Tensor | int, cond: Tensor | None = None) -> Tensor:
        return -self.eps(x, t)

    def eps(
        self,
        x: Tensor,
        t: Tensor | int,
        labels: Tensor | None = None,
        guidance: float = 1.0,
        cond: Tensor | None = None,
        cfg: float = 1.0,
    ) -> Tensor:
        if labels is not None or cond is not None:
            raise ModelError("This network (objective.kind = ddpm) takes no labels.")
        with torch.no_grad():
            return self.predict(x, t)


def langevin(
    net: StillEnergy,
    x: Tensor,
    generators: list[torch.Generator],
    *,
    steps: int,
    step_size: float,
    noise: float,
    labels: Tensor | None = None,
    guidance: float = 1.0,
) -> Iterator[Tensor]:
    """Stochastic gradient Langevin dynamics, as JEM runs it; yields x after every step.

        x <- x + step_size * grad log p(x, y) + noise * n,     n ~ N(0, I)

    Step and noise do not match as theory wants (the noise is far too small): so it is published.
    Noise comes from one generator an image, or one for all.
    """
    for _ in range(steps):
        gradient = net.log_joint_gradient(x, labels, guidance)
        x = x + step_size * gradient + noise * normal_like(x, generators)
        yield x


def normal_like(x: Tensor, generators: list[torch.Generator]) -> Tensor:
    """Standard normal numbers in the shape of x."""
    if len(generators) == 1:
        return torch.randn(x.shape, generator=generators[0]).to(x)
    each = [torch.randn(x.shape[1:], generator=generator) for generator in generators]
    return torch.stack(each).to(x)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Where chains start: anywhere in -1..1."""
    return 2 * torch.rand(shape, generator=generator) - 1
