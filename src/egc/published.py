"""The authors' checkpoints: PyTorch state dicts of their label-conditioned ImageNet networks.

Their network is the U-Net of guided-diffusion with spatial transformers and the `dense` readout,
on latents. The architecture is read off the shapes; only the number of heads cannot be, since
shapes show its product with the head width alone. Every key must fit, and the first that does not
is named.

    theirs                                   ours
    time_embed.{0,2}                         time.{0,2}
    label_emb                                labels
    input_blocks.0.0                         stem
    input_blocks.I.{0,1} | .0.op             down.I-1.{block,attention} | .conv
    middle_block.{0,1,2}                     middle.0.block, middle.0.attention, middle.1.block
    output_blocks.J.{0,1} | .K.conv          up.L.{block,attention} | up.L+1.conv
    out.{0,2}                                norm, out
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from egc.config import Config
from egc.data.sets.imagenet import class_names
from egc.errors import ConfigError, ModelError
from egc.model import Model
from egc.nn.unet import attends, level_sides

PRESET = "imagenet256-dagger"

BLOCK = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "skip": "skip_connection",
}
TRANSFORMER = {
    "norm": "norm",
    "proj_in": "proj_in",
    "norm1": "transformer_blocks.0.norm1",
    "out": "transformer_blocks.0.attn1.to_out.0",
    "label_value": "transformer_blocks.0.attn2.to_v",
    "label_out": "transformer_blocks.0.attn2.to_out.0",
    "norm2": "transformer_blocks.0.norm3",
    "widen": "transformer_blocks.0.ff.net.0.proj",
    "narrow": "transformer_blocks.0.ff.net.2",
    "proj_out": "proj_out",
}
QKV = tuple(f"transformer_blocks.0.attn1.to_{name}.weight" for name in "qkv")
# Cross-attention to a single token does not depend on these (see `egc.nn.transformer`).
WITHOUT_EFFECT = re.compile(
    r".*\.transformer_blocks\.0\.(attn2\.to_[qk]\.weight|norm2\.(weight|bias))"
)


class _Shape(NamedTuple):
    """What the shapes of a checkpoint say."""

    inputs: int
    classes: int
    channels: int
    multipliers: tuple[int, ...]
    depth: int
    attention: tuple[int, ...]
    """levels with attention, 0 the finest"""
    label_width: int


def import_published(
    path: str | Path,
    *,
    heads: int = 4,
    head_width: int = 64,
    image_size: int = 32,
    autoencoder: str | None = None,
) -> Model:
    """A model with the weights of a published checkpoint.

    Args:
        heads, head_width: of its attention; 4 x 64 in the published networks.
        image_size: side of the latents it draws; it takes any.
        autoencoder: what made its latents; default: Stable Diffusion's, as published.
    """
    for name, value in (("heads", heads), ("head width", head_width), ("image size", image_size)):
        if value < 1:
            raise ConfigError(f"The {name} must be at least 1; got {value}.")
    weights = _read(Path(path))
    shape = _infer(weights)
    sides = level_sides(image_size, len(shape.multipliers))
    base = Config.load(PRESET)
    assert base.codec.factor is not None
    config = base.replace(
        data={"image_size": image_size * base.codec.factor},
        codec={
            "channels": shape.inputs,
            "autoencoder": autoencoder or base.codec.autoencoder,
        },
        network={
            "channels": shape.channels,
            "multipliers": shape.multipliers,
            "depth": shape.depth,
            "attention": [sides[level] for level in shape.attention],
            "label_width": shape.label_width,
            "heads": heads,
            "head_width": head_width,
        },
    )
    names = [str(index) for index in range(shape.classes)]
    if shape.classes == len(imagenet := class_names()):
        names = list(imagenet.values())
    model = Model.build(config, names, device="meta")
    model.net.load_state_dict(_translated(weights, model), assign=True)
    model.net.eval().requires_grad_(False)
    model.facts = {"imported_from": Path(path).name}
    return model


def _read(path: Path) -> dict[str, Tensor]:
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ModelError(f"There is no checkpoint {str(path)!r}.") from None
    except (
        RuntimeError,
        pickle.UnpicklingError,
        EOFError,
        OSError,
        ValueError,
        KeyError,
    ) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "it is damaged"
        raise ModelError(
            f"{str(path)!r} cannot be read as a PyTorch file of plain weights: {reason}"
        ) from None
    if not isinstance(weights, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in weights.items()
    ):
        raise ModelError(f"{str(path)!r} is not a state dict: a mapping of names to tensors.")
    return dict(weights)


def _infer(weights: Mapping[str, Tensor]) -> _Shape:
    """The architecture, from the shapes."""
    channels = _size(weights, "time_embed.0.weight", 1)
    levels: list[list[int]] = [[]]
    attention = set()
    index = 1
    while any(key.startswith(f"input_blocks.{index}.") for key in weights):
        if f"input_blocks.{index}.0.op.weight" in weights:
            levels.append([])
        else:
            width = _size(weights, f"input_blocks.{index}.0.in_layers.2.weight", 0)
            levels[-1].append(width)
            if f"input_blocks.{index}.1.norm.weight" in weights:
                attention.add(len(levels) - 1)
        index += 1
    depths = {len(level) for level in levels}
    if len(depths) != 1 or depths == {0}:
        raise ModelError(
            f"The checkpoint's levels have {[len(level) for level in levels]} residual blocks, "
            "where all should have the same number, at least one: its input_blocks do not fit."
        )
    widths = [level[0] for level in levels]
    if bad := [width for width in widths if width % channels]:
        raise ModelError(
            f"The checkpoint has a level of {bad[0]} channels, which is no multiple of the "
            f"{channels} that time_embed.0.weight stands for."
        )
    return _Shape(
        inputs=_size(weights, "input_blocks.0.0.weight", 1),
        classes=_size(weights, "out.2.weight", 0),
        channels=channels,
        multipliers=tuple(width // channels for width in widths),
        depth=depths.pop(),
        attention=tuple(sorted(attention)),
        label_width=_size(weights, "label_emb.weight", 1),
    )


def _size(weights: Mapping[str, Tensor], key: str, axis: int) -> int:
    if key not in weights:
        raise ModelError(f"The checkpoint lacks {key!r}: it is not of the published kind.")
    if weights[key].ndim <= axis:
        raise ModelError(f"The checkpoint's {key!r} has shape {tuple(weights[key].shape)}.")
    return weights[key].shape[axis]


def _translated(weights: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """Their weights under our names; every one of theirs must be wanted, and the reverse."""
    expected = model.net.state_dict()
    translated, used = {}, set()
    for ours, theirs in _names(expected, model):
        parts = []
        for key in theirs:
            if key not in weights:
                raise ModelError(f"The checkpoint lacks {key!r}.")
            parts.append(weights[key])
        want = expected[ours].shape
        share = (want[0] // len(theirs), *want[1:])
        for key, part in zip(theirs, parts, strict=True):
            if part.shape != share:
                raise ModelError(
                    f"The checkpoint's {key!r} has shape {tuple(part.shape)}, but {share} is "
                    f"needed with {model.config.network.heads} heads of "
                    f"{model.config.network.head_width} and {len(model.classes)} classes."
                )
        translated[ours] = torch.cat(parts).to(torch.float32)
        used |= set(theirs)
    if extra := sorted(key for key in weights.keys() - used if not WITHOUT_EFFECT.fullmatch(key)):
        raise ModelError(
            f"The checkpoint has {extra[0]!r}, which the published networks have not."
        )
    return translated


def _names(expected: Mapping[str, Tensor], model: Model) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(our name, their names) of every weight; several of theirs are stacked."""
    places = dict(_places(model))
    for ours in expected:
        prefix, _, rest = ours.removeprefix("backbone.").rpartition(".")
        if prefix in places:  # a layer of its own
            yield ours, (f"{places[prefix]}.{rest}",)
            continue
        prefix, _, layer = prefix.rpartition(".")
        theirs = places[prefix]
        if prefix.endswith(".block"):
            yield ours, (f"{theirs}.{BLOCK[layer]}.{rest}",)
        elif layer == "qkv":
            yield ours, tuple(f"{theirs}.{name}" for name in QKV)
        else:
            yield ours, (f"{theirs}.{TRANSFORMER[layer]}.{rest}",)


