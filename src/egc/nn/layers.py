"""The pieces the U-Net is made of: time embedding, residual block, attention, resampling.

All of them are smooth (SiLU, GroupNorm, softmax), because EGC trains on the gradient of a
gradient: a piecewise linear activation would have no second derivative to learn from.
There is no dropout, because an energy must be one function of its input.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from egc.errors import ConfigError
from egc.nn.double_backward import Conv2d, NormSiLU, SiLU, attention


def timestep_embedding(t: Tensor, width: int) -> Tensor:
    """Sinusoidal features of integer timesteps: (B,) -> (B, width), cosines first."""
    half = width // 2
    frequency = torch.exp(
        -math.log(10_000) * torch.arange(half, device=t.device, dtype=torch.float32) / half
    )
    angle = t.float()[:, None] * frequency
    return F.pad(torch.cat([angle.cos(), angle.sin()], dim=1), (0, width % 2))


def zeroed(layer: Conv2d) -> Conv2d:
    """Start a residual branch at zero, so that training starts at the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def norm_silu(groups: int, channels: int) -> nn.Module:
    """GroupNorm and SiLU; with 0 groups, SiLU alone."""
    if groups and channels % groups:
        raise ConfigError(
            f"network.groups = {groups} does not divide the width {channels} "
            "(network.channels x multiplier); choose a divisor of it."
        )
    return NormSiLU(groups, channels) if groups else SiLU()


class ResBlock(nn.Module):
    """Norm, SiLU, convolution, twice; the time embedding is added in between.

    With a `time_width` of 0 there is none, and with 0 `groups` no norm; without `second_norm` only
    the first is left, which makes second derivatives cheaper.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        time_width: int,
        groups: int,
        stride: int = 1,
        *,
        second_norm: bool = True,
    ):
        super().__init__()
        self.norm1 = norm_silu(groups, inputs)
        self.conv1 = Conv2d(inputs, outputs, 3, stride=stride, padding=1)
        self.time = nn.Linear(time_width, outputs) if time_width else None
        self.norm2 = norm_silu(groups if second_norm else 0, outputs)
        self.conv2 = zeroed(Conv2d(outputs, outputs, 3, padding=1))
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else Conv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor, emb: Tensor | None) -> Tensor:
        h = self.conv1(self.norm1(x))
        if self.time is not None and emb is not None:
            h = h + self.time(F.silu(emb))[:, :, None, None]
        h = self.conv2(self.norm2(h))
        return self.skip(x) + h


class SelfAttention(nn.Module):
    """Multi-head attention among the positions of a map, as a residual branch; sees no label."""

    def __init__(self, channels: int, head_width: int, groups: int):
        super().__init__()
        self.heads = channels // head_width
        self.norm = nn.GroupNorm(groups, channels) if groups else nn.Identity()
        self.qkv = Conv2d(channels, 3 * channels, 1)
        self.out = zeroed(Conv2d(channels, channels, 1))

    def forward(self, x: Tensor, label: Tensor | None = None) -> Tensor:
        b, c, height, width = x.shape
        # (B, 3C, H, W) -> three of (B, heads, positions, head width)
        qkv = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, height * width)
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        h = attention(q, k, v)
        return x + self.out(h.transpose(-1, -2).reshape(b, c, height, width))


class Downsample(nn.Module):
    """Halve a map (rounding up) by a strided convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Upsample(nn.Module):
    """Enlarge a map to a given size by nearest neighbour, then a convolution.

    The size is given, not doubled, so that maps with an odd side find their way back.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        return self.conv(F.interpolate(x, size=size, mode="nearest"))
