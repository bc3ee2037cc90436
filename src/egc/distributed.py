"""One process or many: who am I, and what did the others find.

Under `torchrun` or `accelerate launch` every process runs the same code. Drivers (the command
line, training, metrics, comparisons) give each process its share of the work and gather the
results, and the main process writes them down. Nothing below them knows of other processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from accelerate import PartialState

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


def gather(shares: Sequence[Item]) -> list[Item]:
    """The results of all processes for a list that was dealt out by `share`, in its order."""
    if process_count() == 1:
        return list(shares)
    from accelerate.utils import gather_object

    _join()
    dealt = gather_object([list(shares)])
    return [dealt[i % len(dealt)][i // len(dealt)] for i in range(sum(map(len, dealt)))]


def from_main(work: Callable[[], Item]) -> Item:
    """What the main process finds, on every process."""
    return gather([work()] if is_main() else [])[0]


def main_first(work: Callable[[], Item]) -> Item:
    """Do the work on every process, on the main one before the others."""
    done = work() if is_main() else None
    wait_for_all()
    return work() if done is None else done


def wait_for_all() -> None:
    if process_count() > 1:
        _join().wait_for_everyone()


def runs_on_cpu() -> bool:
    """Whether several processes have to make do without GPUs, which accelerate must be told."""
    import torch

    return process_count() > 1 and not torch.cuda.is_available()


def _join() -> PartialState:
    """The process group, joined if nobody did so before."""
    from accelerate import PartialState

    return PartialState(cpu=runs_on_cpu())
