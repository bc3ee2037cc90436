"""Codecs: between the pictures people have and the tensors the network sees.

The only place that knows value ranges and channel order. Outside, an image is uint8, NHWC,
0..255. Inside ("model space"), it is float, NCHW, centred on zero.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class PixelCodec:
    """Pixels as they are: 0..255 becomes -1..1."""

    clip: float | None = 1.0
    """the largest absolute value in model space, for samplers that clip; None: unbounded"""

    def __init__(self, channels: int, image_size: int):
        self.channels = channels
        self.image_size = image_size
        self.shape = (channels, image_size, image_size)
        """(C, H, W) in model space"""

    def encode(self, images: np.ndarray | Tensor) -> Tensor:
        """uint8 (B, H, W, C) -> float (B, C, H, W) in -1..1."""
        pixels = torch.as_tensor(images)
        return pixels.permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1

    def decode(self, x: Tensor) -> np.ndarray:
        """float (B, C, H, W) -> uint8 (B, H, W, C), clipping what lies outside."""
        pixels = ((x.detach().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 1).cpu().numpy()
