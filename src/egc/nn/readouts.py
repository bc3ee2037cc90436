"""Readouts: feature maps become a log-density and class logits.

    log_density  f(x)   (B,)    unnormalised log p(x_t)
    logits       h(x)   (B, C)  p(y|x) = softmax(h)

`pooled` (the paper, eq. 15)
    h = attention pool of the map, CLIP style: the mean token asks, all tokens answer,
    with learned q, k, v and output.  f = logsumexp_y h[y].

`dense` (the code its authors published)
    The map itself has C channels: every position holds an opinion about every class.
    f = sum over positions of logsumexp over channels.
    h = the same attention pool without parameters: q = k = v = map.

`levels` and `pool`, of the network made for its gradient, stand beside it in `egc.nn.pyramid`.

`mean` (an ordinary classifier's head, as JEM has it)
    The map has C channels. h = their mean over positions.  f = logsumexp_y h[y].
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from egc.config import NetworkConfig
from egc.errors import ConfigError
from egc.nn.double_backward import attention
from egc.registry import readouts

Maps = Tensor | list[Tensor]
"""what a backbone gives: one feature map (B, C, H, W), or several, the finest first"""


class Joint(NamedTuple):
    """The joint model of image and label at one noise level."""

    log_density: Tensor
    """f(x), the unnormalised log p(x_t); shape (B,)"""
    logits: Tensor
    """h(x), with p(y|x_t) = softmax(h); shape (B, C)"""

    def log_joint(self, labels: Tensor) -> Tensor:
        """log p(x, y) = f(x) + log_softmax(h(x))[y], unnormalised in x; (B,) -> (B,)."""
        return self.log_density + self.log_p(labels[:, None]).squeeze(1)

    def log_p(self, labels: Tensor) -> Tensor:
        """log p(y|x) of some classes each, 0 for a label of -1; (B, K) -> (B, K)."""
        log_p = self.logits.log_softmax(dim=1)
        return log_p.gather(1, labels.clamp(min=0)) * (labels >= 0)


class Readout(nn.Module):
    """What turns maps into an energy. It may look at the image and its noise level too.

    To add one, derive from this class, write `from_config` and `forward`, and register it:
    `@readouts.register("name")`.
    """

    map_channels: int
    """channels of the map that the backbone is to give; 0: its maps as they are"""
    positions_speak: ClassVar[bool] = False
    """whether each position has an opinion about the classes: `local_logits`"""

    @classmethod
    def from_config(cls, network: NetworkConfig, classes: int) -> Self:
        """The readout of so many classes; 0 without labels."""
        raise NotImplementedError

    def forward(self, maps: Maps, x: Tensor, t: Tensor) -> Joint:
        """Maps of the image x (B, ...) at noise levels t (B,) -> the joint model."""
        raise NotImplementedError

    def logits(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        """The logits alone, for readouts that can leave out the energy."""
        return self(maps, x, t).logits

    def log_densities(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        """The log-density in the parts it is a sum of; (B, parts)."""
        return self(maps, x, t).log_density[:, None]

    def local_logits(self, maps: Maps) -> Tensor:
        """What each position says of each class, if `positions_speak`; (B, classes, H, W)."""
        raise NotImplementedError


def with_mean_token(feature_map: Tensor) -> Tensor:
    """(B, C, H, W) -> tokens (B, 1 + HW, C), the mean of all positions first."""
    tokens = feature_map.flatten(2).transpose(1, 2)
    return torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1)


def single(maps: Maps) -> Tensor:
    """The one map that most readouts take: of several, the last, which is the coarsest."""
    return maps if isinstance(maps, Tensor) else maps[-1]


class ChannelReadout(Readout):
    """Of a map whose channels are the classes; no parameters."""

    def __init__(self, outputs: int):
        super().__init__()
        self.map_channels = outputs

    @classmethod
    def from_config(cls, network: NetworkConfig, classes: int) -> Self:
        return cls(classes or network.components)


@readouts.register("dense")
class DenseReadout(ChannelReadout):
    """Energy at every position."""

    positions_speak = True

    def forward(self, maps: Maps, x: Tensor, t: Tensor) -> Joint:
        feature_map = single(maps)
        logits = self.logits(feature_map, x, t)
        return Joint(feature_map.logsumexp(dim=1).sum(dim=(1, 2)), logits)

    def logits(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        tokens = with_mean_token(single(maps))
        return attention(tokens[:, :1], tokens, tokens).squeeze(1)

    def local_logits(self, maps: Maps) -> Tensor:
        return single(maps)


@readouts.register("mean")
class MeanReadout(ChannelReadout):
    """The mean of the map is the logits."""

    def forward(self, maps: Maps, x: Tensor, t: Tensor) -> Joint:
        logits = single(maps).mean(dim=(2, 3))
        return Joint(logits.logsumexp(dim=1), logits)


@readouts.register("pooled")
class PooledReadout(Readout):
    """One set of logits for the image; its logsumexp is the log-density."""

    def __init__(self, outputs: int, map_channels: int, head_width: int):
        super().__init__()
        if map_channels % head_width:
            raise ConfigError(
                f"network.head_width = {head_width} does not divide "
                f"network.channels = {map_channels}, as the pooled readout needs."
            )
        self.map_channels = map_channels
        self.heads = map_channels // head_width
        self.query = nn.Linear(map_channels, map_channels)
        self.key = nn.Linear(map_channels, map_channels)
        self.value = nn.Linear(map_channels, map_channels)
        self.out = nn.Linear(map_channels, outputs)

    @classmethod
    def from_config(cls, network: NetworkConfig, classes: int) -> Self:
        return cls(classes or network.components, network.channels, network.head_width)

    def forward(self, maps: Maps, x: Tensor, t: Tensor) -> Joint:
        tokens = with_mean_token(single(maps))
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.query(tokens[:, :1]), self.key(tokens), self.value(tokens))
        )
        pooled = attention(q, k, v).transpose(1, 2).flatten(2).squeeze(1)
        logits = self.out(pooled)
        return Joint(logits.logsumexp(dim=1), logits)
