"""The training loop.

`Trainer.train` is the whole of it. Everything random comes from (seed, rank, step), everything
that changes is in the checkpoint, so stopping and starting again gives the same weights.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from egc.config import TrainConfig
from egc.data.imageset import ImageSet
from egc.energy import EnergyModel
from egc.errors import TrainingError
from egc.model import Model
from egc.objectives.egc import EGCObjective
from egc.progress import progress_line
from egc.training.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from egc.training.ema import EMA
from egc.training.run import Run
from egc.training.stream import BatchStream

Watch = Callable[[EnergyModel, int], dict[str, float]]
"""(averaged network, steps done) -> figures to log; called every `preview_every` steps"""


class Trainer:
    """Trains `model.net` on `data`, writing into `run`."""

    def __init__(self, model: Model, data: ImageSet, run: Run, watch: Watch | None = None):
        self.config: TrainConfig = model.config.train
        self.run = run
        self.watch = watch
        self.accelerator = Accelerator()
        self.net = model.net.train().requires_grad_(True)
        self.ema = EMA(self.net, self.config.ema)
        self.ema.net.to(self.accelerator.device)
        self.objective, self.optimizer = self.accelerator.prepare(
            EGCObjective(self.net, model.diffusion, model.config.objective),
            torch.optim.Adam(self.net.parameters(), lr=self.config.lr),
        )
        self.stream = BatchStream(
            data,
            model.codec,
            model.config,
            self.accelerator.device,
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        self.step = 0
        self._resume()

    def train(self, *, show: bool = True) -> EnergyModel:
        """Train to the last step; returns the averaged network."""
        config = self.config
        torch.set_flush_denormal(True)  # vanishing numbers would otherwise be slow on CPUs
        seen = _Averages()
        with progress_line("Training", config.steps, done=self.step, show=show) as line:
            while self.step < config.steps:
                # Loss of this step's batch, and its gradient.
                batch, generator = self.stream(self.step)
                terms = self.objective(batch, generator)
                self.accelerator.backward(terms.loss)
                norm = self.accelerator.clip_grad_norm_(
                    self.net.parameters(), config.clip or math.inf
                )
                seen.add({**terms.parts, "gradient": norm}, images=config.batch_size)
                self._check_finite(terms.parts, norm)

                # Move the weights, and their average behind them.
                lr = learning_rate(config, self.step)
                for group in self.optimizer.param_groups:
                    group["lr"] = lr
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.ema.update(self.net, self.step)
                self.step += 1

                # Write down how it goes.
                line.advance()
                if self._due(config.log_every):
                    record = seen.pop()
                    self.run.log({"step": self.step, "lr": lr, **record})
                    line.advance(0, note=f"loss {record['loss']:.3f}  score {record['score']:.3f}")
                if self.watch and self._due(config.preview_every):
                    self.run.log({"step": self.step, **self.watch(self.ema.net, self.step)})
                if self._due(config.checkpoint_every):
                    self._save()
        return self.ema.net

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _check_finite(self, parts: dict[str, Tensor], norm: Any) -> None:
        for name, value in {**parts, "gradient": norm}.items():
            if not math.isfinite(float(value)):
                raise TrainingError(
                    f"Training stopped at step {self.step}: the {name} term is {float(value)}. "
                    "A lower train.lr, or a warm-up (train.warmup), usually helps."
                )

    def _save(self) -> None:
        tensors = {f"net/{name}": w for name, w in self.net.state_dict().items()}
        tensors |= {f"ema/{name}": w for name, w in self.ema.net.state_dict().items()}
        for name, parameter in self.net.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"adam/{name}/{key}"] = value
        tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_checkpoint(
            self.run.checkpoints, Checkpoint(self.step, tensors), keep=self.config.keep
        )

    def _resume(self) -> None:
        """Pick up the newest whole checkpoint, if there is one."""
        found = newest_checkpoint(self.run.checkpoints)
        if found is None:
            self.run.rewind(-1)
            return
        self.step = found.step
        self.run.rewind(self.step)
        groups = _by_prefix(found.tensors)
        self.net.load_state_dict(groups["net"])
        self.ema.net.load_state_dict(groups["ema"])
        state: dict[int, dict[str, Tensor]] = {
            index: {
                key.removeprefix(f"{name}/"): value
                for key, value in groups["adam"].items()
                if key.startswith(f"{name}/")
            }
            for index, (name, _) in enumerate(self.net.named_parameters())
        }
        saved = self.optimizer.state_dict()
        self.optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then constant or falling to zero along half a cosine."""
    lr = config.lr
    if config.lr_decay == "cosine":
        lr *= 0.5 * (1 + math.cos(math.pi * step / config.steps))
    return lr * min(1.0, (step + 1) / (config.warmup + 1))


class _Averages:
    """Means of what was seen since the last record, and the speed."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._sums: defaultdict[str, Any] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._images = 0
        self._since = time.monotonic()

    def add(self, values: dict[str, Any], images: int) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums[name] + value
            self._counts[name] += 1
        self._images += images

    def pop(self) -> dict[str, float]:
        record = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        record["images_per_second"] = self._images / (time.monotonic() - self._since)
        self._start()
        return record


def _by_prefix(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """{"net/a": x, "ema/a": y} -> {"net": {"a": x}, "ema": {"a": y}}."""
    groups: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        prefix, _, name = key.partition("/")
        groups[prefix][name] = tensor
    return groups
