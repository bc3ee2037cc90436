"""Seconds of a training step of several configurations, taken in turn, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from egc.config import Config
from egc.model import Model, make_objective
from egc.training.batches import BatchStream
from egc.training.prepare import open_clean, prepare

TIMED_STEPS = 3


def step_seconds(configs: Mapping[str, Config]) -> dict[str, float]:
    """The median of each, by name."""
    steppers = {name: Stepper(config) for name, config in configs.items()}
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for number in range(TIMED_STEPS + 1):
        for name, stepper in steppers.items():
            started = time.perf_counter()
            stepper.step(number)
            if number > 0:  # the first only warms up
                times[name].append(time.perf_counter() - started)
    return {name: float(np.median(each)) for name, each in times.items()}


class Stepper:
    """A training step, without anything around it."""

    def __init__(self, config: Config):
        config, splits = prepare(None, config)
        self.model = Model.build(config, splits.train.classes)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        net = self.model.to(device).net.train()
        self.objective = make_objective(self.model)
        self.optimizer = torch.optim.Adam(net.parameters())
        self.stream = BatchStream(
            splits.train,
            self.model.codec,
            config,
            device,
            clean_data=open_clean(config, splits.train),
            no_label=net.no_label if net.takes_label else None,
        )

    def step(self, number: int) -> None:
        for part in self.objective.plan(self.stream(number)):
            self.objective(part).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
