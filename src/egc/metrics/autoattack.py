"""AutoAttack (Croce & Hein 2020): four attacks without parameters, for the figure to be quoted."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egc.errors import ConfigError
from egc.metrics.attacks import Asked, Ball

log = logging.getLogger("egc")


def autoattack(
    asked: Asked,
    pixels: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    norm: str = "linf",
    seed: int = 0,
) -> Tensor:
    """AutoAttack: its `standard` attacks, or `rand` where the answer is random.

    With fewer than four classes there is no targeted DLR loss, with fewer than three none at all;
    then the untargeted forms take their place.
    """
    ball = Ball(norm, epsilon).checked()
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise ConfigError(
            "AutoAttack needs a package more: run `pip install 'egc[attack]'`."
        ) from None
    with torch.no_grad():
        classes = asked(pixels[:1], [seed]).shape[1]
    rounds = np.random.default_rng(seed)

    def answer(x: Tensor) -> Tensor:
        return asked(x, rounds.integers(2**31, size=len(x)).tolist())

    attacks = _suite(classes, asked.is_random)
    with torch.random.fork_rng(devices=[]), _quiet():
        suite: Any = AutoAttack(
            answer,
            version="custom",
            attacks=attacks,
            eps=epsilon,
            norm={"linf": "Linf", "l2": "L2"}[norm],
            seed=seed,
            device=pixels.device,
        )
        suite.apgd.n_restarts = suite.fab.n_restarts = 1
        suite.apgd.eot_iter = 20 if asked.is_random else 1
        suite.fab.n_target_classes = min(9, classes - 1)
        suite.apgd_targeted.n_target_classes = min(9, classes - 1)
        found, _ = suite.run_standard_evaluation(pixels, labels, batch_size=len(pixels))
    return ball.project(found, pixels)


def _suite(classes: int, is_random: bool) -> list[str]:
    """The attacks of AutoAttack that so many classes allow."""
    if classes < (3 if is_random else 4):
        without = "its targeted DLR attack" if classes == 3 else "its attacks on the DLR loss"
        log.warning("With %d classes, AutoAttack runs without %s.", classes, without)
    dlr = ["apgd-dlr"] if classes >= 3 else []
    if is_random:
        return ["apgd-ce", *dlr]
    return ["apgd-ce", *(["apgd-t", "fab-t"] if classes >= 4 else [*dlr, "fab"]), "square"]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """AutoAttack prints, and takes away the tracer of debuggers: neither is for others to see."""
    tracer = sys.gettrace()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.settrace(tracer)
