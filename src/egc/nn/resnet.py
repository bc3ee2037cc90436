"""A feed-forward wide ResNet, as used for classification: the last row of the paper's ablation.

    stem -> depth x ResBlock at each width, the first of each later width halving the map
         -> norm, SiLU, convolution -> map at the coarsest resolution

What it lacks are the U-Net's skips from fine to coarse and back. Batch norm is GroupNorm here,
since the energy of an image must not depend on its batch, and ReLU is SiLU, since training needs
second derivatives.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from egc.config import NetworkConfig
from egc.errors import ConfigError
from egc.nn.backbone import Backbone, Shape
from egc.nn.double_backward import Conv2d
from egc.nn.layers import ResBlock, norm_silu
from egc.registry import backbones


@backbones.register("resnet")
class ResNet(Backbone):
    """(x_t, t) -> map: (B, inputs, H, W), (B,) -> (B, outputs, H / 2^(levels - 1), ...).

    A Wide ResNet-28-k has `channels = 16 k`, `multipliers = (1, 2, 4)` and `depth = 4`.
    """

    full_size = False

    def __init__(
        self,
        *,
        inputs: int,
        outputs: int,
        channels: int,
        multipliers: tuple[int, ...],
        depth: int,
        groups: int,
        stem_stride: int = 1,
        timed: bool = True,
    ):
        super().__init__(channels, timed=timed)
        widths = [channels * multiplier for multiplier in multipliers]
        self.stem = Conv2d(inputs, widths[0], 3, stride=stem_stride, padding=1)
        self.blocks = nn.ModuleList()
        width = widths[0]
        for level, n_out in enumerate(widths):
            for index in range(depth):
                stride = 2 if level > 0 and index == 0 else 1
                self.blocks.append(ResBlock(width, n_out, self.time_width, groups, stride))
                width = n_out
        self.norm = norm_silu(groups, width)
        self.out = Conv2d(width, outputs, 3, padding=1)

    @classmethod
    def from_config(cls, network: NetworkConfig, shape: Shape) -> Self:
        if network.attention or network.label_width:
            raise ConfigError(
                'network.kind = "resnet" has no attention and sees no labels: set '
                "network.attention = [] and network.label_width = 0."
            )
        return cls(
            inputs=shape.inputs,
            outputs=shape.outputs,
            timed=shape.timed,
            channels=network.channels,
            multipliers=network.multipliers,
            depth=network.depth,
            groups=network.groups,
            stem_stride=network.stem_stride,
        )

    def features(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
        emb, _ = self.embed(x, t, cond)
        h = self.stem(x)
        for block in self.blocks:
            h = self.run(block, h, emb)
        return self.norm(h)
