"""A model: network, diffusion, codec and class names, built from a configuration.

On disk it is a directory that nothing has to be unpickled from:

    config.json         format, configuration, class names, and where the weights came from
    model.safetensors   the weights (of the moving average, if it was trained here)
    README.md           the model card
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from egc.codec import Codec, make_codec
from egc.config import Config, SampleConfig
from egc.config.parse import build, plain
from egc.diffusion import Diffusion
from egc.errors import ConfigError, ModelError, suggest
from egc.nn.network import Network
from egc.objectives.base import Objective
from egc.registry import objectives

FORMAT = 1
CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"


@dataclass
class Model:
    """What every task needs: the network and the three things that give it meaning."""

    config: Config
    classes: list[str]
    """names of the classes; empty for a model trained without labels"""
    net: Any
    """an `EnergyModel`, or the `Network` of a baseline"""
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
        objective = objective_of(config)
        objective.options(config.objective)  # refused here, and not after the data was read
        diffusion, codec = Diffusion(config.diffusion), make_codec(config)
        with torch.random.fork_rng(devices=[]), torch.device(device or "cpu"):
            torch.manual_seed(seed)
            net: Network = objective.network.from_config(
                config, codec.shape, len(classes), diffusion.sigmas
            )
        _channels_last(net)
        return cls(config, list(classes), net, diffusion, codec)

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    @property
    def classifies(self) -> bool:
        """Whether it gives p(y|x): its network can, and it was trained with labels."""
        return self.net.classifies and bool(self.classes)

    def needs(self, ability: str) -> None:
        """Refuse what the model cannot do: `classifies`, `denoises`, `draws` or `has_energy`."""
        if ability == "classifies" and self.net.classifies and not self.classes:
            raise ModelError("This model was trained without labels, so it cannot classify.")
        words = {
            "classifies": "classify",
            "denoises": "denoise, as it knows no noise levels",
            "draws": "draw images",
            "has_energy": "give an energy",
        }
        if not getattr(self.net, ability):
            raise self.net.cannot(words[ability])

    def to(self, device: str | torch.device) -> Self:
        """Move the network, and what the codec works with, to a device; returns the model."""
        self.net.to(device)
        self.codec.to(device)
        return self

    def size(self) -> dict[str, float]:
        """Parameters, and the cost of one image (a multiply-add is 2): of a forward pass, and of
        classifying, which may need less of the network."""
        x = torch.zeros(1, *self.codec.shape, device=self.device)
        size = {
            "parameters": sum(p.numel() for p in self.net.parameters()),
            "mflop_per_image": _mflop(lambda: self.net(x, 0)),
        }
        if self.classifies:
            size["mflop_classify"] = _mflop(lambda: self.net.logits(x, 0))
        return size

    def sampling(self, **changes: Any) -> SampleConfig:
        """How to draw: the model's defaults, changed by whatever is not None, checked once."""
        given = {name: value for name, value in changes.items() if value is not None}
        if not self.net.denoises and self.net.draws and (given.keys() & {"sampler", "cfg"}):
            raise ConfigError("A JEM draws by Langevin dynamics: it takes no sampler and no cfg.")
        if "cfg" in given and not self.net.takes_label:
            raise ConfigError(
                "Classifier-free guidance (cfg) is for label-conditioned networks, and this is "
                "none; use the classifier's guidance."
            )
        steps, most = given.get("steps"), self.diffusion.steps
        if self.net.denoises and isinstance(steps, int) and not 1 <= steps <= most:
            raise ConfigError(f"The number of sampling steps must be 1 to {most}; got {steps}.")
        return build(SampleConfig, {**plain(self.config.sample), **given})

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
        except (ValueError, TypeError):
            index = -1
        if not 0 <= index < len(self.classes) or (index != label and not isinstance(label, str)):
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
        state = self.net.state_dict()
        weights = {
            name: w.detach().to(dtype=dtype).cpu().contiguous() for name, w in state.items()
        }
        save_file(weights, path / WEIGHTS_FILE)
        (path / WEIGHTS_FILE).chmod(0o644)  # safetensors makes it readable by its owner alone
        self.codec.save(path)
        (path / CONFIG_FILE).write_text(json.dumps(about, indent=2) + "\n")
        (path / CARD_FILE).write_text(card or f"# {path.name}\n\nAn EGC model.\n")
        return path

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a model directory. The weights are frozen: their gradients are never needed."""
        path = Path(path)
        about = read_about(path)
        try:
            config, classes = Config.from_dict(about["config"]), about["classes"]
            model = cls.build(config, classes, device="meta")
            stored = model.net.state_dict()
            if any(b.is_meta for name, b in model.net.named_buffers() if name not in stored):
                model = cls.build(config, classes)  # buffers that are no weights: computed
        except (KeyError, TypeError, ConfigError) as error:
            raise ModelError(f"{path / CONFIG_FILE} is not a usable model: {error}") from None
        model.facts = about.get("facts", {})
        model.codec.look_in(path)
        model.net.load_state_dict(_read_weights(path, model.net.state_dict()), assign=True)
        _channels_last(model.net)
        model.net.eval().requires_grad_(False)
        return model


def _channels_last(net: Any) -> None:
    """The layout in memory with which convolutions are quickest, on a CPU as on a GPU."""
    net.to(memory_format=torch.channels_last)


def _mflop(run: Callable[[], Any]) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    # Fused attention would not be counted on a CPU.
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        run()
    return counter.get_total_flops() / 1e6


def objective_of(config: Config) -> type[Objective]:
    """The objective that a configuration names; it knows which kind of network it trains."""
    return objectives[config.objective.kind]


def make_objective(model: Model) -> Objective:
    """The objective that the model's configuration names, around the model's network."""
    return objective_of(model.config)(model.net, model.diffusion, model.config.objective)


def read_about(path: Path) -> dict[str, Any]:
    """The `config.json` of a model directory."""
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


def _read_weights(path: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, which must fit the configuration name by name and shape by shape."""
    where = path / WEIGHTS_FILE
    try:
        found = load_file(where)
    except FileNotFoundError:
        raise ModelError(f"{path} has no {WEIGHTS_FILE}; is it a model directory?") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{where} is damaged ({error}); export or download it again.") from None
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
    return {name: found[name].to(weight.dtype) for name, weight in expected.items()}
