"""The configuration: nested dataclasses whose fields say what they mean and may be.

A preset is a TOML file shipped in `egc/config/presets`. A user's own file has the same keys, and
may start from a preset with `preset = "digits"` at its top. `egc config` prints all keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w

from egc.config.parse import build, flat, key, merge, plain, set_key
from egc.errors import ConfigError, suggest
from egc.registry import backbones, objectives, readouts, samplers

PRESETS = resources.files("egc") / "config" / "presets"


@dataclass(frozen=True)
class AugmentConfig:
    """Random changes to training images."""

    flip: bool = key(False, "mirror half of the images left to right")
    shift: int = key(
        0, "move by up to this many pixels each way, filling with the border's colour", low=0
    )
    pad_crop: int = key(
        0,
        "pad with this many black pixels on each side and cut the original size out at random",
        low=0,
    )
    cutout: int = key(0, "grey out a square of this side, anywhere in the image", low=0)
    resized_crop: float = key(
        0.0,
        "cut out a part of at least this share of the area, at a ratio of 3:4 to 4:3, and enlarge "
        "it (RandomResizedCrop, 0.08 for ImageNet); 0 does not",
        low=0,
        high=1,
    )


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are split."""

    source: str = key(
        "digits",
        "a named set (`egc data` lists them); folder:PATH with one sub-folder a class (no "
        "sub-folders: unsupervised); hub:NAME, of the `datasets` library; or latents:PATH, made "
        "by `egc codec encode`",
    )
    clean_source: str | None = key(
        None, "where the clean classification stream comes from; default: the same images"
    )
    labels: bool = key(True, "false: forget them, and train without supervision")
    labels_fraction: float = key(
        1.0,
        "share of the training labels to keep, as evenly over the classes as can be; the other "
        "images train the score alone",
        above=0,
        high=1,
    )
    labels_list: str | None = key(
        None,
        "instead, a file with the numbers of the training images whose labels to keep, one a line",
    )
    streaming: bool = key(
        False, "hub: only: read the images as they are needed, for sets larger than the disk"
    )
    skip_unreadable: bool = key(
        False, "go on without images that cannot be read, and say how many"
    )
    image_size: int | None = key(None, "side in pixels; default: the data's own", low=4)
    channels: int | None = key(None, "1 grey, 3 colour; default: the data's own", choices=(1, 3))
    test: float = key(
        0.2,
        "share held out for testing, of sources without a test split of their own",
        low=0,
        below=1,
    )
    validation: float = key(
        0.1, "share of the training images held out to watch accuracy by", low=0, below=1
    )
    augment: AugmentConfig = key(
        AugmentConfig, "for the noised stream, which generation learns from"
    )
    augment_clean: AugmentConfig = key(
        AugmentConfig, "for the clean classification stream, which bears stronger changes"
    )


@dataclass(frozen=True)
class CodecConfig:
    """What the network sees: pixels, or the latents of an autoencoder."""

    kind: Literal["pixel", "latent"] = key("pixel", "pixels, or the latents of an autoencoder")
    autoencoder: str = key(
        "",
        "directory or hub id of a diffusers AutoencoderKL or VQModel; ID#SUBFOLDER for a part",
    )
    scale: float | None = key(
        None,
        "latents are multiplied by it; default: one over their standard deviation, measured",
        above=0,
    )
    shift: float = key(0.0, "what is taken off latents before they are scaled")
    channels: int | None = key(None, "of the latents; default: what the autoencoder says", above=0)
    factor: int | None = key(
        None,
        "pixels a latent position stands for, along a side; default: what the autoencoder says",
        above=0,
    )


@dataclass(frozen=True)
class DiffusionConfig:
    """The noise schedule."""

    schedule: Literal["cosine", "linear"] = key("cosine", "how the noise grows")
    steps: int = key(1000, "T, the number of noise levels", low=2)
    beta_start: float = key(1e-4, "of the linear schedule", above=0, below=1)
    beta_end: float = key(0.02, "of the linear schedule", above=0, below=1)


