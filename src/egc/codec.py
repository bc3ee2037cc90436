"""Codecs: between the pictures people have and the tensors the network sees.

The only place that knows value ranges and channel order. Outside, an image is uint8, NHWC,
0..255; attacks and certificates, which change it by less than a grey level, see it as float, NCHW,
0..1 (`unit_pixels`). Inside ("model space"), it is float, NCHW, centred on zero: the pixels
themselves in -1..1, or the latents of an autoencoder,

    x = (mode of the encoder's posterior - shift) * scale

The autoencoder is any AutoencoderKL or VQModel of diffusers. It is opened when it is first needed:
a model's energies and scores can be had without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from egc.config import CodecConfig, Config
from egc.errors import ConfigError, ModelError, suggest

log = logging.getLogger("egc")

AUTOENCODERS = ("AutoencoderKL", "VQModel")
PIXELS_AT_ONCE = 1 << 20
"""that go through an autoencoder together, to bound its memory"""
MEASURED_IMAGES = 256
"""images that the scale of latents is measured on"""


UNIT = 2.0
"""the length in -1..1 of the range 0..1"""
LEVEL = UNIT / 255
"""the distance of two grey levels in -1..1"""


def pixels_of(images: np.ndarray | Tensor) -> Tensor:
    """uint8 (B, H, W, C) -> float (B, C, H, W) in -1..1."""
    planes = torch.as_tensor(images).permute(0, 3, 1, 2).contiguous()
    return planes.to(torch.float32).div_(127.5).sub_(1)


def images_of(pixels: Tensor) -> np.ndarray:
    """float (B, C, H, W) -> uint8 (B, H, W, C), clipping what lies outside -1..1."""
    levels = ((pixels.detach().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return levels.permute(0, 2, 3, 1).cpu().numpy()


def at_once(image_size: int) -> int:
    """How many images of that side may go through an autoencoder together."""
    return max(1, PIXELS_AT_ONCE // image_size**2)


def unit_pixels(images: np.ndarray | Tensor) -> Tensor:
    """uint8 (B, H, W, C) -> float (B, C, H, W) in 0..1."""
    return (pixels_of(images) + 1) / UNIT


class Codec:
    """What the rest of the house asks of a codec; unless overridden, pixels as they are."""

    clip: float | None = 1.0
    """the largest absolute value in model space, for samplers that clip; None: unbounded"""

    def __init__(self, channels: int, image_size: int):
        self.channels = channels
        self.image_size = image_size
        self.shape = (channels, image_size, image_size)
        """(C, H, W) in model space"""

    def encode(self, images: np.ndarray | Tensor) -> Tensor:
        """uint8 (B, H, W, C) -> model space (B, *shape)."""
        return pixels_of(images)

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """float (B, C, H, W) in -1..1 -> model space, differentiably."""
        return pixels

    def encode_unit(self, pixels: Tensor) -> Tensor:
        """float (B, C, H, W) in 0..1 -> model space, differentiably."""
        return self.encode_pixels(UNIT * pixels - 1)

    def decode(self, x: Tensor) -> np.ndarray:
        """Model space (B, *shape) -> uint8 (B, H, W, C), clipping what lies outside."""
        return images_of(x)

    def ready(self) -> Self:
        """Open what is needed now, so that what is missing is missed before long work."""
        return self

    def to(self, device: torch.device | str) -> Self:
        """Where the work is done, if there is any."""
        return self

    def save(self, folder: Path) -> None:
        """Put what cannot be found again elsewhere into a model's directory."""

    def look_in(self, folder: Path) -> None:
        """Take it from there again."""


class PixelCodec(Codec):
    """Pixels as they are: 0..255 becomes -1..1."""


