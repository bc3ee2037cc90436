"""The configuration: nested dataclasses, read from TOML, checked key by key.

A preset is a TOML file shipped in `egc/presets`. A user's own file has the same keys, and may
start from a preset with `preset = "digits"` at its top. Every unknown key, wrong type and value
out of range is refused with the key's full name and the nearest known one.
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w

from egc.errors import ConfigError, suggest
from egc.tree import build, flat, merge, plain, set_key

Sampler = Literal["ddpm", "ddim", "dpm++", "unipc"]
Tracker = Literal["tensorboard", "wandb"]
Kind = Literal["egc", "egc-unsupervised", "classifier", "ddpm", "jem"]
SAMPLERS: tuple[str, ...] = typing.get_args(Sampler)
TIMELESS = ("classifier", "jem")
"""kinds of objective whose network does not know the noise level"""
UNLABELLED = ("egc-unsupervised", "ddpm")
"""kinds of objective that have no use for labels"""


def _positive(default: Any, **metadata: Any) -> Any:
    return field(default=default, metadata={"above": 0, **metadata})


def _at_least(low: float, default: Any, **metadata: Any) -> Any:
    return field(default=default, metadata={"low": low, **metadata})


def _share(default: float) -> Any:
    return field(default=default, metadata={"low": 0, "below": 1})


@dataclass(frozen=True)
class AugmentConfig:
    """Random changes to training images."""

    flip: bool = False
    """mirror half of the images left to right"""
    shift: int = _at_least(0, 0)
    """move by up to this many pixels each way, filling with the border's colour"""
    pad_crop: int = _at_least(0, 0)
    """pad with this many black pixels on each side and cut the original size out at random"""
    cutout: int = _at_least(0, 0)
    """grey out a square of this side, anywhere in the image"""
    resized_crop: float = field(default=0.0, metadata={"low": 0, "high": 1})
    """cut out a part of at least this share of the area, at a ratio of 3:4 to 4:3, and enlarge it
    (RandomResizedCrop, 0.08 for ImageNet); 0 does not"""


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are split."""

    source: str = "digits"
    """a named set (`egc data` lists them); `folder:PATH` with one sub-folder a class (no
    sub-folders: unsupervised); `hub:NAME`, of the `datasets` library; or `latents:PATH`, made by
    `egc encode`"""
    clean_source: str | None = None
    """where the clean classification stream comes from; default: the same images"""
    labels: bool = True
    """false: forget them, and train without supervision"""
    labels_fraction: float = field(default=1.0, metadata={"above": 0, "high": 1})
    """share of the training labels to keep, as evenly over the classes as can be; the other images
    train the score alone"""
    labels_list: str | None = None
    """instead, a file with the numbers of the training images whose labels to keep, one a line"""
    streaming: bool = False
    """`hub:` only: read the images as they are needed, for sets larger than the disk"""
    image_size: int | None = _at_least(4, None)
    """side in pixels; default: the data's own"""
    channels: int | None = field(default=None, metadata={"choices": (1, 3)})
    """1 grey, 3 colour; default: the data's own"""
    test: float = _share(0.2)
    """share held out for testing, of sources without a test split of their own"""
    validation: float = _share(0.1)
    """share of the training images held out to watch accuracy while training"""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """for the noised stream, which generation learns from"""
    augment_clean: AugmentConfig = field(default_factory=AugmentConfig)
    """for the clean classification stream, which bears stronger changes"""


@dataclass(frozen=True)
class CodecConfig:
    """What the network sees: pixels, or the latents of an autoencoder."""

    kind: Literal["pixel", "latent"] = "pixel"
    autoencoder: str = ""
    """directory or hub id of a diffusers AutoencoderKL or VQModel; `ID#SUBFOLDER` for a part"""
    scale: float | None = field(default=None, metadata={"above": 0})
    """latents are multiplied by it; default: one over their standard deviation, measured"""
    shift: float = 0.0
    """and this is taken off before"""
    channels: int | None = field(default=None, metadata={"above": 0})
    """of the latents; default: what the autoencoder says"""
    factor: int | None = field(default=None, metadata={"above": 0})
    """pixels a latent position stands for, along a side; default: what the autoencoder says"""


