"""How many images are still named rightly when someone means harm.

A defence is only as good as the attack that knows it. A purified model is therefore attacked
twice: without its defence, the images being cleaned afterwards (`transfer`, the figure that
flatters), and with it (`accuracy`, the adaptive figure, that counts). And an attack that fails
proves nothing until it has been seen to work, so each evaluation checks its own attacks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from egc.codec import pixels_of
from egc.data.imageset import ImageSet
from egc.errors import ConfigError, suggest
from egc.metrics.fitting import fitting, labelled
from egc.model import Model
from egc.distributed import share, gather
from egc.report.progress import Line, progress_line
from egc.metrics.attacks import Asked, Ball, check_effort, fgsm, judge, mixed, pgd, random_search
from egc.metrics.autoattack import autoattack
from egc.tasks.predict import Predictor

log = logging.getLogger("egc")

ATTACKS = ("fgsm", "pgd", "autoattack", "random")
WHOLE, BARE = "whole", "bare"
"""a model is asked as it was said, or without its purification"""
AT_ONCE = 256
"""images that are attacked together"""
TRIES = 5
"""queries of the random search for each step of PGD"""
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
        """Pixels within epsilon of `pixels` that are meant to be named wrongly."""
        ball: Any = {"epsilon": epsilon, "norm": self.norm}
        if name == "autoattack":
            return autoattack(asked, pixels, labels, seed=seeds[0], **ball)
        ball |= {"draws": self.draws, "seeds": seeds}
        if name == "fgsm":
            return fgsm(asked, pixels, labels, **ball)
        if name == "random":
            queries = TRIES * self.steps * max(1, self.restarts)
            return random_search(asked, pixels, labels, queries=queries, **ball)
        return pgd(asked, pixels, labels, steps=self.steps, restarts=self.restarts, **ball)


@dataclass(frozen=True)
class Robustness:
    """Accuracy under attack; epsilons in pixels of 0..1."""

    strength: Strength
    epsilons: list[float]
    images: int
    clean: float
    """accuracy without attack, of the model as it is asked (purified, if it is)"""
    accuracy: dict[str, list[float]]
    """attack -> accuracy at each epsilon; of a purified model this is the adaptive figure"""
    purify: int = 0
    undefended_clean: float | None = None
    """of a purified model: its accuracy without attack and purification"""
    undefended: dict[str, list[float]] = field(default_factory=dict)
    """of a purified model: attacked and asked without purification"""
    transfer: dict[str, list[float]] = field(default_factory=dict)
    """of a purified model: attacked without purification, asked with it"""
    worst: dict[str, list[float]] = field(default_factory=dict)
    """of a purified model: named rightly after either attack, with its defence and without"""
    checks: dict[str, Check] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """What the checks found wrong with the attacks."""
        return [check.warning for check in self.checks.values() if not check.passed]

    def summary(self) -> dict[str, Any]:
        """All figures, for JSON."""
        found: dict[str, Any] = {
            "images": self.images,
            **vars(self.strength),
            "epsilons": self.epsilons,
            "clean": self.clean,
            "accuracy": self.accuracy,
            "checks": {
                name: {"passed": check.passed, **check.numbers}
                for name, check in self.checks.items()
            },
            "warnings": self.warnings,
        }
        if self.purify:
            found["purify"] = {
                "level": self.purify,
                "adaptive": self.accuracy,
                "transfer": self.transfer,
                "worst": self.worst,
                "undefended": self.undefended,
                "undefended_clean": self.undefended_clean,
            }
        return found


def evaluate_robustness(
    model: Model,
    data: ImageSet,
    *,
    epsilons: Sequence[float],
    norm: str = "linf",
    attacks: Sequence[str] = ("fgsm", "pgd"),
    steps: int = 20,
    restarts: int = 1,
    draws: int = 4,
    count: int | None = 256,
    ensemble: int = 0,
    purify: int = 0,
    seed: int = 0,
    checks: bool = True,
    show: bool = True,
) -> Robustness:
    """Attack a model on labelled images; of several processes, each takes its share.

    Args:
        epsilons: radii of the ball, in pixels of 0..1.
        attacks: some of fgsm, pgd, autoattack, random.
        steps, restarts, draws: see `Strength`.
        count: images to take, spread evenly over the set; None: all.
        ensemble, purify: how the model is asked; see `Predictor`.
        checks: whether to run the sanity checks of the attacks too.
    """
    fitting(model, data)
    for name in attacks:
        if name not in ATTACKS:
            raise ConfigError(f"There is no attack {name!r}. {suggest(name, ATTACKS)}")
    if not epsilons or not attacks:
        raise ConfigError("Give at least one epsilon and one attack.")
    for epsilon in epsilons:
        Ball(norm, epsilon).checked()
    strength = Strength(norm, steps, restarts, draws)
    ways = {WHOLE: Predictor(model, ensemble, purify), BARE: Predictor(model, ensemble)}
    trial = _Trial(ways, data, labelled(data, count), seed, show)

    plans = [_Plan(name, eps, strength) for name in attacks for eps in epsilons]
    trial.run([_Plan("none", 0.0, strength), *plans])
    if purify:
        trial.run([_Plan("none", 0.0, strength, BARE)])
        trial.run([plan._replace(way=BARE) for plan in plans], judges=[BARE, WHOLE])

    def curve(name: str, attacked: str, judged: str) -> list[float]:
        chosen = [plan._replace(way=attacked) for plan in plans if plan.name == name]
        return [trial.accuracy(plan, judged) for plan in chosen]

    def curves(attacked: str, judged: str) -> dict[str, list[float]]:
        return {name: curve(name, attacked, judged) for name in attacks}

    result = Robustness(
        strength,
        list(epsilons),
        len(trial.positions),
        trial.accuracy(_Plan("none", 0.0, strength)),
        curves(WHOLE, WHOLE),
        purify,
        trial.accuracy(_Plan("none", 0.0, strength, BARE), BARE) if purify else None,
        curves(BARE, BARE) if purify else {},
        curves(BARE, WHOLE) if purify else {},
        {name: trial.worst(plans, name) for name in attacks} if purify else {},
        _checks(trial, strength, epsilons, attacks) if checks else {},
    )
    for warning in result.warnings:
        log.warning("%s", warning)
    return result


class _Plan(NamedTuple):
    """One attack to run."""

    name: str
    epsilon: float
    strength: Strength
    way: str = WHOLE
    """how the model is asked while it is attacked"""


class _Trial:
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
        self.right: dict[tuple[_Plan, str], np.ndarray] = {}

    def accuracy(self, plan: _Plan, judged: str = WHOLE) -> float:
        return float(self.right[plan, judged].mean())

    def worst(self, plans: Sequence[_Plan], name: str) -> list[float]:
        """Accuracy over the attacks on the whole model and on the bare one, judged whole."""
        chosen = [plan for plan in plans if plan.name == name]
        pairs = [(self.right[p, WHOLE], self.right[p._replace(way=BARE), WHOLE]) for p in chosen]
        return [float((adaptive & transfer).mean()) for adaptive, transfer in pairs]

    def run(self, plans: Sequence[_Plan], judges: Sequence[str] = ()) -> None:
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
        self,
        positions: list[int],
        plans: Sequence[_Plan],
        judges: Sequence[str],
        line: Line,
    ) -> list[np.ndarray]:
        """For each image, whether it was named rightly, by plan and judge."""
        device = self.ways[WHOLE].model.device
        at = np.array(positions)
        pixels = ((pixels_of(self.data.images(at)) + 1) / 2).to(device)
        labels = torch.as_tensor(self.data.labels[at], device=device)
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


def _checks(
    trial: _Trial, strength: Strength, epsilons: Sequence[float], attacks: Sequence[str]
) -> dict[str, Check]:
    """Look for signs that the attacks fail for another reason than the model's strength."""
    clean = trial.accuracy(_Plan("none", 0.0, strength))
    leading = "pgd" if "pgd" in attacks else attacks[0]

    def telling(epsilon: float) -> tuple[float, float]:
        found = trial.accuracy(_Plan(leading, epsilon, strength))
        return -abs(found - clean / 2), epsilon

    epsilon = max(epsilons, key=telling)
    shorter = replace(strength, steps=max(1, strength.steps // 4))
    # Within this any image can be turned into an even grey, which shows no class.
    pixels = trial.data.channels * trial.data.image_size**2
    large = 0.5 * (pixels**0.5 if strength.norm == "l2" else 1)
    plans = {
        "pgd": _Plan("pgd", epsilon, strength),
        "fgsm": _Plan("fgsm", epsilon, strength),
        "pgd_fewer_steps": _Plan("pgd", epsilon, shorter),
        "random_search": _Plan("random", epsilon, strength),
        "pgd_large": _Plan("pgd", large, strength),
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
