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
from egc.nn.blocks import (
    Downsample,
    ResBlock,
    SelfAttention,
    Upsample,
    timestep_embedding,
)
from egc.nn.twice import Conv2d, NormSiLU, recomputed


class Stage(nn.Module):
    """A residual block and, at the resolutions that have it, attention."""

    def __init__(
        self, inputs: int, outputs: int, time_width: int, groups: int, head_width: int | None
    ):
        super().__init__()
        self.block = ResBlock(inputs, outputs, time_width, groups)
        self.attention = (
            SelfAttention(outputs, head_width, groups) if head_width else nn.Identity()
        )

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        return self.attention(self.block(x, emb))


class UNet(nn.Module):
    """(x_t, t) -> map: (B, inputs, H, W), (B,) -> (B, outputs, H, W).

    Args:
        inputs, outputs: channels of the image and of the map.
        image_size: the side of the image, from which the side of every level follows.
        channels, multipliers: the width of level i is `channels * multipliers[i]`.
        depth: residual blocks a level.
        attention: the sides of the maps (such as 16, 8) that get self-attention.
        head_width: channels of one attention head.
        groups: groups of each GroupNorm.
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
    ):
        super().__init__()
        sides = level_sides(image_size, len(multipliers))
        widths = [channels * multiplier for multiplier in multipliers]
        _check(image_size, sides, widths, attention, head_width, groups)

        self.checkpointing = False
        """compute activations again in the backward pass instead of keeping them"""
        self.channels = channels
        time_width = 4 * channels
        self.time = nn.Sequential(
            nn.Linear(channels, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.stem = Conv2d(inputs, widths[0], 3, padding=1)

        def stage(n_in: int, n_out: int, side: int) -> Stage:
            heads = head_width if side in attention else None
            return Stage(n_in, n_out, time_width, groups, heads)

        self.down = nn.ModuleList()
        skips = [width := widths[0]]
        for level, (n_out, side) in enumerate(zip(widths, sides, strict=True)):
            for _ in range(depth):
                self.down.append(stage(width, n_out, side))
                skips.append(width := n_out)
            if level < len(widths) - 1:
                self.down.append(Downsample(width))
                skips.append(width)

        self.middle = nn.ModuleList(
            [
                Stage(width, width, time_width, groups, head_width),
                Stage(width, width, time_width, groups, None),
            ]
        )

        self.up = nn.ModuleList()
        for level, (n_out, side) in reversed(list(enumerate(zip(widths, sides, strict=True)))):
            for _ in range(depth + 1):
                self.up.append(stage(width + skips.pop(), n_out, side))
                width = n_out
            if level > 0:
                self.up.append(Upsample(width))

        self.norm = NormSiLU(groups, width)
        # Not zeroed, as DDPM's is: here the channels are classes, and channels that start equal
        # get equal gradients from the score term and are slow to tell classes apart.
        self.out = Conv2d(width, outputs, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
        if cond is not None:
            raise ConfigError(
                "This network has no label embedding, so it takes no `cond`; "
                "guide it with `labels` instead."
            )
        emb = self.time(timestep_embedding(t, self.channels).to(x.dtype))
        h = self.stem(x)
        skips = [h]
        for layer in self.down:
            h = layer(h) if isinstance(layer, Downsample) else self._stage(layer, h, emb)
            skips.append(h)
        for layer in self.middle:
            h = self._stage(layer, h, emb)
        for layer in self.up:
            if isinstance(layer, Upsample):
                h = layer(h, size=skips[-1].shape[-2:])
            else:
                h = self._stage(layer, torch.cat([h, skips.pop()], dim=1), emb)
        return self.out(self.norm(h))

    def _stage(self, stage: nn.Module, x: Tensor, emb: Tensor) -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            return recomputed(stage, x, emb)
        return stage(x, emb)


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
    head_width: int,
    groups: int,
) -> None:
    """Refuse a shape that cannot be built, naming the key to change."""
    if missing := [side for side in attention if side not in sides]:
        raise ConfigError(
            f"network.attention = {list(attention)}: there is no map of side {missing[0]}; "
            f"a {image_size}x{image_size} input with {len(sides)} levels has the sides {sides}."
        )
    for width in widths:
        if width % groups:
            raise ConfigError(
                f"network.groups = {groups} does not divide the width {width} "
                "(network.channels x multiplier)."
            )
    # The middle always attends, and its width is that of the last level.
    attending = {w for w, side in zip(widths, sides, strict=True) if side in attention}
    for width in sorted(attending | {widths[-1]}):
        if width % head_width:
            raise ConfigError(
                f"network.head_width = {head_width} does not divide the width {width} "
                "of a level with attention."
            )