@dataclass(frozen=True)
class DiffusionConfig:
    """The noise schedule."""

    schedule: Literal["cosine", "linear"] = "cosine"
    steps: int = _at_least(2, 1000)
    """T, the number of noise levels"""
    beta_start: float = _positive(1e-4, below=1)
    """of the linear schedule"""
    beta_end: float = _positive(0.02, below=1)
    """of the linear schedule"""


@dataclass(frozen=True)
class NetworkConfig:
    """The U-Net and its readout."""

    channels: int = _positive(64)
    multipliers: tuple[int, ...] = _positive((1, 2, 2))
    """width of each level, in units of `channels`"""
    depth: int = _positive(2)
    """residual blocks a level"""
    attention: tuple[int, ...] = _positive((16, 8))
    """sides of the maps that get self-attention"""
    head_width: int = _positive(32)
    groups: int = _at_least(0, 32)
    """groups of each GroupNorm; 0: no norms"""
    readout: Literal["dense", "pooled", "mean"] = "dense"
    components: int = _positive(16)
    """width of the readout when the data has no labels"""
    kind: Literal["unet", "resnet"] = "unet"
    """the U-Net, or a feed-forward wide ResNet of the ablation (no attention, no skips)"""
    stem_stride: int = _positive(1)
    """2: the network works at half the resolution, at a quarter of the cost"""
    label_width: int = _at_least(0, 0)
    """above 0, the network also sees the label, through an embedding of this width ("dagger")"""
    heads: int = _positive(4)
    """attention heads of a label-conditioned network, each of `head_width`"""


@dataclass(frozen=True)
class SGLDConfig:
    """Of `jem`: its Langevin dynamics, and what its density term weighs."""

    steps: int = _positive(20)
    """of a chain, in every training step"""
    step_size: float = _positive(1.0)
    noise: float = _at_least(0, 0.01)
    """of each step"""
    buffer: int = _positive(10_000)
    """chains that are kept"""
    restart: float = field(default=0.05, metadata={"low": 0, "high": 1})
    """how often a chain starts anew"""
    image_noise: float = _at_least(0, 0.03)
    """added to training images"""
    weight: float = _at_least(0, 1.0)
    """of log p(x), beside that of log p(y|x)"""


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is minimised: score matching plus gamma times classification, or a rival's loss."""

    kind: Kind = "egc"
    """`egc-unsupervised` forgets the labels; `classifier`, `ddpm` and `jem` are what the paper
    compares with, on the same backbone"""
    gamma: float = _at_least(0, 0.001)
    gradient: Literal["exact", "paired", "auto"] = "exact"
    """of the score term: by double backward, or by two first-order passes (error about 0.2 %);
    "auto" measures both on this machine, once"""
    lean: bool = False
    """paired only: the passes of a step one after the other, in the memory of one"""
    noisy_stream: bool = True
    """classify the noised images"""
    clean_stream: bool = False
    """classify clean images (t = 0) too, at the cost of one more pass"""
    time_weight: bool = True
    """weigh the noised stream's cross-entropy by sqrt(abar_t)"""
    label_smoothing: float = _share(0.0)
    label_dropout: float = _share(0.1)
    """share of images whose label a label-conditioned network does not get to see"""
    sgld: SGLDConfig = field(default_factory=SGLDConfig)


@dataclass(frozen=True)
class TrainConfig:
    """How long and how fast."""

    steps: int = _positive(200_000)
    batch_size: int = _positive(128)
    lr: float = _positive(1e-4)
    lr_decay: Literal["none", "cosine", "drops"] = "none"
    lr_drops: tuple[float, ...] = field(default=(), metadata={"above": 0, "below": 1})
    """of `drops`: after which shares of all steps the learning rate falls"""
    lr_drop: float = field(default=0.2, metadata={"above": 0, "below": 1})
    """of `drops`: to this share of what it was"""
    optimizer: Literal["adam", "sgd"] = "adam"
    """sgd has a Nesterov momentum of 0.9"""
    weight_decay: float = _at_least(0, 0.0)
    warmup: int = _at_least(0, 0)
    """steps over which the learning rate rises from zero"""
    clip: float = _at_least(0, 1.0)
    """largest norm of the gradient; 0 does not clip"""
    ema: float = _share(0.9999)
    """decay of the averaged weights, which are the ones saved and sampled from"""
    seed: int = _at_least(0, 0)
    log_every: int = _positive(50)
    preview_every: int = _positive(5_000)
    """steps between sample grids and validation"""
    checkpoint_every: int = _positive(5_000)
    keep: int = _positive(2)
    """how many checkpoints stay, beside the best"""
    accumulate: int = _positive(1)
    """parts a batch is computed in, one after the other, to save memory"""
    activation_checkpointing: bool = False
    """compute activations again in the backward pass instead of keeping them, to save memory"""
    compile: bool = False
    """torch.compile the network; with the paired gradient only"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: autocast of the network on a GPU, energies and score in fp32; exact gradient only"""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """what to do when a loss or gradient is not finite"""
    trackers: tuple[Tracker, ...] = ()
    """where to send metrics besides metrics.jsonl"""


