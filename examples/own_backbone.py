"""A backbone of your own in one file: a small diffusion transformer (DiT, Peebles & Xie 2023).

    egc train digits --import own_backbone --run runs/dit \\
        --set network.kind=dit --set network.options.patch=2 --set network.depth=4
    egc sample runs/dit --import own_backbone --label 3

or `python own_backbone.py`. The image is cut into patches, which become tokens; every block
attends among them and is scaled and shifted by the noise level; at the end each token becomes a
square of the map that the readout makes an energy of.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from egc.config import NetworkConfig
from egc.config.parse import build, key
from egc.errors import ConfigError
from egc.nn.backbone import Backbone, Shape
from egc.nn.double_backward import attention
from egc.registry import backbones


@dataclass(frozen=True)
class DiTOptions:
    """Keys below `network.options`."""

    patch: int = key(2, "side of a patch", above=0)


class Block(nn.Module):
    """Attention and a feed-forward layer, each scaled and shifted by the noise level."""

    def __init__(self, width: int, heads: int, time_width: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.modulate = nn.Linear(time_width, 6 * width)
        nn.init.zeros_(self.modulate.weight)  # every block starts as the identity
        nn.init.zeros_(self.modulate.bias)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulate(F.silu(emb))[:, None].chunk(
            6, dim=-1
        )
        x = x + gate1 * self.attend(self.norm1(x) * (1 + scale1) + shift1)
        hidden = F.gelu(self.wide(self.norm2(x) * (1 + scale2) + shift2))
        return x + gate2 * self.narrow(hidden)

    def attend(self, x: Tensor) -> Tensor:
        # (B, N, 3 width) -> three of (B, heads, N, head width)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(attention(q, k, v).transpose(1, 2).flatten(2))


@backbones.register("dit")
class DiT(Backbone):
    """(x_t, t) -> map: (B, inputs, H, W), (B,) -> (B, outputs, H, W)."""

    def __init__(self, shape: Shape, width: int, depth: int, head_width: int, patch: int):
        super().__init__(width, timed=shape.timed)
        if shape.image_size % patch:
            raise ConfigError(
                f"network.options.patch = {patch} does not divide the {shape.image_size} pixels "
                "of a side."
            )
        tokens = (shape.image_size // patch) ** 2
        self.stem = nn.Conv2d(shape.inputs, width, patch, stride=patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        heads = max(1, width // head_width)
        self.blocks = nn.ModuleList(Block(width, heads, self.time_width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        squares = nn.Conv2d(width, shape.outputs * patch**2, 1)
        self.out = nn.Sequential(squares, nn.PixelShuffle(patch))

    @classmethod
    def from_config(cls, network: NetworkConfig, shape: Shape) -> "DiT":
        options = build(DiTOptions, network.options, "network.options.")
        return cls(shape, network.channels, network.depth, network.head_width, options.patch)

    def features(self, x: Tensor, t: Tensor, cond: Tensor | None = None) -> Tensor:
        emb, _ = self.embed(x, t, cond)
        patches = self.stem(x)
        tokens = patches.flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            tokens = self.run(block, tokens, emb)
        return self.norm(tokens).transpose(1, 2).unflatten(2, patches.shape[-2:])


def main() -> None:
    from egc import EGC

    settings = [
        "network.kind=dit",
        "network.depth=2",
        "network.head_width=16",
        "train.steps=4",
        "sample.steps=4",
    ]
    model = EGC.fit("digits", preset="digits-demo", settings=settings, report=False)
    print(f"{model.size()['parameters']:,} parameters")
    model.sample("3", count=4).save("threes.png")


if __name__ == "__main__":
    main()
