"""A model: network, diffusion, codec and class names, built from a configuration.

On disk it is a directory that nothing has to be unpickled from:

    config.json         format, configuration, class names, and where the weights came from
    model.safetensors   the weights (of the moving average, if it was trained here)
    README.md           the model card
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from egc.codec import Codec, make_codec
from egc.config import TIMELESS, Config
from egc.diffusion import Diffusion
from egc.energy import EnergyModel
from egc.errors import ConfigError, ModelError, suggest
from egc.nn.backbone import Backbone
from egc.nn.readout import DenseReadout, MeanReadout, PooledReadout
from egc.nn.resnet import ResNet
from egc.nn.unet import UNet
from egc.rivals import NoisePredictor, StillEnergy

FORMAT = 1
CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"


@dataclass
class Model:
    """What every task needs: the network and the three things that give it meaning."""

    config: Config
    classes: list[str]
    """names of the classes; empty for a model trained without labels"""
    net: EnergyModel
    diffusion: Diffusion
    codec: Codec
    facts: dict[str, Any] = field(default_factory=dict)
    """where the weights came from: data, steps, figures"""

    @classmethod
    def build(
        cls,
        config: Config,
        classes: Sequence[str],
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> Self:
        """A model with fresh weights, which are a function of the seed.

        On the device `meta` it has shapes but no weights: for sizes, or weights from elsewhere.
        """
        diffusion, codec = Diffusion(config.diffusion), make_codec(config)
        with torch.random.fork_rng(devices=[]), torch.device(device or "cpu"):
            torch.manual_seed(seed)
            net = build_network(config, codec, len(classes), diffusion.sigmas)
        return cls(config, list(classes), net, diffusion, codec)

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    @property
    def draws(self) -> bool:
        """Whether it was trained to make images."""
        return self.config.objective.kind != "classifier"

    @property
    def denoises(self) -> bool:
        """Whether it predicts noise, as all tasks of diffusion need."""
        return self.config.objective.kind not in TIMELESS

    @property
    def has_energy(self) -> bool:
        return self.config.objective.kind != "ddpm"

    def to(self, device: str | torch.device) -> Self:
        """Move the network, and what the codec works with, to a device; returns the model."""
        self.net.to(device)
        self.codec.to(device)
        return self

    def size(self) -> dict[str, float]:
        """Parameters, and the cost of one forward pass of one image (a multiply-add is 2)."""
        x = torch.zeros(1, *self.codec.shape, device=self.device)
        evaluate = self.net.predict if isinstance(self.net, NoisePredictor) else self.net
        counter = FlopCounterMode(display=False)
        # Fused attention would not be counted on a CPU.
        with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            evaluate(x, 0)
        return {
            "parameters": sum(p.numel() for p in self.net.parameters()),
            "mflop_per_image": counter.get_total_flops() / 1e6,
        }

    def label_index(self, label: str | int) -> int:
        """The index of a class, given by name or by index."""
        if not self.classes:
            raise ModelError(
                "This model was trained without labels, so it has no classes to ask for."
            )
        if isinstance(label, str) and label in self.classes:
            return self.classes.index(label)
        try:
            index = int(label)
        except ValueError:
            index = -1
        if not 0 <= index < len(self.classes):
            hint = suggest(str(label), self.classes)
            raise ModelError(f"This model has no class {str(label)!r}. {hint}")
        return index

    def save(self, path: str | Path, card: str = "", dtype: torch.dtype | None = None) -> Path:
        """Write the model directory; `dtype` stores the weights in fewer bits."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        about = {
            "format": FORMAT,
            "config": self.config.to_dict(),
            "classes": self.classes,
            "facts": self.facts,
        }
        weights = {name: w.detach().to(dtype=dtype).cpu().contiguous() for name, w in _state(self)}
        save_file(weights, path / WEIGHTS_FILE)
        self.codec.save(path)
        (path / CONFIG_FILE).write_text(json.dumps(about, indent=2) + "\n")
        (path / CARD_FILE).write_text(card or f"# {path.name}\n\nAn EGC model.\n")
        return path

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a model directory. The weights are frozen: their gradients are never needed."""
        path = Path(path)
        about = _read_about(path)
        try:
            model = cls.build(Config.from_dict(about["config"]), about["classes"])
        except (KeyError, TypeError, ConfigError) as error:
            raise ModelError(f"{path / CONFIG_FILE} is not a usable model: {error}") from None
        model.facts = about.get("facts", {})
        model.codec.look_in(path)
        try:
            weights = load_file(path / WEIGHTS_FILE)
        except FileNotFoundError:
            raise ModelError(f"{path} has no {WEIGHTS_FILE}; is it a model directory?") from None
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path / WEIGHTS_FILE} is damaged ({error}); export or download it again."
            ) from None
        _check_weights(weights, dict(_state(model)), path / WEIGHTS_FILE)
        model.net.load_state_dict(weights)
        model.net.eval().requires_grad_(False)
        return model


def build_network(config: Config, codec: Codec, classes: int, sigmas: Tensor) -> EnergyModel:
    """The backbone and the readout that the configuration names, or a rival's network."""
    network, kind = config.network, config.objective.kind
    inputs, image_size, _ = codec.shape
    if kind == "ddpm":
        if network.kind == "resnet":
            raise ConfigError('objective.kind = "ddpm" needs network.kind = "unet".')
        outputs = inputs * network.stem_stride**2
        backbone = build_backbone(config, inputs, outputs, image_size)
        return NoisePredictor(backbone, sigmas, network.stem_stride)
    readout = build_readout(config, classes or network.components)
    backbone = build_backbone(config, inputs, readout.map_channels, image_size, classes)
    return (StillEnergy if kind in TIMELESS else EnergyModel)(backbone, readout, sigmas)


