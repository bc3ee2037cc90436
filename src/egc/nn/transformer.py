"""The spatial transformer of latent diffusion: how a label-conditioned network sees the label.

    tokens = proj_in(GroupNorm(x))         the positions of the map, `heads * head_width` wide
    tokens += self-attention(LayerNorm(tokens))
    tokens += cross-attention to the label
    tokens += GEGLU feed-forward(LayerNorm(tokens)), four times as wide inside
    x      += proj_out(tokens)

The context is one token, the label's embedding. A softmax over one token is 1, whatever the query
and the key: cross-attention to it is a linear map of the embedding, added to every position. So it
is computed as that, and the query, the key and the LayerNorm before them are not kept.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from egc.nn.double_backward import Conv2d, attention
from egc.nn.layers import zeroed


class SpatialTransformer(nn.Module):
    """A map (B, C, H, W) and a label (B, 1, label width) -> the map, as a residual branch."""

    def __init__(self, channels: int, heads: int, head_width: int, label_width: int, groups: int):
        super().__init__()
        width = heads * head_width
        self.heads = heads
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.proj_in = Conv2d(channels, width, 1)
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.label_value = nn.Linear(label_width, width, bias=False)
        self.label_out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 8 * width)  # the value and the gate of GEGLU
        self.narrow = nn.Linear(4 * width, width)
        self.proj_out = zeroed(Conv2d(width, channels, 1))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        tokens = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        tokens = tokens + self._attend(self.norm1(tokens))
        tokens = tokens + self.label_out(self.label_value(label))
        value, gate = self.widen(self.norm2(tokens)).chunk(2, dim=-1)
        tokens = tokens + self.narrow(value * F.gelu(gate))
        return x + self.proj_out(tokens.transpose(1, 2).unflatten(2, x.shape[-2:]))

    def _attend(self, tokens: Tensor) -> Tensor:
        # (B, N, 3 width) -> three of (B, heads, N, head width)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(attention(q, k, v).transpose(1, 2).flatten(2))
