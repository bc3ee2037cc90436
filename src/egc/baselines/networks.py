"""The networks that EGC is compared with, in the place of an `EnergyModel`.

`TimelessEnergy` (of a classifier and of JEM)
    The same backbone without time: one joint energy of clean images and labels. A JEM is trained
    to be one, and draws by Langevin dynamics on it; a plain classifier has one by accident, since
    any logits do (Grathwohl et al. 2020).

`NoisePredictor` (DDPM)
    The same backbone, whose map is the noise itself. It has no energy and names nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from egc.config import Config
from egc.energy import EnergyModel
from egc.errors import ConfigError, ModelError
from egc.nn.anchor import GaussianAnchor
from egc.nn.backbone import Shape
from egc.nn.network import Network
from egc.registry import backbones


class TimelessEnergy(EnergyModel):
    """A joint energy that knows no noise levels: t is ignored, and no noise is predicted."""

    denoises = draws = False
    timed = False

    def score(self, x: Tensor, t: Tensor | int = 0, cond: Tensor | None = None) -> Tensor:
        """grad_x f(x); the shape of x."""
        return self.gradient(x)

    def gradient(self, x: Tensor, labels: Tensor | None = None, guidance: float = 1.0) -> Tensor:
        """grad_x [ f(x) + w log p(y|x) ]; a label of -1 is none."""
        return -super().eps(x, 0, labels, guidance)

    def eps(self, x: Tensor, t: Tensor | int, *args: object, **options: object) -> Tensor:
        raise ModelError(
            "This network knows no noise levels, so it cannot denoise; take a model trained with "
            f"objective.kind = egc. ({self.about})"
        )

    def sigma(self, t: Tensor, x: Tensor) -> Tensor:
        return x.new_ones(len(x))


class Classifier(TimelessEnergy):
    """A plain classifier."""

    about = "A plain classifier, to compare with: it was not trained to draw."


class NoisePredictor(Network):
    """(x_t, t) -> the noise, by one forward pass.

    A backbone with a strided stem gives a map that is smaller than the image; each of its
    positions then holds the noise of a square of `stride` by `stride` pixels. With an anchor it
    learns what that leaves over.
    """

    denoises = draws = True
    about = "A diffusion model that predicts noise by its forward pass, to compare with."

    def __init__(self, backbone: nn.Module, stride: int = 1, anchor: GaussianAnchor | None = None):
        super().__init__()
        self.backbone = backbone
        self.stride = stride
        self.anchor = anchor

    @classmethod
    def from_config(
        cls, config: Config, shape: tuple[int, int, int], classes: int, sigmas: Tensor
    ) -> Self:
        network = config.network
        if not backbones[network.kind].full_size:
            raise ConfigError('A noise predictor (objective.kind = "ddpm") needs a U-Net: set '
                              'network.kind = "unet".')  # fmt: skip
        if network.label_width:
            raise ConfigError("A noise predictor takes no labels: set network.label_width = 0.")
        stride = network.stem_stride
        between = Shape(shape[0], shape[0] * stride**2, shape[1])
        anchor = GaussianAnchor(shape, sigmas) if network.anchor else None
        return cls(backbones[network.kind].from_config(network, between), stride, anchor)

    def forward(self, x: Tensor, t: Tensor | int) -> Tensor:
        """The predicted noise, with its gradient in the weights."""
        each = torch.as_tensor(t, device=x.device).expand(len(x))
        noise = F.pixel_shuffle(self.backbone(x, each), self.stride)
        noise = noise[..., : x.shape[-2], : x.shape[-1]]  # odd sides were rounded up
        return noise if self.anchor is None else self.anchor.eps(x, each) + noise

    def eps(
        self,
        x: Tensor,
        t: Tensor | int,
        labels: Tensor | None = None,
        guidance: float | Tensor = 1.0,
        cond: Tensor | None = None,
        cfg: float = 1.0,
    ) -> Tensor:
        if labels is not None or cond is not None:
            raise ModelError("This network (objective.kind = ddpm) takes no labels.")
        with torch.no_grad():
            return self(x, t)


def normal_like(x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Standard normal numbers in the shape of x; one generator an image, or one for all."""
    if len(generators) == 1:
        return torch.randn(x.shape, generator=generators[0]).to(x)
    each = [torch.randn(x.shape[1:], generator=generator) for generator in generators]
    return torch.stack(each).to(x)


def uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Where chains start: anywhere in -1..1."""
    return 2 * torch.rand(tuple(shape), generator=generator) - 1
