"""The network made for its gradient: an encoder with an energy read at every level.

A U-Net is made for its forward pass. To make it an energy costs a second U-Net, the backward
pass, and the score has to find its way through both. Here there is only an encoder,

    h_0 = stem(x),   h_l = blocks_l(down(h_{l-1}), t)          l = 1..L, each half as fine

    f(x, t) = anchor(x, t)  -  1/2 sum_l sum_p |W_l * a_l(h_l)|_p^2

with positions p, a_l = GroupNorm and SiLU, W_l a 3x3 convolution, and in front the density of
Gaussian data, which nobody has to learn (`egc.nn.anchor`). Why forward + backward is a U-Net: let
g_l = df / dh_l. Then

    g_L = e_L',      g_l = e_l' + D_l^T g_{l+1},      grad_x f = anchor' + S^T B_0^T g_0

where e_l' = -(a_l')^T W_l^T (W_l * a_l(h_l)) is read off the map h_l of the way in, and D_l^T
is the transposed Jacobian of the blocks and the downsampling between two levels: transposed
convolutions, gated by the activations that the same layers saw on the way in. Going back, coarse
maps become fine ones, and at each level they meet what the encoder saw there. That is a decoder
with skip connections, whose weights are those of the encoder.

So a noise prediction costs one forward and one backward pass of an encoder, as much as the U-Net
it mirrors; training on an image six passes, as much as three of the U-Net, which is what a DDPM
costs; and guidance by the classifier nothing, since its gradient takes the same way.
Classifying is the encoder alone, without the energies: half of a noise prediction.

Its residual blocks have one norm, not two. Beside convolutions, norms are what a second derivative
spends its time on, and the second made nothing better (docs/pyramid.md).

The logits are an attention pool of the deepest map: the mean of all positions asks, all positions
answer, and what they say stands beside the mean itself.

The nearest published network is GradResNet (Thiry and Guth 2024, arXiv 2410.03505), whose energy
is the square of globally pooled features; it classifies and denoises, and draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn

from egc.config import NetworkConfig
from egc.errors import ConfigError, ModelError
from egc.nn.backbone import Backbone, Shape
from egc.nn.double_backward import Conv2d, attention
from egc.nn.layers import Downsample, ResBlock, SelfAttention, norm_silu
from egc.nn.readouts import Joint, Maps, Readout, single, with_mean_token
from egc.nn.unet import Stage, attends, check_heads, level_sides
from egc.registry import backbones, readouts

START = 0.3
"""what the energies' weights are multiplied by at the start, so that the anchor leads"""


