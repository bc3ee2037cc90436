"""The training loop.

`Trainer.train` is all of it. Everything random comes from (seed, rank, step), everything
that changes is in the checkpoint, so stopping and starting again gives the same weights. Under
`torchrun` or `accelerate launch`, all processes run this code and the main one writes.
"""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from egc.config import Config, TrainConfig
from egc.data.imageset import ImageSet
from egc.distributed import process_count, runs_on_cpu
from egc.errors import ConfigError, TrainingError
from egc.model import Model, make_objective
from egc.nn.backbone import Backbone
from egc.nn.network import Network
from egc.objectives.base import Batch
from egc.report.progress import progress_line
from egc.training.allocator import keep_freed_memory
from egc.training.averages import SPEED, Averages
from egc.training.batches import BatchStream, clean_images
from egc.training.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from egc.training.ema import EMA
from egc.training.run import Run
from egc.training.schedule import learning_rate
from egc.training.state import pack_state, unpack_state
from egc.training.stop import StoppedError, stop_on_signals

Watch = Callable[[Network, int], dict[str, float]]
"""(averaged network, steps done) -> figures to log; called every `preview_every` steps"""

QUALITY = "validation_accuracy"
"""the figure by which the best checkpoint is known"""
MAX_SKIPPED = 10
"""non-finite steps in a row after which `on_nonfinite = "skip"` gives up"""


class Trainer:
    """Trains `model.net` on `data`, writing into `run`; `clean_data` is for the clean stream."""

    def __init__(
        self,
        model: Model,
        data: ImageSet,
        run: Run,
        watch: Watch | None = None,
        clean_data: ImageSet | None = None,
    ):
        self.config: TrainConfig = model.config.train
        self.run = run
        self.watch = watch
        self.accelerator = _accelerator(model.config, run)
        self.net = model.net.train().requires_grad_(True)
        self.net.to(self.accelerator.device)
        self.stream = BatchStream(
            data,
            model.codec.to(self.accelerator.device),
            model.config,
            self.accelerator.device,
            self.accelerator.process_index,
            self.accelerator.num_processes,
            clean_data=clean_data,
            no_label=self.net.no_label if self.net.takes_label else None,
        )
        self.planner = make_objective(model)  # plans outside of whatever wraps the other
        self.ema = EMA(self.net, self.config.ema)
        _prepare_network(self.net, model.config)
        self.objective, self.optimizer = self.accelerator.prepare(
            make_objective(model), _optimizer(self.net, self.config)
        )
        self.step = 0
        self.skipped = 0
        self.quality: float | None = None
        self._start(model.config)

    def train(self, *, show: bool = True) -> Any:
        """Train to the last step; returns the averaged network."""
        config = self.config
        show = show and self.accelerator.is_main_process
        if self.accelerator.device.type == "cpu":
            torch.set_flush_denormal(True)  # vanishing numbers would otherwise be slow
            keep_freed_memory()
        seen = Averages()
        line_of = progress_line("Training", config.steps, done=self.step, show=show)
        with line_of as line, stop_on_signals() as asked:
            while self.step < config.steps:
                # The gradient of this step's loss.
                terms = self._backward(self.stream(self.step))
                norm = self.accelerator.clip_grad_norm_(
                    self.net.parameters(), config.clip or math.inf
                )
                terms, stop = self._agree({**terms, "gradient": float(norm)}, asked.number)

                # Move the weights, and their average behind them.
                lr = learning_rate(config, self.step)
                if self._is_finite(terms):
                    for group in self.optimizer.param_groups:
                        group["lr"] = lr
                    self.optimizer.step()
                    self.ema.update(self.net, self.step)
                    seen.add(terms, images=config.batch_size)
                self.optimizer.zero_grad()
                self.step += 1

                # Write down how it goes.
                line.advance()
                if self._due(config.log_every) and (record := seen.pop()).get("loss"):
                    self._log({"lr": lr, **record})
                    line.advance(0, note=_note(record))
                if self.watch and self._due(config.preview_every):
                    self._log(figures := self.watch(self.ema.net, self.step))
                    self.quality = figures.get(QUALITY)
                if stop or self._due(config.checkpoint_every):
                    self._save()
                if stop:
                    raise StoppedError(self.step, stop)
        for tracker in self.accelerator.trackers:
            tracker.finish()
        return self.ema.net

    def _backward(self, batch: Batch) -> dict[str, float]:
        """Accumulate the gradient over the passes of a step; gives the terms of its loss.

        Processes exchange gradients once, in the last pass.
        """
        terms: defaultdict[str, Any] = defaultdict(float)
        pieces = batch.split(self.config.accumulate)
        for piece in pieces:
            passes = self.planner.plan(piece, share=len(piece.x0) / len(batch.x0))
            for part in passes:
                last = piece is pieces[-1] and part is passes[-1]
                alone = nullcontext() if last else self.accelerator.no_sync(self.objective)
                with alone:
                    result = self.objective(part)
                    self.accelerator.backward(result.loss)
                for name, value in result.parts.items():
                    terms[name] += value
        return {name: float(value) for name, value in terms.items()}

    def _agree(self, terms: dict[str, float], stop: int) -> tuple[dict[str, float], int]:
        """The mean of the terms over all processes, and whether any was asked to stop."""
        if self.accelerator.num_processes == 1:
            return terms, stop
        mine = torch.tensor([*terms.values(), float(stop)], device=self.accelerator.device)
        every = self.accelerator.gather(mine[None])
        means = every[:, :-1].double().mean(dim=0).tolist()
        return dict(zip(terms, means, strict=True)), int(every[:, -1].max())

    def _is_finite(self, terms: Mapping[str, float]) -> bool:
        """Whether this step may count; if not, stop or skip it as configured."""
        bad = [name for name, value in terms.items() if not math.isfinite(value)]
        if not bad:
            self.skipped = 0
            return True
        # The last is the total; name the term it came from.
        name = next((name for name in bad if name != "loss"), bad[0])
        self.skipped += 1
        if self.config.on_nonfinite == "stop" or self.skipped > MAX_SKIPPED:
            often = f", {self.skipped} times in a row" if self.skipped > 1 else ""
            raise TrainingError(
                f"Training stopped at step {self.step}: the {name} term is {terms[name]}{often}. "
                "The last checkpoint is whole. A lower train.lr, or a warm-up (train.warmup), "
                "usually helps."
            )
        self._log({"skipped": name})
        return False

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.config.steps

    def _log(self, record: Mapping[str, Any]) -> None:
        if self.accelerator.is_main_process and record:
            self.run.log({"step": self.step, **record})
            numbers = {k: v for k, v in record.items() if isinstance(v, int | float)}
            self.accelerator.log(numbers, step=self.step)

    def _save(self) -> None:
        memory = {name: self.accelerator.gather(w) for name, w in self.planner.memory.items()}
        if self.accelerator.is_main_process:
            tensors = pack_state(self.net, self.ema.net, self.optimizer, memory)
            checkpoint = Checkpoint(self.step, tensors, self.quality)
            save_checkpoint(self.run.checkpoints, checkpoint, keep=self.config.keep)
        self.quality = None  # belongs to this step alone

    def _start(self, config: Config) -> None:
        """Pick up the newest good checkpoint, if there is one, and write down what is run."""
        found = newest_checkpoint(self.run.checkpoints)
        if found is not None:
            self.step = found.step
            memory = unpack_state(found.tensors, self.net, self.ema.net, self.optimizer)
            rank, count = self.accelerator.process_index, self.accelerator.num_processes
            self.planner.memory = {
                name: w.chunk(count)[rank].to(self.accelerator.device).clone()
                for name, w in memory.items()
            }
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self.run.start(config)
            self.run.rewind(self.step if found else -1)
        if self.config.trackers:
            self.accelerator.init_trackers("egc")


