"""How many images are still named rightly when someone means harm.

A defence is only as good as the attack that knows it. A purified model is therefore attacked in
two ways: without its defence, the images being cleaned afterwards (`transfer`, the figure that
flatters), and with it (`accuracy`, the adaptive figure, that counts). And an attack that fails
proves nothing until it has been seen to work, so each evaluation checks its own attacks.

Epsilons are given and shown in parts of 1/255 for the maximum norm `linf`, and as lengths in
pixels of 0..1 for the Euclidean norm `l2`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from egc.config.parse import build, key, plain
from egc.data.imageset import ImageSet, Splits
from egc.errors import ConfigError
from egc.metrics.attack_examples import Examples, attack_examples, examples_figure
from egc.metrics.base import Column, Measured, Metric, Row, percent
from egc.metrics.fitting import fitting, labelled
from egc.metrics.trial import BARE, DEFENDED, Check, Plan, Strength, Trial, run_checks
from egc.model import Model
from egc.registry import metrics
from egc.report.figures import COLOURS, INK, canvas, literal
from egc.report.page import Section
from egc.tasks.predict import Predictor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger("egc")

UNITS = {"linf": "1/255", "l2": "1"}
"""what epsilons are multiples of, in pixels of 0..1"""
DEFAULT_EPSILONS = {"linf": (2.0, 8.0, 16.0, 32.0, 64.0), "l2": (0.25, 0.5, 1.0, 2.0)}
"""wide enough that the curve of any model bends"""
TITLES = {
    "fgsm": "FGSM",
    "pgd": "PGD-{steps}",
    "autoattack": "AutoAttack",
    "random": "random search",
}
STYLES = {"accuracy": "-", "transfer": "--", "undefended": ":"}
WORDS = {
    "accuracy": "purified, attack knows it",
    "transfer": "purified, attack does not",
    "undefended": "not purified",
}
"""what the curves of a purified model are"""

Curves = dict[str, list[float]]
"""attack -> accuracy at each epsilon"""


@dataclass(frozen=True)
class Robustness(Measured):
    """Accuracy under attack."""

    strength: Strength
    epsilons: list[float]
    images: int
    clean: float
    """accuracy without attack, of the model as it is asked (purified, if it is)"""
    accuracy: Curves
    """of a purified model this is the adaptive figure"""
    purify: int = 0
    undefended_clean: float | None = None
    """of a purified model: its accuracy without attack and purification"""
    undefended: Curves = field(default_factory=dict)
    """of a purified model: attacked and asked without purification"""
    transfer: Curves = field(default_factory=dict)
    """of a purified model: attacked without purification, asked with it"""
    worst: Curves = field(default_factory=dict)
    """of a purified model: named rightly after either attack, with its defence and without"""
    checks: dict[str, Check] = field(default_factory=dict)
    examples: Examples | None = None

    @property
    def warnings(self) -> list[str]:
        """What the checks found wrong with the attacks."""
        return [check.warning for check in self.checks.values() if not check.passed]

    def at(self, epsilon: float) -> str:
        """An epsilon in words."""
        return f"{epsilon:g}" + ("/255" if self.strength.norm == "linf" else "")

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "images": self.images,
            "norm": self.strength.norm,
            "unit": UNITS[self.strength.norm],
            "attack_steps": self.strength.steps,
            "restarts": self.strength.restarts,
            "attack_draws": self.strength.draws,
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

    def rows(self) -> list[Row]:
        lines = [("without attack", f"{percent(self.clean)} of {self.images:,}")]
        curves = {"": self.accuracy}
        if self.purify:
            curves = {
                ", purified, adaptive": self.accuracy,
                ", purified, transfer": self.transfer,
                ", purified, the worse of both": self.worst,
                ", not purified": self.undefended,
            }
        for tail, by_attack in curves.items():
            for attack, values in by_attack.items():
                lines += [
                    (f"{attack} at {self.at(epsilon)}{tail}", percent(value))
                    for epsilon, value in zip(self.epsilons, values, strict=True)
                ]
        for name, check in self.checks.items():
            numbers = ", ".join(f"{what} {number:.3g}" for what, number in check.numbers.items())
            outcome = "holds" if check.passed else "FAILS"
            lines.append((name.replace("_", " "), f"{outcome}: {numbers}"))
        return lines

    def verdict(self) -> str:
        attack, curve = list(self.accuracy.items())[-1]
        bent = self.bend()
        doubt = " But the attacks cannot be trusted: see the checks." if self.warnings else ""
        return (
            f"Under {_title(attack, self.strength)} at {self.at(self.epsilons[bent])} it still "
            f"names {percent(curve[bent])} rightly, of {percent(self.clean)} without.{doubt}"
        )

    def bend(self) -> int:
        """Which epsilon is the first that costs half of the accuracy; the last, if none does."""
        (*_, curve) = self.accuracy.values()
        fallen = np.array(curve) <= self.clean / 2
        return int(fallen.argmax()) if fallen.any() else len(curve) - 1

    def figures(self) -> list[Section]:
        return RobustnessMetric().figures({"the model": self})


def evaluate_robustness(
    model: Model, data: ImageSet, *, progress: bool = True, **options: Any
) -> Robustness:
    """Attack a model on labelled images; of several processes, each takes its share.

    `options` are those of `RobustnessMetric.Options`.
    """
    how: RobustnessMetric.Options = build(RobustnessMetric.Options, options)
    epsilons = how.radii()
    if not epsilons or not how.attacks:
        raise ConfigError("Give at least one epsilon and one attack.")
    fitting(model, data)
    strength = Strength(how.norm, how.attack_steps, how.restarts, how.attack_draws)
    ways = {
        DEFENDED: Predictor(model, how.ensemble, how.purify),
        BARE: Predictor(model, how.ensemble),
    }
    trial = Trial(ways, data, labelled(data, how.images), how.seed, progress)
    plain = Plan("none", 0.0, strength)
    plans = {name: [Plan(name, e, strength) for e in epsilons] for name in how.attacks}
    every = [plan for each in plans.values() for plan in each]
    trial.run([plain, *every])

    def curves(attacked: str, judged: str) -> Curves:
        return {
            name: [trial.accuracy(plan._replace(way=attacked), judged) for plan in each]
            for name, each in plans.items()
        }

    found: dict[str, Any] = {}
    if how.purify:
        trial.run([plain._replace(way=BARE)])
        trial.run([plan._replace(way=BARE) for plan in every], judges=[BARE, DEFENDED])
        found = {
            "undefended_clean": trial.accuracy(plain._replace(way=BARE), BARE),
            "undefended": curves(BARE, BARE),
            "transfer": curves(BARE, DEFENDED),
            "worst": {name: [trial.worst(plan) for plan in each] for name, each in plans.items()},
        }
    if how.checks:
        found["checks"] = run_checks(trial, strength, epsilons, how.attacks)
    result = Robustness(
        strength,
        epsilons,
        len(trial.positions),
        trial.accuracy(plain),
        curves(DEFENDED, DEFENDED),
        how.purify,
        **found,
    )
    for warning in result.warnings:
        log.warning("%s", warning)
    return result


@metrics.register("robustness")
class RobustnessMetric(Metric):
    title = "accuracy under attack"
    finds = ("attack", "pgd", "fgsm", "autoattack", "adversarial")
    needs_labels = True

    @dataclass(frozen=True)
    class Options(Metric.Options):
        images: int | None = key(256, "test images to use", low=1, none="all")
        attacks: tuple[Literal["fgsm", "pgd", "autoattack", "random"], ...] = key(
            ("fgsm", "pgd"), "fgsm, pgd, autoattack, random"
        )
        norm: Literal["linf", "l2"] = key("linf", "what an attack may not exceed")
        epsilons: tuple[float, ...] | None = key(
            None,
            "how far attacks may go: parts of 1/255 for linf, lengths for l2",
            above=0,
            none="2 8 16 32 64 for linf, 0.25 0.5 1 2 for l2",
        )
        attack_steps: int = key(20, "steps of PGD", above=0)
        restarts: int = key(1, "random starts of PGD; 0: one run from the image itself", low=0)
        attack_draws: int = key(
            4, "draws of noise an attack averages over, with --ensemble or --purify", above=0
        )
        ensemble: int = key(0, "average p(y|x) over so many draws of noise; 0: not", low=0)
        purify: int = key(0, "noise level to clean images from before naming them; 0: not", low=0)
        checks: bool = key(True, "look for signs that the attacks do not work")
        examples: int = key(8, "attacked images to show on the page; 0: none", low=0)

        def radii(self) -> list[float]:
            """The epsilons, from small to large."""
            given = self.epsilons
            return sorted(set(DEFAULT_EPSILONS[self.norm] if given is None else given))

    def obstacle(self, model: Model) -> str | None:
        return None if model.classifies else "it names nothing"

    def measure(self, model: Model, data: Splits, options: Options, progress: bool) -> Robustness:
        found = evaluate_robustness(model, data.test, progress=progress, **plain(options))
        if not options.examples:
            return found
        examples = attack_examples(
            Predictor(model, options.ensemble, options.purify),
            data.test,
            epsilon=found.epsilons[found.bend()],
            strength=found.strength,
            attack=options.attacks[-1],
            count=options.examples,
            seed=options.seed,
        )
        return replace(found, examples=examples)

    def figures(self, results: Mapping[str, Robustness]) -> list[Section]:
        text = "Accuracy by how far an attack may go."
        sections = [Section("Under attack", text, robustness_figure(results))]
        for name, result in results.items():
            if result.examples is not None:
                of, how = result.examples, result.strength
                text = f"{_title(of.attack, how)} at {result.at(of.epsilon)}: image, change, sum."
                title = "Attacked images" + (f": {name}" if len(results) > 1 else "")
                sections.append(Section(title, text, examples_figure(of)))
        return sections

    def columns(self, options: Options) -> list[Column]:
        unit = "/255" if options.norm == "linf" else ""
        strength = Strength(options.norm, options.attack_steps)
        return [
            Column(
                f"{attack}_{epsilon:g}",
                f"{_title(attack, strength)} at {epsilon:g}{unit}",
                percent,
                ("accuracy", attack, place),
            )
            for attack in options.attacks
            for place, epsilon in enumerate(options.radii())
        ]


def _title(attack: str, strength: Strength) -> str:
    return TITLES[attack].format(steps=strength.steps)


def robustness_figure(results: Mapping[str, Robustness]) -> Figure:
    """Accuracy against epsilon: a panel an attack, a colour a model.

    Of purified models the adaptive figure is a full line, the others are broken lines.
    """
    attacks = list(dict.fromkeys(name for result in results.values() for name in result.accuracy))
    figure = canvas(3.6 * max(2, len(attacks)), 3.2)
    axes = np.atleast_1d(figure.subplots(1, len(attacks), sharey=True))
    for axis, attack in zip(axes, attacks, strict=True):
        for (model, result), colour in zip(results.items(), cycle(COLOURS), strict=False):
            for curve, style in STYLES.items():
                values = getattr(result, curve).get(attack)
                if values is None:
                    continue
                clean = result.undefended_clean if curve == "undefended" else result.clean
                label = literal(model) if curve == "accuracy" else None
                axis.plot([0.0, *result.epsilons], [clean, *values], f"o{style}", color=colour,
                          label=label, markersize=3)  # fmt: skip
            linf = result.strength.norm == "linf"
            axis.set_xlabel("epsilon / 255" if linf else "epsilon, Euclidean")
            axis.set_title(_title(attack, result.strength), fontsize=10)
        axis.set_ylim(0, 1.02)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("accuracy")
    _legend(axes[0], any(result.purify for result in results.values()))
    return figure


def _legend(axis: Axes, purified: bool) -> None:
    """The models, and what the broken lines are."""
    handles, labels = axis.get_legend_handles_labels()
    if purified:
        for curve, style in STYLES.items():
            (line,) = axis.plot([], [], style, color=INK)
            handles.append(line)
            labels.append(WORDS[curve])
    axis.legend(handles, labels, frameon=False, fontsize=8)