def _places(model: Model) -> Iterator[tuple[str, str]]:
    """Where our layers are in theirs."""
    yield from (("time.0", "time_embed.0"), ("time.2", "time_embed.2"))
    yield from (("labels", "label_emb"), ("stem", "input_blocks.0.0"))
    yield from (("norm", "out.0"), ("out", "out.2"))
    yield from (("middle.0.block", "middle_block.0"), ("middle.0.attention", "middle_block.1"))
    yield "middle.1.block", "middle_block.2"
    network = model.config.network
    levels = len(network.multipliers)
    attending = [attends(s, network.attention) for s in level_sides(model.codec.shape[1], levels)]
    index = 0
    for level in range(levels):
        for _ in range(network.depth):
            yield f"down.{index}.block", f"input_blocks.{index + 1}.0"
            yield f"down.{index}.attention", f"input_blocks.{index + 1}.1"
            index += 1
        if level < levels - 1:
            yield f"down.{index}.conv", f"input_blocks.{index + 1}.0.op"
            index += 1
    ours = theirs = 0
    for level in reversed(range(levels)):
        for _ in range(network.depth + 1):
            yield f"up.{ours}.block", f"output_blocks.{theirs}.0"
            yield f"up.{ours}.attention", f"output_blocks.{theirs}.1"
            ours, theirs = ours + 1, theirs + 1
        if level > 0:  # theirs has the upsampling inside the last block of a level
            place = 2 if attending[level] else 1
            yield f"up.{ours}.conv", f"output_blocks.{theirs - 1}.{place}.conv"
            ours += 1