def check_machine(settings: Config) -> None:
    """Refuse what this machine cannot do, before anything is written."""
    config = settings.train
    for name in config.trackers:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"train.trackers has {name!r}, which is not installed: pip install 'egc[{name}]'."
            )
    if config.precision == "bf16" and not torch.cuda.is_available():
        raise ConfigError("train.precision = 'bf16' needs a GPU; on a CPU, 'fp32' is faster.")
    pieces = process_count() * config.accumulate
    clean = clean_images(settings)
    for count, words in (
        (config.batch_size, f"train.batch_size = {config.batch_size}"),
        (clean, f"objective.clean_share, {clean} clean images a step,"),
    ):
        if count % pieces:
            raise ConfigError(
                f"{words} must divide evenly into {process_count()} processes x "
                f"train.accumulate = {config.accumulate}."
            )


def _optimizer(net: Network, config: TrainConfig) -> torch.optim.Optimizer:
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(net.parameters(), lr, 0.9, nesterov=True, weight_decay=decay)
    return torch.optim.Adam(net.parameters(), lr, weight_decay=decay)


def _accelerator(settings: Config, run: Run) -> Accelerator:
    check_machine(settings)
    config = settings.train
    AcceleratorState._reset_state()  # what an earlier training in this process had asked for
    return Accelerator(
        cpu=runs_on_cpu(),
        mixed_precision="bf16" if config.precision == "bf16" else "no",
        log_with=list(config.trackers) or None,
        project_dir=run.path,
    )


def _prepare_network(net: Any, config: Config) -> None:
    """Options that change how the network is computed, and not what."""
    if config.train.activation_checkpointing:
        cast(Backbone, net.backbone).checkpointing = True


def _note(record: Mapping[str, float]) -> str:
    """The terms of the loss, and the speed."""
    terms = {name: value for name, value in record.items() if name not in ("gradient", SPEED)}
    shown = [
        f"{name.removeprefix('class_')} {value:.3f}" for name, value in terms.items() if value
    ]
    return "  ".join([*shown, f"{record[SPEED]:.0f} images/s"])