def build_readout(config: Config, outputs: int) -> DenseReadout | MeanReadout | PooledReadout:
    network = config.network
    if network.readout == "dense":
        return DenseReadout(outputs)
    if network.readout == "mean":
        return MeanReadout(outputs)
    if network.channels % network.head_width:
        raise ConfigError(
            f"network.head_width = {network.head_width} does not divide "
            f"network.channels = {network.channels}, as the pooled readout needs."
        )
    return PooledReadout(outputs, network.channels, network.head_width)


def build_backbone(
    config: Config, inputs: int, outputs: int, image_size: int, classes: int = 0
) -> Backbone:
    """The configured network between any numbers of channels."""
    network = config.network
    common: dict[str, Any] = {
        "inputs": inputs,
        "outputs": outputs,
        "channels": network.channels,
        "multipliers": network.multipliers,
        "depth": network.depth,
        "groups": network.groups,
        "stem_stride": network.stem_stride,
        "timed": config.objective.kind not in TIMELESS,
    }
    if network.kind == "resnet":
        return ResNet(**common)
    if network.label_width and not classes:
        raise ConfigError(
            f"network.label_width = {network.label_width} is for networks that see labels, but "
            "the data has none; set network.label_width = 0."
        )
    return UNet(
        **common,
        image_size=image_size,
        attention=network.attention,
        head_width=network.head_width,
        heads=network.heads,
        classes=classes,
        label_width=network.label_width,
    )


def _state(model: Model) -> list[tuple[str, Tensor]]:
    return list(model.net.state_dict().items())


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads((path / CONFIG_FILE).read_text())
    except FileNotFoundError:
        raise ModelError(f"{path} has no {CONFIG_FILE}; is it a model directory?") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path / CONFIG_FILE} is damaged ({error}); export or download it again."
        ) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else None
        raise ModelError(
            f"{path / CONFIG_FILE} has format {found!r}; this version of EGC reads {FORMAT}."
        )
    return about


def _check_weights(found: dict[str, Tensor], expected: dict[str, Tensor], where: Path) -> None:
    """The weights must fit the configuration, name by name and shape by shape."""
    for name, weight in expected.items():
        if name not in found:
            raise ModelError(f"{where} lacks {name!r}: it does not belong to its config.json.")
        if found[name].shape != weight.shape:
            raise ModelError(
                f"{where}: {name!r} has shape {tuple(found[name].shape)}, "
                f"but its config.json says {tuple(weight.shape)}."
            )
    if extra := found.keys() - expected.keys():
        raise ModelError(f"{where} has {min(extra)!r}, which its config.json does not know.")
