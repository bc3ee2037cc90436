"""What backbones share: they may know noise level and label, and can save memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from egc.errors import ConfigError
from egc.nn.blocks import timestep_embedding
from egc.nn.twice import recomputed


class Backbone(nn.Module):
    """(x_t, t, cond) -> map. `cond` is a class index each, `classes` meaning "no label".

    Args:
        channels: the base width; the time embedding is four times as wide.
        classes: how many classes a label-conditioned network tells apart.
        label_width: width of the label's embedding, a single token that spatial transformers
            attend to; 0: the network does not see labels.
        timed: whether it sees the noise level.
    """

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

    @property
    def label_conditioned(self) -> bool:
        return self.labels is not None

    out: nn.Module
    """from the last features to the map"""

    def features(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
        """The last hidden map, which `out` turns into the one that is read."""
        raise NotImplementedError

    def forward(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
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