@dataclass(frozen=True)
class NetworkConfig:
    """The backbone and its readout."""

    kind: str = key("unet", "the backbone", registry=backbones)
    channels: int = key(64, "width of the first level", above=0)
    multipliers: tuple[int, ...] = key(
        (1, 2, 2), "width of each level, in units of `channels`", above=0, filled=True
    )
    depth: int = key(2, "residual blocks a level", above=0)
    depths: tuple[int, ...] = key(
        (), "of a pyramid: residual blocks of each level, where they differ", above=0
    )
    attention: tuple[int, ...] = key(
        (16, 8),
        "sides of the maps that get self-attention; each stands for the level of about that side "
        "(within a factor of the square root of 2), so that images of any size have theirs",
        above=0,
    )
    head_width: int = key(32, "channels of one attention head", above=0)
    groups: int = key(32, "groups of each GroupNorm; 0: no norms", low=0)
    readout: str | None = key(
        None,
        "how maps become an energy and logits; default: `levels` of a pyramid, else `dense`",
        registry=readouts,
    )
    anchor: bool | None = key(
        None,
        "start from the score of Gaussian data with the mean and the spectrum of the training "
        "images, which are measured; default: of a pyramid",
    )
    energy_channels: int = key(
        32, "of a pyramid: channels whose squares are the energy of a level", above=0
    )
    components: int = key(16, "width of the readout when the data has no labels", above=0)
    stem_stride: int = key(
        1, "2: the network works at half the resolution, at a quarter of the cost", above=0
    )
    label_width: int = key(
        0,
        "above 0, the network also sees the label, through an embedding of this width "
        '("dagger" in the paper)',
        low=0,
    )
    heads: int = key(
        4, "attention heads of a label-conditioned network, each of `head_width`", above=0
    )
    options: dict[str, Any] = key(dict, "keys of a backbone or readout of your own")


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is minimised: score matching plus gamma times classification, or a baseline's loss."""

    kind: str = key("egc", "what is minimised", registry=objectives)
    gamma: float = key(0.001, "weight of classification beside score matching", low=0)
    noisy_stream: bool = key(True, "classify the noised images")
    clean_stream: bool = key(
        False, "classify clean images (t = 0) too, at the cost of one more pass"
    )
    clean_share: float = key(
        1.0, "images of the clean stream for each of the noised one; not 1: other images", above=0
    )
    time_weight: bool = key(True, "weigh the noised stream's cross-entropy by sqrt(abar_t)")
    label_smoothing: float = key(0.0, "of the cross-entropies", low=0, below=1)
    label_dropout: float = key(
        0.1,
        "share of images whose label a label-conditioned network does not get to see",
        low=0,
        below=1,
    )
    options: dict[str, Any] = key(dict, "keys of this kind of objective alone, such as JEM's")


@dataclass(frozen=True)
class TrainConfig:
    """How long and how fast."""

    steps: int = key(200_000, "training steps", above=0)
    batch_size: int = key(128, "images a step", above=0)
    lr: float = key(1e-4, "learning rate", above=0)
    lr_decay: Literal["none", "cosine", "drops"] = key("none", "how the learning rate falls")
    lr_drops: tuple[float, ...] = key(
        (), "of `drops`: after which shares of all steps it falls", above=0, below=1
    )
    lr_drop: float = key(0.2, "of `drops`: to this share of what it was", above=0, below=1)
    optimizer: Literal["adam", "sgd"] = key("adam", "sgd has a Nesterov momentum of 0.9")
    weight_decay: float = key(0.0, "of the optimizer", low=0)
    warmup: int = key(
        0,
        "steps over which the learning rate rises from zero; at most a tenth of a short training",
        low=0,
    )
    clip: float = key(1.0, "largest norm of the gradient; 0 does not clip", low=0)
    ema: float = key(
        0.9999,
        "decay of the averaged weights, which are the ones saved and sampled from",
        low=0,
        below=1,
    )
    seed: int = key(0, "of weights, order, noise and augmentation", low=0)
    start_from: str | None = key(
        None, "a model whose weights to begin with, wherever they fit; --from sets it"
    )
    log_every: int = key(50, "steps between lines of metrics.jsonl", above=0)
    preview_every: int = key(5_000, "steps between sample grids and validation", above=0)
    checkpoint_every: int = key(5_000, "steps between checkpoints", above=0)
    keep: int = key(2, "how many checkpoints stay, beside the best", above=0)
    accumulate: int = key(
        1, "parts a batch is computed in, one after the other, to save memory", above=0
    )
    activation_checkpointing: bool = key(
        False,
        "compute activations again in the backward pass instead of keeping them, to save memory",
    )
    precision: Literal["fp32", "bf16"] = key(
        "fp32",
        "bf16: autocast of the network on a GPU, energies and score in fp32",
    )
    on_nonfinite: Literal["stop", "skip"] = key(
        "stop", "what to do when a loss or gradient is not finite"
    )
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = key(
        (), "where to send metrics besides metrics.jsonl"
    )


