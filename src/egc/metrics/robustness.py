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
from egc.metrics.attacks import BARE, DEFENDED, Attack
from egc.metrics.base import Column, Measured, Metric, Row, of_model, percent
from egc.metrics.fitting import fitting
from egc.metrics.trial import Check, Examples, Trial, attack_examples, examples_figure, run_checks
from egc.model import Model
from egc.registry import metrics
from egc.report.figures import COLOURS, INK, canvas, literal
from egc.report.page import Section
from egc.tasks.predict import Predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("egc")

UNITS = {"linf": "1/255", "l2": "1"}
"""what epsilons are multiples of, in pixels of 0..1"""
DEFAULT_EPSILONS = {"linf": (2.0, 8.0, 16.0, 32.0, 64.0), "l2": (0.25, 0.5, 1.0, 2.0)}
"""wide enough that the curve of any model bends"""
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

    how: RobustnessMetric.Options
    images: int
    clean: float
    """accuracy without attack, of the model as it is asked (purified, if it is)"""
    accuracy: Curves
    """of a purified model this is the adaptive figure"""
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

    def summary(self) -> dict[str, Any]:
        how = self.how
        effort = ("norm", "attack_steps", "restarts", "attack_draws")
        found: dict[str, Any] = {
            "images": self.images,
            **{name: getattr(how, name) for name in effort},
            "unit": UNITS[how.norm],
            "epsilons": how.radii(),
            "clean": self.clean,
            "accuracy": self.accuracy,
            "checks": {
                name: {"passed": check.passed, **check.numbers}
                for name, check in self.checks.items()
            },
            "warnings": self.warnings,
        }
        if how.purify:
            names = ("transfer", "worst", "undefended", "undefended_clean")
            purified = {name: getattr(self, name) for name in names}
            found["purify"] = {"level": how.purify, "adaptive": self.accuracy, **purified}
        return found

    def rows(self) -> list[Row]:
        lines = [("without attack", f"{percent(self.clean)} of {self.images:,}")]
        curves = {"": self.accuracy}
        if self.how.purify:
            curves = {
                ", purified, adaptive": self.accuracy,
                ", purified, transfer": self.transfer,
                ", purified, the worse of both": self.worst,
                ", not purified": self.undefended,
            }
        for tail, by_attack in curves.items():
            for attack, values in by_attack.items():
                for each, value in zip(self.how.attacks_by(attack), values, strict=True):
                    lines.append((f"{attack} at {each.distance}{tail}", percent(value)))
        for name, check in self.checks.items():
            numbers = ", ".join(f"{what} {number:.3g}" for what, number in check.numbers.items())
            outcome = "holds" if check.passed else "FAILS"
            lines.append((name.replace("_", " "), f"{outcome}: {numbers}"))
        return lines

    def verdict(self) -> str:
        attack, share = self.bend()
        doubt = " But the attacks cannot be trusted: see the checks." if self.warnings else ""
        return (
            f"Under {attack.title} it still names {percent(share)} rightly, of "
            f"{percent(self.clean)} without.{doubt}"
        )

    def bend(self) -> tuple[Attack, float]:
        """The last kind of attack at the first epsilon that costs half of the accuracy, or at the
        largest if none does, and the accuracy there."""
        (*_, (name, curve)) = self.accuracy.items()
        points = list(zip(self.how.attacks_by(name), curve, strict=True))
        return next((point for point in points if point[1] <= self.clean / 2), points[-1])

    def figures(self) -> list[Section]:
        return RobustnessMetric().figures({"the model": self})


