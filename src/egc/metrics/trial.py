"""Attacks on many images, whoever is asked: which of them are still named rightly.

A model may be asked as it stands, with its purification, or bare, without. An attack that fails
proves nothing until it has been seen to work: `checks` looks for signs that it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from egc.codec import LEVEL, UNIT, unit_pixels
from egc.data.imageset import ImageSet
from egc.distributed import gather, share
from egc.metrics.attacks import Asked, check_effort, fgsm, judge, mixed, pgd, random_search
from egc.metrics.autoattack import autoattack
from egc.model import Model
from egc.report.progress import Line, progress_line
from egc.tasks.predict import Predictor

ATTACKS = ("fgsm", "pgd", "autoattack", "random")
RADIUS = {"linf": LEVEL / UNIT, "l2": 1.0}
"""what an epsilon of 1 is in pixels of 0..1: a grey level of 255, or the length itself"""
DEFENDED, BARE = "defended", "bare"
"""a model is asked as it was said, or without its purification"""
AT_ONCE = 256
"""images that are attacked together"""
QUERIES = 5
"""of the random search for each step of PGD"""
SLACK = 0.01
"""share of images by which an attack that should be stronger may fall behind by chance"""


class Check(NamedTuple):
    """Whether an attack behaves as one that works."""

    passed: bool
    numbers: dict[str, float]
    warning: str
    """what it means that it did not pass"""


@dataclass(frozen=True)
class Strength:
    """How hard the attacks try.

    Args:
        steps, restarts: of PGD; its random starts, 0: one run from the image itself.
        draws: of noise a step, where the model's answer is random.
    """

    norm: str = "linf"
    steps: int = 20
    restarts: int = 1
    draws: int = 4

    def __post_init__(self) -> None:
        check_effort(self.steps, self.restarts, self.draws)

    def attack(
        self, name: str, epsilon: float, asked: Asked, pixels: Tensor, labels: Tensor,
        seeds: Sequence[int],
    ) -> Tensor:  # fmt: skip
        """Pixels within epsilon (in units of `RADIUS`) that are meant to be named wrongly."""
        ball: Any = {"epsilon": epsilon * RADIUS[self.norm], "norm": self.norm}
        if name == "autoattack":
            return autoattack(asked, pixels, labels, seed=seeds[0], **ball)
        ball |= {"draws": self.draws, "seeds": seeds}
        if name == "fgsm":
            return fgsm(asked, pixels, labels, **ball)
        if name == "random":
            queries = QUERIES * self.steps * max(1, self.restarts)
            return random_search(asked, pixels, labels, queries=queries, **ball)
        return pgd(asked, pixels, labels, steps=self.steps, restarts=self.restarts, **ball)


class Plan(NamedTuple):
    """One attack to run."""

    name: str
    epsilon: float
    strength: Strength
    way: str = DEFENDED
    """how the model is asked while it is attacked"""


class Trial:
    """Images to attack, and which of them were still named rightly after each plan."""

    def __init__(
        self,
        ways: Mapping[str, Predictor],
        data: ImageSet,
        positions: np.ndarray,
        seed: int,
        show: bool,
    ):
        self.ways, self.data, self.positions = ways, data, positions
        self.seed, self.show = seed, show
        self.right: dict[tuple[Plan, str], np.ndarray] = {}

    def accuracy(self, plan: Plan, judged: str = DEFENDED) -> float:
        return float(self.right[plan, judged].mean())

    def worst(self, plan: Plan) -> float:
        """Accuracy over both attacks, on the defended model and on the bare one."""
        both = [self.right[plan._replace(way=way), DEFENDED] for way in (DEFENDED, BARE)]
        return float((both[0] & both[1]).mean())

    def run(self, plans: Sequence[Plan], judges: Sequence[str] = ()) -> None:
        """Run the plans that have not been run, and judge them as they attack or as is said."""
        ways = {plan: judges or [plan.way] for plan in plans}
        plans = [p for p in ways if any((p, who) not in self.right for who in ways[p])]
        if not plans:
            return
        mine = share(self.positions.tolist())
        rows: list[np.ndarray] = []
        with progress_line("Attacking", len(mine) * len(plans), show=self.show) as line:
            for start in range(0, len(mine), AT_ONCE):
                rows += self._rows(mine[start : start + AT_ONCE], plans, judges, line)
        table = np.array(gather(rows)).reshape(len(self.positions), -1)
        keys = [(plan, who) for plan in plans for who in ways[plan]]
        self.right |= dict(zip(keys, table.T, strict=True))

    def _rows(
        self, positions: list[int], plans: Sequence[Plan], judges: Sequence[str], line: Line
    ) -> list[np.ndarray]:
        """For each image, whether it was named rightly, by plan and judge."""
        pixels, labels = images_at(self.ways[DEFENDED].model, self.data, np.array(positions))
        seeds = mixed(positions, self.seed)
        columns = []
        for plan in plans:
            moved = pixels
            if plan.name != "none":
                way = self.ways[plan.way]
                moved = plan.strength.attack(plan.name, plan.epsilon, way, pixels, labels, seeds)
            for who in judges or [plan.way]:
                columns.append((judge(self.ways[who], moved, seeds) == labels).cpu().numpy())
            line.advance(len(positions), note=plan.name)
        return list(np.stack(columns, axis=1))


def run_checks(
    trial: Trial, strength: Strength, epsilons: Sequence[float], attacks: Sequence[str]
) -> dict[str, Check]:
    """Look for signs that the attacks fail for another reason than the model's strength."""
    clean = trial.accuracy(Plan("none", 0.0, strength))
    leading = "pgd" if "pgd" in attacks else attacks[0]

    def telling(epsilon: float) -> tuple[float, float]:
        found = trial.accuracy(Plan(leading, epsilon, strength))
        return -abs(found - clean / 2), epsilon

    epsilon = max(epsilons, key=telling)
    shorter = replace(strength, steps=max(1, strength.steps // 4))
    # Within this any image can be turned into an even grey, which shows no class.
    pixels = trial.data.channels * trial.data.image_size**2
    large = 0.5 * (pixels**0.5 if strength.norm == "l2" else 1) / RADIUS[strength.norm]
    plans = {
        "pgd": Plan("pgd", epsilon, strength),
        "fgsm": Plan("fgsm", epsilon, strength),
        "pgd_fewer_steps": Plan("pgd", epsilon, shorter),
        "random_search": Plan("random", epsilon, strength),
        "pgd_large": Plan("pgd", large, strength),
    }
    trial.run(list(plans.values()))
    found = {name: trial.accuracy(plan) for name, plan in plans.items()}
    labels = trial.data.labels[trial.positions]
    chance = float(np.bincount(labels).max() / len(labels))
    slack = max(SLACK, 1 / len(labels))

    def against(other: str, warning: str) -> Check:
        numbers = {"epsilon": epsilon, "pgd": found["pgd"], other: found[other]}
        return Check(found["pgd"] <= found[other] + slack, numbers, warning)

    masked = "the gradients may be masked, so do not trust these figures."
    return {
        "falls_at_large_epsilon": Check(
            found["pgd_large"] <= chance + slack,
            {"epsilon": large, "pgd": found["pgd_large"], "chance": chance},
            "Accuracy does not fall to chance where every image can be made grey: " + masked,
        ),
        "pgd_at_least_fgsm": against("fgsm", "PGD is weaker than one step of FGSM: " + masked),
        "more_steps_never_help": against(
            "pgd_fewer_steps", "PGD is weaker with more steps than with fewer: take more steps."
        ),
        "random_search_weaker_than_pgd": against(
            "random_search", "A search without gradients is stronger than PGD: " + masked
        ),
    }


def images_at(model: Model, data: ImageSet, positions: np.ndarray) -> tuple[Tensor, Tensor]:
    """Pixels (N, C, H, W) in 0..1 and labels, where the model is."""
    labels = torch.as_tensor(data.labels[positions], device=model.device)
    return unit_pixels(data.images(positions)).to(model.device), labels