@dataclass(frozen=True)
class SampleConfig:
    """How images are drawn: the model's defaults, and what a call makes of them."""

    sampler: str = key("ddim", "how noise is taken out", registry=samplers)
    steps: int = key(50, "sampling steps", above=0)
    guidance: float = key(1.0, "how strongly the classifier insists on the label; 0: not", low=0)
    cfg: float = key(
        1.0,
        "classifier-free guidance, of label-conditioned networks; 1: as conditioned, above: more",
        low=0,
    )


@dataclass(frozen=True)
class Config:
    """Everything a run is a function of."""

    data: DataConfig = key(DataConfig, "which images")
    codec: CodecConfig = key(CodecConfig, "what the network sees")
    diffusion: DiffusionConfig = key(DiffusionConfig, "the noise schedule")
    network: NetworkConfig = key(NetworkConfig, "the network")
    objective: ObjectiveConfig = key(ObjectiveConfig, "what is minimised")
    train: TrainConfig = key(TrainConfig, "how long and how fast")
    sample: SampleConfig = key(SampleConfig, "defaults of sampling")

    @classmethod
    def load(cls, source: str | Path) -> Config:
        """A preset's name or a TOML file."""
        return cls.from_dict(read_preset(source))

    def with_settings(self, settings: Iterable[str]) -> Config:
        """A copy with `section.key=value` settings applied."""
        table = self.to_dict()
        for setting in settings:
            set_key(table, setting)
        return type(self).from_dict(table)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Config:
        config: Config = build(cls, _current(table))
        if config.diffusion.beta_start > config.diffusion.beta_end:
            raise ConfigError("diffusion.beta_start must not be larger than diffusion.beta_end.")
        return config

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the keys that are left to their default of "none"."""
        return plain(self)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    def replace(self, **sections: Mapping[str, Any]) -> Config:
        """A copy with some keys changed: `config.replace(train={"steps": 10})`."""
        table = self.to_dict()
        for section, values in sections.items():
            table[section] = {**table[section], **values}
        return type(self).from_dict(table)

    def differences(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """Keys whose values differ, with both values."""
        mine, theirs = flat(self.to_dict()), flat(other.to_dict())
        return {
            name: (mine.get(name), theirs.get(name))
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        }


GONE = {"objective": ("gradient", "lean"), "train": ("compile",)}
"""keys that changed how a step was computed, and not what: files of then are read as ever"""


def _current(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table as this version writes it: JEM's options had a section of their own once."""
    table = dict(table)
    for section, names in GONE.items():
        if isinstance(keys := table.get(section), Mapping):
            table[section] = {name: keys[name] for name in keys if name not in names}
    objective = table.get("objective")
    if isinstance(objective, Mapping) and "sgld" in objective:
        objective = dict(objective)
        sgld = objective.pop("sgld")
        if objective.get("kind") == "jem" and isinstance(sgld, Mapping):
            objective["options"] = {**sgld, **objective.get("options", {})}
        table["objective"] = objective
    return table


def list_presets() -> list[str]:
    """The names of the presets that ship with the package."""
    found = (item.name for item in PRESETS.iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def read_preset(source: str | Path) -> dict[str, Any]:
    """The table of a preset or a file, merged over the preset it starts from."""
    name = str(source)
    if name in list_presets():
        text, where = (PRESETS / f"{name}.toml").read_text(), name
    elif (path := Path(source)).is_file():
        text, where = path.read_text(), name
    elif path.suffix == ".toml":
        raise ConfigError(f"There is no configuration file {name!r}.")
    else:
        raise ConfigError(
            f"There is no preset {name!r}. {suggest(name, list_presets())} "
            "A configuration file of your own ends in .toml."
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}.") from None
    base = table.pop("preset", None)
    return table if base is None else merge(read_preset(base), table)
