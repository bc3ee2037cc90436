"""The learning rate at each step, and whether a longer training would have had the same ones."""

from __future__ import annotations

import math

from egc.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then constant, falling to zero along half a cosine, or falling in drops."""
    lr = config.lr
    if config.lr_decay == "cosine":
        lr *= 0.5 * (1 + math.cos(math.pi * step / config.steps))
    elif config.lr_decay == "drops":
        lr *= config.lr_drop ** sum(step >= share * config.steps for share in config.lr_drops)
    return lr * min(1.0, (step + 1) / (warmup(config) + 1))


def warmup(config: TrainConfig) -> int:
    """Steps of warm-up: one that would take all of a short training is cut to a tenth of it."""
    return config.warmup if config.warmup <= config.steps else config.steps // 10


def obstacle_to_longer(before: TrainConfig, now: TrainConfig) -> str | None:
    """Why a training of so many steps cannot be made one of more; None: it can.

    It can if the longer one has the same learning rates up to where the shorter one ended.
    """
    if now.lr_decay != "none":
        return f'train.lr_decay = "{now.lr_decay}" was planned for the number of steps it had'
    if warmup(before) != warmup(now):
        return f"its warm-up was cut to {warmup(before)} steps, as it was to be short"
    return None
