"""All that changes while training, as named tensors: network, average, optimiser, memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn


def pack_state(
    net: nn.Module,
    average: nn.Module,
    optimizer: Any,
    memory: Mapping[str, Tensor] = MappingProxyType({}),
) -> dict[str, Tensor]:
    """{"net/NAME", "ema/NAME", "adam/NAME/exp_avg", "memory/NAME", ...}."""
    tensors = {f"net/{name}": w for name, w in net.state_dict().items()}
    tensors |= {f"ema/{name}": w for name, w in average.state_dict().items()}
    tensors |= {f"memory/{name}": w for name, w in memory.items()}
    for name, parameter in net.named_parameters():
        for key, value in optimizer.state[parameter].items():
            if value is None:  # sgd, before its first step
                continue
            tensors[f"adam/{name}/{key}"] = value
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def unpack_state(
    tensors: dict[str, Tensor], net: nn.Module, average: nn.Module, optimizer: Any
) -> dict[str, Tensor]:
    """Put packed tensors back where they came from; gives the memory."""
    groups: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        prefix, _, name = key.partition("/")
        groups[prefix][name] = tensor
    net.load_state_dict(groups["net"])
    average.load_state_dict(groups["ema"])
    slots: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in groups["adam"].items():
        name, _, slot = key.rpartition("/")
        slots[name][slot] = tensor
    state = {index: slots[name] for index, (name, _) in enumerate(net.named_parameters())}
    saved = optimizer.state_dict()
    optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})
    return dict(groups["memory"])
