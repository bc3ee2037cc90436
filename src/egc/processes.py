"""One process or many: who am I, and what did the others find.

Under `torchrun` or `accelerate launch` every process runs the same code; each takes its share of
the work, all know the whole result, and the main one writes it down.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

Item = TypeVar("Item")


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    return process_index() == 0


def share(items: list[Item]) -> list[Item]:
    """The items this process takes: every process gets its turn."""
    return items[process_index() :: process_count()]


def whole(shares: Sequence[Item]) -> list[Item]:
    """The results of all processes for a list that was dealt out by `share`, in its order."""
    if process_count() == 1:
        return list(shares)
    _join()
    dealt = gather_object([list(shares)])
    return [dealt[i % len(dealt)][i // len(dealt)] for i in range(sum(map(len, dealt)))]


def wait_for_all() -> None:
    if process_count() > 1:
        _join().wait_for_everyone()


def runs_on_cpu() -> bool:
    """Whether several processes have to make do without GPUs, which accelerate must be told."""
    return process_count() > 1 and not torch.cuda.is_available()


def _join() -> PartialState:
    """The process group, joined if nobody did so before."""
    return PartialState(cpu=runs_on_cpu())
