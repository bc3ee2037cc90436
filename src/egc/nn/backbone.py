"""What backbones share: they may know noise level and label, and can save memory."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from egc.config import NetworkConfig
from egc.errors import ConfigError
from egc.nn.double_backward import recomputed
from egc.nn.layers import timestep_embedding


class Shape(NamedTuple):
    """What a backbone is built between."""

    inputs: int
    """channels of the image"""
    outputs: int
    """channels of the map; 0: maps as wide as the backbone has them"""
    image_size: int
    """side of the image in model space"""
    classes: int = 0
    """how many labels there are"""
    timed: bool = True
    """whether the network sees the noise level"""


class Backbone(nn.Module):
    """(x_t, t, cond) -> map. `cond` is a class index each, `classes` meaning "no label".

    A backbone may give a list of maps instead of one, the finest first, to a readout that takes
    several. To add one, derive from this class, write `from_config` and `features` (or
    `forward`), and register it: `@backbones.register("name")`.

    Args:
        channels: the base width; the time embedding is four times as wide.
        classes: how many classes a label-conditioned network tells apart.
        label_width: width of the label's embedding, a single token that spatial transformers
            attend to; 0: the network does not see labels.
        timed: whether it sees the noise level.
    """

    readout: ClassVar[str] = "dense"
    """the readout that goes with it where none is named"""
    anchored: ClassVar[bool] = False
    """whether its energy starts from the Gaussian anchor, where nothing else is asked for"""
    full_size: ClassVar[bool] = True
    """whether its map has a position for each of the stem's, as a noise predictor needs"""
    gives_levels: ClassVar[bool] = False
    """whether it can give the maps of all its levels"""

    def __init__(
        self, channels: int, classes: int = 0, label_width: int = 0, *, timed: bool = True
    ):
        super().__init__()
        self.checkpointing = False
        """compute activations again in the backward pass instead of keeping them"""
        self.channels = channels
        self.time_width = 4 * channels if timed else 0
        self.time = None
        if timed:
            self.time = nn.Sequential(
                nn.Linear(channels, self.time_width),
                nn.SiLU(),
                nn.Linear(self.time_width, self.time_width),
            )
        self.no_label = classes
        self.labels = nn.Embedding(classes + 1, label_width) if label_width else None

    @classmethod
    def from_config(cls, network: NetworkConfig, shape: Shape) -> Self:
        """The backbone that a configuration describes."""
        raise NotImplementedError

    @property
    def takes_label(self) -> bool:
        """Whether it sees the label."""
        return self.labels is not None

    out: nn.Module
    """from the last features to the map"""

    def features(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
        """The last hidden map, which `out` turns into the one that is read."""
        raise NotImplementedError

    def forward(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor | list[Tensor]:
        return self.out(self.features(x, t, cond))

    def embed(
        self, x: Tensor, t: Tensor, cond: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The embeddings of time, (B, time width), and of the label, (B, 1, label width)."""
        emb = None
        if self.time is not None:
            emb = self.time(timestep_embedding(t, self.channels).to(x.dtype))
        if self.labels is None:
            if cond is not None:
                raise ConfigError(
                    "This network has no label embedding, so it takes no `cond`; "
                    "guide it with `labels` instead."
                )
            return emb, None
        if cond is None:
            cond = torch.full((len(x),), self.no_label, device=x.device)
        return emb, self.labels(cond)[:, None].to(x.dtype)

    def run(self, stage: nn.Module, x: Tensor, *embeddings: Tensor | None) -> Tensor:
        """One stage, in whichever way saves what is asked for."""
        if self.checkpointing and torch.is_grad_enabled():
            return recomputed(stage, x, *embeddings)
        return stage(x, *embeddings)