@backbones.register("pyramid")
class Pyramid(Backbone):
    """(x_t, t, cond) -> the map of every level, the finest first.

    A readout that takes a single map of some channels gets it from the deepest level instead.

    Args:
        inputs: channels of the image.
        outputs: channels of the single map; 0: the maps themselves.
        image_size: the side of the image, from which the side of every level follows.
        channels, multipliers: the width of level i is `channels * multipliers[i]`.
        depths: residual blocks of each level.
        attention: the sides of the maps that get attention; see `egc.nn.unet.attends`.
        head_width, groups, stem_stride: as of the U-Net.
        classes, label_width: of a label-conditioned network; the label's embedding is added to
            that of the noise level.
        timed: whether it sees the noise level.
    """

    readout = "levels"
    anchored = gives_levels = True
    full_size = False

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int,
        image_size: int,
        channels: int,
        multipliers: tuple[int, ...],
        depths: tuple[int, ...],
        attention: tuple[int, ...],
        head_width: int,
        groups: int,
        stem_stride: int = 1,
        classes: int = 0,
        label_width: int = 0,
        timed: bool = True,
    ):
        super().__init__(channels, classes, label_width, timed=timed)
        if len(depths) != len(multipliers):
            raise ConfigError(
                f"network.depths has {len(depths)} levels and network.multipliers "
                f"{len(multipliers)}; give one depth a level."
            )
        sides = level_sides(-(-image_size // stem_stride), len(multipliers))
        widths = [channels * multiplier for multiplier in multipliers]
        attending = [attends(side, attention) for side in sides]
        check_heads(widths, attending, head_width)
        self.stem = Conv2d(inputs, widths[0], 3, stride=stem_stride, padding=1)
        self.label = nn.Linear(label_width, self.time_width) if label_width else None
        self.levels = nn.ModuleList()
        n_in = widths[0]
        for level, (width, depth, here) in enumerate(zip(widths, depths, attending, strict=True)):
            layers = nn.ModuleList([Downsample(n_in)] if level else [])
            for index in range(depth):
                attends_here = here and index == depth - 1
                look = SelfAttention(width, head_width, groups) if attends_here else None
                block = ResBlock(n_in, width, self.time_width, groups, second_norm=False)
                layers.append(Stage(block, look))
                n_in = width
            self.levels.append(layers)
        self.single = bool(outputs)
        if self.single:
            self.out = nn.Sequential(norm_silu(groups, n_in), Conv2d(n_in, outputs, 3, padding=1))

    @classmethod
    def from_config(cls, network: NetworkConfig, shape: Shape) -> Self:
        return cls(
            **shape._asdict(),
            channels=network.channels,
            multipliers=network.multipliers,
            depths=network.depths or (network.depth,) * len(network.multipliers),
            attention=network.attention,
            head_width=network.head_width,
            groups=network.groups,
            stem_stride=network.stem_stride,
            label_width=network.label_width,
        )

    def maps(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> list[Tensor]:
        """The map of every level, the finest first."""
        emb, label = self.embed(x, t, cond)
        if self.label is not None and emb is not None and label is not None:
            emb = emb + self.label(label[:, 0])
        h, maps = self.stem(x), []
        for level in self.levels:
            for layer in cast(nn.ModuleList, level):
                h = layer(h) if isinstance(layer, Downsample) else self.run(layer, h, emb, None)
            maps.append(h)
        return maps

    def features(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
        return self.maps(x, t, cond)[-1]

    def forward(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor | list[Tensor]:
        return self.out(self.features(x, t, cond)) if self.single else self.maps(x, t, cond)


@readouts.register("pool")
class PoolReadout(Readout):
    """The logits of a pyramid alone, by attention pool of the deepest map; f is their logsumexp.

    That is a plain classifier on the same encoder.
    """

    map_channels = 0
    positions_speak = True

    def __init__(self, width: int, groups: int, classes: int):
        super().__init__()
        self.norm = norm_silu(groups, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.classes = nn.Linear(2 * width, classes)

    @classmethod
    def from_config(cls, network: NetworkConfig, classes: int) -> Self:
        width = network.channels * network.multipliers[-1]
        return cls(width, network.groups, classes or network.components)

    def logits(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        tokens = with_mean_token(self.norm(single(maps)))
        mean = tokens[:, :1]
        pooled = attention(self.query(mean), self.key(tokens), self.value(tokens))
        return self.classes(torch.cat([pooled, mean], dim=-1).squeeze(1))

    def forward(self, maps: Maps, x: Tensor, t: Tensor) -> Joint:
        logits = self.logits(maps, x, t)
        return Joint(logits.logsumexp(dim=1), logits)

    def local_logits(self, maps: Maps) -> Tensor:
        """The share of each position in the logits, (B, classes, H, W): their mean is the logits.

        The pool is a weighted sum of what the positions say, and so is the mean beside it, which
        also answers as a token of its own.
        """
        h = single(maps)
        tokens = with_mean_token(self.norm(h))
        mean, positions = tokens[:, :1], tokens[:, 1:]
        scores = self.query(mean) @ self.key(tokens).mT * tokens.shape[-1] ** -0.5
        weights = scores.softmax(dim=-1).mT  # (B, 1 + positions, 1)
        count = positions.shape[1]
        share = count * weights[:, 1:] * self.value(positions)
        share = share + weights[:, :1] * self.value(positions)
        local = self.classes(torch.cat([share, positions], dim=-1))
        return local.mT.unflatten(-1, h.shape[-2:])


class LevelEnergy(nn.Module):
    """-1/2 sum over positions of |W * a(h)|^2; (B, C, H, W) -> (B,)."""

    def __init__(self, width: int, groups: int, channels: int):
        super().__init__()
        self.norm = norm_silu(groups, width)
        self.out = Conv2d(width, channels, 3, padding=1)
        with torch.no_grad():
            self.out.weight.mul_(START)

    def forward(self, h: Tensor) -> Tensor:
        return -0.5 * self.out(self.norm(h)).square().sum(dim=(1, 2, 3))


@readouts.register("levels")
class LevelsReadout(Readout):
    """An energy at every level, and logits from the deepest; without labels, no logits."""

    map_channels = 0
    positions_speak = True

    def __init__(self, widths: Sequence[int], groups: int, channels: int, classes: int):
        super().__init__()
        self.energies = nn.ModuleList(LevelEnergy(width, groups, channels) for width in widths)
        self.pool = PoolReadout(widths[-1], groups, classes) if classes else None

    @classmethod
    def from_config(cls, network: NetworkConfig, classes: int) -> Self:
        widths = [network.channels * multiplier for multiplier in network.multipliers]
        return cls(widths, network.groups, network.energy_channels, classes)

    def log_densities(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        """What each level adds to the log-density; (B, levels)."""
        each = zip(self.energies, maps, strict=True)
        return torch.stack([energy(h) for energy, h in each], dim=1)

    def forward(self, maps: Maps, x: Tensor, t: Tensor) -> Joint:
        return Joint(self.log_densities(maps, x, t).sum(dim=1), self.logits(maps, x, t))

    def local_logits(self, maps: Maps) -> Tensor:
        if self.pool is None:
            raise ModelError("Without labels there are no classes to have an opinion about.")
        return self.pool.local_logits(maps)

    def logits(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        return x.new_zeros(len(x), 0) if self.pool is None else self.pool.logits(maps, x, t)
