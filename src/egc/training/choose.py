"""`objective.gradient = "auto"`: measure both on this machine, once, and take the faster."""

from __future__ import annotations

import logging
import time

import torch

from egc.config import Config
from egc.model import Model
from egc.objectives.egc import EGCObjective
from egc.training.batches import BatchStream

log = logging.getLogger("egc")

STEPS = 3


def choose_gradient(model: Model, stream: BatchStream) -> str:
    """`exact` or `paired`, whichever takes the shorter step on the first batch."""
    seconds = {"exact": 0.0, "paired": 0.0}
    if model.config.train.precision == "bf16":
        return "exact"
    for step in range(STEPS + 1):  # in turn, so that both meet the same weather
        for kind in seconds:
            elapsed = _time_step(model, stream, kind)
            if step > 0:  # the first only warms up
                seconds[kind] += elapsed / STEPS
    chosen = min(seconds, key=lambda kind: seconds[kind])
    log.info(
        "objective.gradient: took %s (a step takes exact %.3f s, paired %.3f s here).",
        chosen,
        seconds["exact"],
        seconds["paired"],
    )
    return chosen


def _time_step(model: Model, stream: BatchStream, kind: str) -> float:
    config: Config = model.config.replace(objective={"gradient": kind})
    objective = EGCObjective(model.net, model.diffusion, config.objective)
    batch = stream(0)
    started = _now()
    for part in objective.plan(batch):
        objective(part).loss.backward()
    elapsed = _now() - started
    model.net.zero_grad()
    return elapsed


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
