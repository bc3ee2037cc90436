"""What an autoencoder of `egc codec train` is made by; flags are made of it without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from egc.config.parse import build, key


@dataclass(frozen=True)
class Recipe:
    """Everything an autoencoder is a function of, beside its images."""

    factor: int = key(
        4,
        "pixels a latent position stands for, along a side: 1, 2, 4, 8 or 16",
        choices=(1, 2, 4, 8, 16),
    )
    channels: int = key(4, "channels of the latents", above=0)
    width: int = key(
        64,
        "channels of the network at full resolution; they double with every halving, up to "
        "eight times",
        above=0,
    )
    depth: int = key(1, "residual blocks a level", above=0)
    train_steps: int = key(20_000, "training steps", above=0)
    batch_size: int = key(32, "images a step", above=0)
    lr: float = key(1e-3, "learning rate", above=0)
    kl: float = key(1e-6, "weight of the KL term", low=0)
    flip: bool = key(True, "mirror half of the training images")
    seed: int = key(0, "of weights, order and noise", low=0)
    checkpoint_every: int = key(1000, "steps between checkpoints", above=0)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Recipe:
        recipe: Recipe = build(cls, table)
        return recipe
