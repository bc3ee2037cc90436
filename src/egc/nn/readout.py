"""Readouts: a feature map becomes a log-density and class logits.

    log_density  f(x)   (B,)    unnormalised log p(x_t)
    logits       h(x)   (B, C)  p(y|x) = softmax(h)

`pooled` (the paper, eq. 15)
    h = attention pool of the map, CLIP style: the mean token asks, all tokens answer,
    with learned q, k, v and output.  f = logsumexp_y h[y].

`dense` (the code its authors published)
    The map itself has C channels: every position holds an opinion about every class.
    f = sum over positions of logsumexp over channels.
    h = the same attention pool without parameters: q = k = v = map.

`mean` (an ordinary classifier's head, as JEM has it)
    The map has C channels. h = their mean over positions.  f = logsumexp_y h[y].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from egc.nn.twice import attention


class Joint(NamedTuple):
    """The joint model of image and label at one noise level."""

    log_density: Tensor
    """f(x), the unnormalised log p(x_t); shape (B,)"""
    logits: Tensor
    """h(x), with p(y|x_t) = softmax(h); shape (B, C)"""

    def log_joint(self, labels: Tensor) -> Tensor:
        """log p(x, y) = f(x) + log_softmax(h(x))[y], unnormalised in x; (B,) -> (B,)."""
        log_p = self.logits.log_softmax(dim=1)
        return self.log_density + log_p.gather(1, labels[:, None]).squeeze(1)


def with_mean_token(feature_map: Tensor) -> Tensor:
    """(B, C, H, W) -> tokens (B, 1 + HW, C), the mean of all positions first."""
    tokens = feature_map.flatten(2).transpose(1, 2)
    return torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1)


class DenseReadout(nn.Module):
    """Energy at every position; no parameters. The map's channels are the classes."""

    def __init__(self, outputs: int):
        super().__init__()
        self.map_channels = outputs

    def forward(self, feature_map: Tensor) -> Joint:
        tokens = with_mean_token(feature_map)
        logits = attention(tokens[:, :1], tokens, tokens).squeeze(1)
        return Joint(feature_map.logsumexp(dim=1).sum(dim=(1, 2)), logits)


class MeanReadout(nn.Module):
    """The mean of the map is the logits; no parameters."""

    def __init__(self, outputs: int):
        super().__init__()
        self.map_channels = outputs

    def forward(self, feature_map: Tensor) -> Joint:
        logits = feature_map.mean(dim=(2, 3))
        return Joint(logits.logsumexp(dim=1), logits)


class PooledReadout(nn.Module):
    """One set of logits for the whole image; its logsumexp is the log-density."""

    def __init__(self, outputs: int, map_channels: int, head_width: int):
        super().__init__()
        self.map_channels = map_channels
        self.heads = map_channels // head_width
        self.query = nn.Linear(map_channels, map_channels)
        self.key = nn.Linear(map_channels, map_channels)
        self.value = nn.Linear(map_channels, map_channels)
        self.out = nn.Linear(map_channels, outputs)

    def forward(self, feature_map: Tensor) -> Joint:
        tokens = with_mean_token(feature_map)
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.query(tokens[:, :1]), self.key(tokens), self.value(tokens))
        )
        pooled = attention(q, k, v).transpose(1, 2).flatten(2).squeeze(1)
        logits = self.out(pooled)
        return Joint(logits.logsumexp(dim=1), logits)