class LatentCodec(Codec):
    """The latents of an autoencoder. `config.channels` and `config.factor` must be known."""

    clip = None

    def __init__(self, config: CodecConfig, channels: int, image_size: int):
        if config.channels is None or config.factor is None:
            raise ConfigError("codec.channels and codec.factor are needed to build a model.")
        if image_size % config.factor:
            raise ConfigError(
                f"data.image_size = {image_size} is not a multiple of codec.factor = "
                f"{config.factor}, the pixels that a latent position stands for."
            )
        super().__init__(channels, image_size)
        side = image_size // config.factor
        self.shape = (config.channels, side, side)
        self.config = config
        self.scale = 1.0 if config.scale is None else config.scale
        self.device = torch.device("cpu")
        self._place = config.autoencoder
        self._autoencoder: Any = None

    def encode(self, images: np.ndarray | Tensor) -> Tensor:
        """Pictures, or latents (B, *shape) in float that were stored by `egc codec encode`."""
        given = torch.as_tensor(images)
        if given.is_floating_point():
            return self._scaled(given.to(torch.float32))
        with torch.no_grad():
            parts = [self.encode_pixels(pixels_of(p).to(self.device)) for p in self._parts(given)]
        return torch.cat(parts)

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        return self._scaled(self.raw(pixels))

    def raw(self, pixels: Tensor) -> Tensor:
        """The autoencoder's own latents, neither shifted nor scaled."""
        coded = self.autoencoder.encode(pixels)
        z = coded.latent_dist.mode() if hasattr(coded, "latent_dist") else coded.latents
        if z.shape[1:] != self.shape:
            raise ModelError(
                f"The autoencoder {self._place!r} makes latents of {tuple(z.shape[1:])}, "
                f"but the model takes {self.shape}."
            )
        return z

    def decode(self, x: Tensor) -> np.ndarray:
        z = x.detach().to(self.device) / self.scale + self.config.shift
        with torch.no_grad():
            parts = [images_of(self.autoencoder.decode(p).sample) for p in self._parts(z)]
        return np.concatenate(parts)

    def ready(self) -> Self:
        _ = self.autoencoder
        return self

    def to(self, device: torch.device | str) -> Self:
        self.device = torch.device(device)
        if self._autoencoder is not None:
            self._autoencoder.to(self.device)
        return self

    def save(self, folder: Path) -> None:
        """Copy a local autoencoder; one from the hub stays there."""
        if Path(self._place.partition("#")[0]).is_dir():
            self.autoencoder.save_pretrained(folder / "autoencoder")

    def look_in(self, folder: Path) -> None:
        if (folder / "autoencoder").is_dir():
            self._place = str(folder / "autoencoder")

    @property
    def autoencoder(self) -> Any:
        if self._autoencoder is None:
            opened = open_autoencoder(self._place)
            if opened.config.in_channels != self.channels:
                raise ConfigError(
                    f"The autoencoder {self._place!r} takes images of "
                    f"{opened.config.in_channels} channels, but data.channels = {self.channels}; "
                    f"set data.channels = {opened.config.in_channels}."
                )
            self._autoencoder = opened.to(self.device)
        return self._autoencoder

    def _scaled(self, z: Tensor) -> Tensor:
        return (z - self.config.shift) * self.scale

    def _parts(self, batch: Tensor) -> tuple[Tensor, ...]:
        return batch.split(at_once(self.image_size))


def make_codec(config: Config) -> Codec:
    """The codec of a configuration that knows its image size and channels."""
    size, channels = config.data.image_size, config.data.channels
    if size is None or channels is None:
        raise ConfigError("data.image_size and data.channels are needed to build a model.")
    if config.codec.kind == "pixel":
        return PixelCodec(channels, size)
    return LatentCodec(config.codec, channels, size)


def settle_codec(config: Config) -> Config:
    """Fill in what the autoencoder says of itself: channels and factor of its latents."""
    codec = config.codec
    if codec.kind == "pixel" or (codec.channels and codec.factor):
        return config
    about = describe_autoencoder(codec.autoencoder)
    found = {
        "channels": codec.channels or about["latent_channels"],
        "factor": codec.factor or about["factor"],
    }
    return config.replace(codec=found)


def measure_scale(config: Config, images: np.ndarray) -> float:
    """One over the standard deviation of the latents of some images, pictures or latents.

    It is rounded, so that measuring it again gives the same run.
    """
    codec = make_codec(config).to("cuda" if torch.cuda.is_available() else "cpu")
    return float(f"{1 / max(float(codec.encode(images).std()), 1e-6):.4g}")


def describe_autoencoder(name: str) -> dict[str, Any]:
    """The configuration of an autoencoder, with its `factor`, without its weights."""
    if not name:
        raise ConfigError(
            'codec.kind = "latent" needs codec.autoencoder: the directory or hub id of a '
            "diffusers AutoencoderKL or VQModel. `egc codec train` makes one."
        )
    from diffusers import AutoencoderKL

    about = dict(_open(name, AutoencoderKL.load_config))
    kind = about.get("_class_name")
    if kind not in AUTOENCODERS:
        raise ModelError(
            f"codec.autoencoder = {name!r} is a {kind!r}. {suggest(str(kind), AUTOENCODERS)}"
        )
    return {**about, "factor": 2 ** (len(about["block_out_channels"]) - 1)}


def open_autoencoder(name: str) -> Any:
    """The autoencoder itself, frozen."""
    import diffusers

    kind = describe_autoencoder(name)["_class_name"]
    if not Path(name.partition("#")[0]).is_dir():
        log.info("Opening the autoencoder %s from the hub (some hundred MB once).", name)
    opened = _open(name, getattr(diffusers, kind).from_pretrained)
    return opened.eval().requires_grad_(False)


def _open(name: str, opener: Callable[..., Any]) -> Any:
    """What diffusers finds under PLACE or PLACE#SUBFOLDER."""
    place, _, subfolder = name.partition("#")
    try:
        return opener(place, subfolder=subfolder or None)
    except Exception as error:  # diffusers and the hub's client fail in many ways
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"The autoencoder {name!r} cannot be opened, neither as a directory of diffusers nor "
            f"from the hub ({lines[0].rstrip('.')}); codec.autoencoder takes a directory too."
        ) from None