def evaluate_robustness(
    model: Model, data: ImageSet, *, progress: bool = True, **options: Any
) -> Robustness:
    """Attack a model on labelled images; of several processes, each takes its share.

    `options` are those of `RobustnessMetric.Options`.
    """
    how: RobustnessMetric.Options = build(RobustnessMetric.Options, options)
    if not how.radii() or not how.attacks:
        raise ConfigError("Give at least one epsilon and one attack.")
    fitting(model, data)
    ways = {
        DEFENDED: Predictor(model, how.ensemble, how.purify),
        BARE: Predictor(model, how.ensemble),
    }
    trial = Trial(ways, data, how.images, how.seed, progress)
    none = how.attack("none", 0.0)
    attacks = {name: how.attacks_by(name) for name in how.attacks}
    every = [attack for each in attacks.values() for attack in each]
    trial.run([none, *every])

    def curves(attacked: str, judged: str) -> Curves:
        return {
            name: [trial.accuracy(attack._replace(way=attacked), judged) for attack in each]
            for name, each in attacks.items()
        }

    found: dict[str, Any] = {}
    if how.purify:
        bare = none._replace(way=BARE)
        trial.run([bare])
        trial.run([attack._replace(way=BARE) for attack in every], judges=[BARE, DEFENDED])
        found = {
            "undefended_clean": trial.accuracy(bare, BARE),
            "undefended": curves(BARE, BARE),
            "transfer": curves(BARE, DEFENDED),
            "worst": {name: [trial.worst(a) for a in each] for name, each in attacks.items()},
        }
    if how.checks:
        found["checks"] = run_checks(trial, every)
    count, clean = len(trial.positions), trial.accuracy(none)
    result = Robustness(how, count, clean, curves(DEFENDED, DEFENDED), **found)
    for warning in result.warnings:
        log.warning("%s", warning)
    return result


@metrics.register("robustness")
class RobustnessMetric(Metric):
    title = "accuracy under attack"
    finds = ("attack", "pgd", "fgsm", "autoattack", "adversarial")
    requires = ("classifies",)
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

        def attack(self, name: str, epsilon: float) -> Attack:
            effort = (self.attack_steps, self.restarts, self.attack_draws)
            return Attack(name, epsilon, self.norm, *effort)

        def attacks_by(self, name: str) -> list[Attack]:
            """One kind of attack, at each epsilon."""
            return [self.attack(name, epsilon) for epsilon in self.radii()]

    def measure(self, model: Model, data: Splits, options: Options, progress: bool) -> Robustness:
        found = evaluate_robustness(model, data.test, progress=progress, **plain(options))
        if not options.examples:
            return found
        predictor, (attack, _) = Predictor(model, options.ensemble, options.purify), found.bend()
        count, seed = options.examples, options.seed
        examples = attack_examples(predictor, data.test, attack, count=count, seed=seed)
        return replace(found, examples=examples)

    def figures(self, results: Mapping[str, Robustness]) -> list[Section]:
        text = "Accuracy by how far an attack may go."
        sections = [Section("Under attack", text, robustness_figure(results))]
        for name, result in results.items():
            if (of := result.examples) is not None:
                title = of_model("Attacked images", name, results)
                text = f"{of.attack.title}: image, change, sum."
                sections.append(Section(title, text, examples_figure(of)))
        return sections

    def columns(self, options: Options) -> list[Column]:
        return [
            Column(f"{name}_{each.epsilon:g}", each.title, percent, ("accuracy", name, place))
            for name in options.attacks
            for place, each in enumerate(options.attacks_by(name))
        ]


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
                if (values := getattr(result, curve).get(attack)) is None:
                    continue
                clean = result.undefended_clean if curve == "undefended" else result.clean
                label = literal(model) if curve == "accuracy" else None
                axis.plot([0.0, *result.how.radii()], [clean, *values], f"o{style}", color=colour,
                          label=label, markersize=3)  # fmt: skip
            linf = result.how.norm == "linf"
            axis.set_xlabel("epsilon / 255" if linf else "epsilon, Euclidean")
            axis.set_title(result.how.attack(attack, 0).kind, fontsize=10)
        axis.set_ylim(0, 1.02)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("accuracy")
    if any(result.how.purify for result in results.values()):
        for curve, style in STYLES.items():
            axes[0].plot([], [], style, color=INK, label=WORDS[curve])
    axes[0].legend(frameon=False, fontsize=8)
    return figure
