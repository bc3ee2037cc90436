"""What all objectives share: a batch goes in, and passes with a loss each come out.

An objective is a module around the network. `plan` turns a batch into passes and may do whatever
needs no wrapper; `forward` gives the loss of one pass, so that wrappers such as DDP and FSDP see
an ordinary forward pass followed by an ordinary backward pass.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from egc.config import ObjectiveConfig
from egc.config.parse import build
from egc.diffusion import Diffusion
from egc.energy import EnergyModel
from egc.errors import ConfigError
from egc.nn.network import Network


class Batch(NamedTuple):
    """What one training step sees, in model space. The loss is a function of it."""

    x0: Tensor
    """images of the noised stream; (B, C, H, W)"""
    labels: Tensor
    """class indices, -1 where unknown; (B,)"""
    t: Tensor
    """noise levels; (B,)"""
    eps: Tensor
    """noise; (B, C, H, W)"""
    clean: Tensor | None = None
    """images of the clean stream"""
    clean_labels: Tensor | None = None
    """their labels, where they are other images; (B,)"""
    cond: Tensor | None = None
    """what a label-conditioned network is told: the label, or the index of "no label"; (B,)"""
    seeds: Tensor | None = None
    """seeds for whatever else is random in an objective; (B,)"""

    def split(self, parts: int) -> list[Batch]:
        """The batch in `parts` pieces, for accumulating gradients."""
        pieces = [[None] * parts if column is None else column.chunk(parts) for column in self]
        return [Batch(*piece) for piece in zip(*pieces, strict=True)]

    def to_classify(self) -> tuple[Tensor, Tensor]:
        """The images that a plain classifier learns from, and their labels."""
        if self.clean is None:
            return self.x0, self.labels
        return self.clean, self.labels if self.clean_labels is None else self.clean_labels


class Terms(NamedTuple):
    """A loss and its parts, the parts detached. The terms of the passes of a step add up."""

    loss: Tensor
    parts: dict[str, Tensor]

    @classmethod
    def of(cls, loss: Tensor, **parts: Tensor) -> Terms:
        return cls(loss, {name: part.detach() for name, part in {"loss": loss, **parts}.items()})


class Objective(nn.Module):
    """What is minimised.

    To add one, derive from this class, write `cost`, `plan` and `forward`, and register it:
    `@objectives.register("name")`.
    """

    network: ClassVar[type[Network]] = EnergyModel
    """the kind of network that it trains"""
    uses_labels: ClassVar[bool] = True
    """false: labels are forgotten"""
    needs_labels: ClassVar[bool] = False
    """true: data without labels is refused"""
    Options: ClassVar[type | None] = None
    """a dataclass of the keys below `objective.options` that it alone has"""

    def __init__(self, net: Any, diffusion: Diffusion, config: ObjectiveConfig):
        super().__init__()
        self.net = net
        self.diffusion = diffusion
        self.config = config
        self.memory: dict[str, Tensor] = {}
        """what plans remember from step to step besides the weights; the main process saves it,
        and of several processes each has its share of the rows"""

    @classmethod
    def options(cls, config: ObjectiveConfig) -> Any:
        """`objective.options` as the objective's own dataclass."""
        if cls.Options is not None:
            return build(cls.Options, config.options, "objective.options.")
        if config.options:
            raise ConfigError(
                f'objective.kind = "{config.kind}" has no options of its own; '
                f"got objective.options.{min(config.options)}."
            )
        return None

    @property
    def clean_share(self) -> float:
        """Images of the clean stream for each of the noised one; 0 if there is none."""
        return self.config.clean_share if self.config.clean_stream else 0.0

    def cost(self, forward: float, classify: float) -> float:
        """FLOP of a training step for each image of the noised stream, from those of a forward
        pass and of classifying.

        A backward pass costs two forward passes, or one if it goes to the image alone.
        """
        raise NotImplementedError

    def plan(self, batch: Batch, share: float = 1.0) -> list[Any]:
        """The passes of a batch, which is this share of all images of the step."""
        raise NotImplementedError

    def forward(self, part: Any) -> Terms:
        """The loss of one pass."""
        raise NotImplementedError

    def cross_entropies(self, logits: Tensor, labels: Tensor) -> Tensor:
        """One for each image, 0 where the label is unknown, or where there are none; (B,)."""
        if not logits.shape[1]:
            return logits.sum(dim=1)
        return torch.nn.functional.cross_entropy(
            logits,
            labels,
            reduction="none",
            ignore_index=-1,
            label_smoothing=self.config.label_smoothing,
        )