@dataclass(frozen=True)
class SampleConfig:
    """Defaults of sampling, for previews and for users of the trained model."""

    sampler: Sampler = "ddim"
    steps: int = _positive(50)
    guidance: float = _at_least(0, 1.0)
    """by the classifier; 0: none"""
    cfg: float = _at_least(0, 1.0)
    """classifier-free, of label-conditioned networks; 1: as conditioned, above: more so"""


@dataclass(frozen=True)
class Config:
    """Everything a run is a function of."""

    data: DataConfig = field(default_factory=DataConfig)
    codec: CodecConfig = field(default_factory=CodecConfig)
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)

    @classmethod
    def load(cls, source: str | Path) -> Config:
        """A preset's name or a TOML file."""
        return cls.from_dict(read_tree(source))

    def with_settings(self, settings: Iterable[str]) -> Config:
        """A copy with `section.key=value` settings applied."""
        tree = self.to_dict()
        for setting in settings:
            set_key(tree, setting)
        return type(self).from_dict(tree)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Config:
        config = build(cls, tree, "")
        if config.diffusion.beta_start > config.diffusion.beta_end:
            raise ConfigError("diffusion.beta_start must not be larger than diffusion.beta_end.")
        if config.train.warmup > config.train.steps:
            raise ConfigError(
                f"train.warmup = {config.train.warmup} is longer than "
                f"train.steps = {config.train.steps}."
            )
        paired, exact = (config.objective.gradient == kind for kind in ("paired", "exact"))
        if config.train.compile and not paired:
            raise ConfigError(
                'train.compile needs objective.gradient = "paired": torch.compile cannot '
                "differentiate twice."
            )
        if config.train.precision == "bf16" and paired:
            raise ConfigError(
                'train.precision = "bf16" needs objective.gradient = "exact": the paired one '
                "subtracts energies that differ by less than bf16 can tell."
            )
        if config.network.kind == "resnet" and (
            config.network.attention or config.network.label_width
        ):
            raise ConfigError(
                'network.kind = "resnet" has no attention and sees no labels: set '
                "network.attention = [] and network.label_width = 0."
            )
        if config.network.label_width and config.objective.kind != "egc":
            raise ConfigError(
                f'network.label_width is for objective.kind = "egc", not for '
                f'"{config.objective.kind}"; set it to 0.'
            )
        if config.objective.lean and exact:
            raise ConfigError(
                'objective.lean needs objective.gradient = "paired": the exact one is a single '
                "pass; save memory with train.accumulate or train.activation_checkpointing."
            )
        return config

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the keys that are left to their default of "none"."""
        return plain(self)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    def replace(self, **sections: Mapping[str, Any]) -> Config:
        """A copy with some keys changed: `config.replace(train={"steps": 10})`."""
        tree = self.to_dict()
        for section, values in sections.items():
            tree[section] = {**tree[section], **values}
        return type(self).from_dict(tree)

    def differences(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """Keys whose values differ, with both values."""
        mine, theirs = flat(self.to_dict()), flat(other.to_dict())
        return {
            key: (mine.get(key), theirs.get(key))
            for key in sorted(mine.keys() | theirs.keys())
            if mine.get(key) != theirs.get(key)
        }


def list_presets() -> list[str]:
    """The names of the presets that ship with the package."""
    found = (resources.files("egc") / "presets").iterdir()
    return sorted(item.name.removesuffix(".toml") for item in found if item.name.endswith(".toml"))


def read_tree(source: str | Path) -> dict[str, Any]:
    """The tree of a preset or a file, merged over the preset it starts from."""
    name = str(source)
    if name in list_presets():
        text, where = (resources.files("egc") / "presets" / f"{name}.toml").read_text(), name
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
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}.") from None
    base = tree.pop("preset", None)
    return tree if base is None else merge(read_tree(base), tree)
