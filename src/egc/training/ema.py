"""The moving average of the weights, which is the model that is saved, shown and sampled from."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

Net = TypeVar("Net", bound=nn.Module)


class EMA(Generic[Net]):
    """A network of its own beside the one that trains; weights are never swapped in and out."""

    def __init__(self, net: Net, decay: float):
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, net: Net, step: int) -> None:
        """Move towards `net`. Early on the average is short: (1 + step) / (10 + step)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averaged = [p.data for p in self.net.parameters()]
        current = [p.data for p in net.parameters()]
        torch._foreach_lerp_(averaged, current, 1 - decay)
