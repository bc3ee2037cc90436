"""The U-Net of IDDPM and guided-diffusion, with any width, depth, attention and input size.

    stem -> [depth x (ResBlock, attention?) -> Downsample] per level
         -> ResBlock, attention, ResBlock
         -> [depth + 1 x (concatenate skip, ResBlock, attention?) -> Upsample] per level
         -> norm, SiLU, convolution -> map

The skip connections carry the fine detail of x past the narrow middle. Here they matter twice:
the score is the gradient that travels back through them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from egc.errors import ConfigError
from egc.nn.backbone import Backbone
from egc.nn.blocks import Downsample, ResBlock, SelfAttention, Upsample, norm_silu
from egc.nn.transformer import SpatialTransformer
from egc.nn.twice import Conv2d


class Stage(nn.Module):
    """A residual block and, at the resolutions that have it, attention."""

    def __init__(self, block: ResBlock, attention: nn.Module | None):
        super().__init__()
        self.block = block
        self.attention = attention

    def forward(self, x: Tensor, emb: Tensor | None, label: Tensor | None) -> Tensor:
        h = self.block(x, emb)
        return h if self.attention is None else self.attention(h, label)


class UNet(Backbone):
    """(x_t, t, cond) -> map: (B, inputs, H, W), (B,), (B,) -> (B, outputs, H, W).

    Args:
        inputs, outputs: channels of the image and of the map.
        image_size: the side of the image, from which the side of every level follows.
        channels, multipliers: the width of level i is `channels * multipliers[i]`.
        depth: residual blocks a level.
        attention: the sides of the maps (such as 16, 8) that get attention.
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
        _check(image_size, sides, widths, attention, None if label_width else head_width, groups)
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
        for level, (n_out, side) in enumerate(zip(widths, sides, strict=True)):
            for _ in range(depth):
                self.down.append(stage(width, n_out, side in attention))
                skips.append(width := n_out)
            if level < len(widths) - 1:
                self.down.append(Downsample(width))
                skips.append(width)

        self.middle = nn.ModuleList([stage(width, width, True), stage(width, width, False)])

        self.up = nn.ModuleList()
        for level, (n_out, side) in reversed(list(enumerate(zip(widths, sides, strict=True)))):
            for _ in range(depth + 1):
                self.up.append(stage(width + skips.pop(), n_out, side in attention))
                width = n_out
            if level > 0:
                self.up.append(Upsample(width))

        self.norm = norm_silu(groups, width)
        # Not zeroed, as DDPM's is: here the channels are classes, and channels that start equal
        # get equal gradients from the score term and are slow to tell classes apart.
        self.out = Conv2d(width, outputs, 3, padding=1)

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


def _check(
    image_size: int,
    sides: list[int],
    widths: list[int],
    attention: tuple[int, ...],
    head_width: int | None,
    groups: int,
) -> None:
    """Refuse a shape that cannot be built, naming the key to change."""
    if missing := [side for side in attention if side not in sides]:
        raise ConfigError(
            f"network.attention = {list(attention)}: there is no map of side {missing[0]}; "
            f"a {image_size}x{image_size} input with {len(sides)} levels has the sides {sides}."
        )
    for width in widths:
        if groups and width % groups:
            raise ConfigError(
                f"network.groups = {groups} does not divide the width {width} "
                "(network.channels x multiplier)."
            )
    if head_width is None:  # spatial transformers fit any width
        return
    # The middle always attends, and its width is that of the last level.
    attending = {w for w, side in zip(widths, sides, strict=True) if side in attention}
    for width in sorted(attending | {widths[-1]}):
        if width % head_width:
            raise ConfigError(
                f"network.head_width = {head_width} does not divide the width {width} "
                "of a level with attention."
            )
