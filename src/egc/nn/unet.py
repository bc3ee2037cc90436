"""The U-Net of IDDPM and guided-diffusion, with any width, depth, attention and input size.

    stem -> [depth x (ResBlock, attention?) -> Downsample] per level
         -> ResBlock, attention, ResBlock
         -> [depth + 1 x (concatenate skip, ResBlock, attention?) -> Upsample] per level
         -> norm, SiLU, convolution -> map

The skip connections carry the fine detail of x past the narrow middle. Here they matter twice:
the score is the gradient that travels back through them.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from egc.config import NetworkConfig
from egc.errors import ConfigError
from egc.nn.backbone import Backbone, Shape
from egc.nn.double_backward import Conv2d
from egc.nn.layers import Downsample, ResBlock, SelfAttention, Upsample, norm_silu
from egc.nn.transformer import SpatialTransformer
from egc.registry import backbones


class Stage(nn.Module):
    """A residual block and, at the resolutions that have it, attention."""

    def __init__(self, block: ResBlock, attention: nn.Module | None):
        super().__init__()
        self.block = block
        self.attention = attention

    def forward(self, x: Tensor, emb: Tensor | None, label: Tensor | None) -> Tensor:
        h = self.block(x, emb)
        return h if self.attention is None else self.attention(h, label)


@backbones.register("unet")
class UNet(Backbone):
    """(x_t, t, cond) -> map: (B, inputs, H, W), (B,), (B,) -> (B, outputs, H, W).

    Args:
        inputs, outputs: channels of the image and of the map.
        image_size: the side of the image, from which the side of every level follows.
        channels, multipliers: the width of level i is `channels * multipliers[i]`.
        depth: residual blocks a level.
        attention: the sides of the maps (such as 16, 8) that get attention; see `attends`.
        head_width: channels of one attention head.
        groups: groups of each GroupNorm; 0: no norms.
        stem_stride: above 1, the first map, and the last, are that much smaller than the image.
        heads, classes, label_width: of a label-conditioned network, whose attention is a spatial
            transformer of that many heads, at any width; see `Backbone`.
        timed: whether it sees the noise level.
    """

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int,
        image_size: int,
        channels: int,
        multipliers: tuple[int, ...],
        depth: int,
        attention: tuple[int, ...],
        head_width: int,
        groups: int,
        stem_stride: int = 1,
        heads: int = 4,
        classes: int = 0,
        label_width: int = 0,
        timed: bool = True,
    ):
        super().__init__(channels, classes, label_width, timed=timed)
        sides = level_sides(-(-image_size // stem_stride), len(multipliers))
        widths = [channels * multiplier for multiplier in multipliers]
        attending = [attends(side, attention) for side in sides]
        # The middle always attends, and its width is that of the last level.
        heads_fit = None if label_width else head_width
        check_heads(widths, [*attending[:-1], True], heads_fit)
        self.stem = Conv2d(inputs, widths[0], 3, stride=stem_stride, padding=1)

        def stage(n_in: int, n_out: int, attends: bool) -> Stage:
            block = ResBlock(n_in, n_out, self.time_width, groups)
            if not attends:
                return Stage(block, None)
            if label_width:
                args = (heads, head_width, label_width, groups)
                return Stage(block, SpatialTransformer(n_out, *args))
            return Stage(block, SelfAttention(n_out, head_width, groups))

        self.down = nn.ModuleList()
        skips = [width := widths[0]]
        for level, (n_out, here) in enumerate(zip(widths, attending, strict=True)):
            for _ in range(depth):
                self.down.append(stage(width, n_out, here))
                skips.append(width := n_out)
            if level < len(widths) - 1:
                self.down.append(Downsample(width))
                skips.append(width)

        self.middle = nn.ModuleList([stage(width, width, True), stage(width, width, False)])

        self.up = nn.ModuleList()
        for level, (n_out, here) in reversed(list(enumerate(zip(widths, attending, strict=True)))):
            for _ in range(depth + 1):
                self.up.append(stage(width + skips.pop(), n_out, here))
                width = n_out
            if level > 0:
                self.up.append(Upsample(width))

        self.norm = norm_silu(groups, width)
        # Not zeroed, as DDPM's is: here the channels are classes, and channels that start equal
        # get equal gradients from the score term and are slow to tell classes apart.
        self.out = Conv2d(width, outputs, 3, padding=1)

    @classmethod
    def from_config(cls, network: NetworkConfig, shape: Shape) -> Self:
        return cls(
            **shape._asdict(),
            channels=network.channels,
            multipliers=network.multipliers,
            depth=network.depth,
            attention=network.attention,
            head_width=network.head_width,
            groups=network.groups,
            stem_stride=network.stem_stride,
            heads=network.heads,
            label_width=network.label_width,
        )

    def features(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
        emb = self.embed(x, t, cond)
        h = self.stem(x)
        skips = [h]
        for layer in self.down:
            h = layer(h) if isinstance(layer, Downsample) else self.run(layer, h, *emb)
            skips.append(h)
        for layer in self.middle:
            h = self.run(layer, h, *emb)
        for layer in self.up:
            if isinstance(layer, Upsample):
                h = layer(h, size=skips[-1].shape[-2:])
            else:
                h = self.run(layer, torch.cat([h, skips.pop()], dim=1), *emb)
        return self.norm(h)


def level_sides(image_size: int, levels: int) -> list[int]:
    """The side of the map at each level: each level halves it, rounding up."""
    sides = [image_size]
    while len(sides) < levels:
        sides.append((sides[-1] + 1) // 2)
    return sides


def attends(side: int, attention: tuple[int, ...]) -> bool:
    """Whether a map of this side gets attention: one of the wanted sides is about its own.

    Within a factor of the square root of 2, so that sides which are no power of two find theirs:
    28 x 28 images have maps of 14 and 7 where 32 x 32 ones have 16 and 8.
    """
    return any(abs(math.log2(side / wanted)) <= 0.5 for wanted in attention)


def check_heads(widths: list[int], attending: list[bool], head_width: int | None) -> None:
    """Refuse a shape that cannot be built, naming the key to change."""
    if head_width is None:  # spatial transformers fit any width
        return
    for width, here in zip(widths, attending, strict=True):
        if here and width % head_width:
            raise ConfigError(
                f"network.head_width = {head_width} does not divide the width {width} "
                "of a level with attention; choose a divisor of it."
            )
