"""Everything that can be measured of a model, in one call.

    classification   accuracy, calibration, confusion; by noise level; with an ensemble
    generation       FID or the judge's distances, KID, precision and recall of samples
    robustness       accuracy under attack, and whether the attacks can be trusted
    certified        accuracy that is proven within a radius
    novelty          telling familiar images from others
    likelihood       a bound in bits per dimension

What a kind of model cannot do (a DDPM names nothing, a classifier draws nothing) is left out, or
refused if it was asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from egc.config import Config
from egc.data.imageset import ImageSet, Splits
from egc.data.sources import open_source
from egc.errors import ConfigError, ModelError, suggest
from egc.metrics.certified import evaluate_certified
from egc.metrics.classification import (
    AgainstT,
    Classification,
    accuracy_against_t,
    evaluate_classification,
)
from egc.metrics.fitting import fitting, labelled
from egc.metrics.generation import evaluate_generation
from egc.metrics.likelihood import evaluate_likelihood
from egc.metrics.out_of_distribution import DEFAULT_OTHERS, evaluate_novelty
from egc.metrics.robustness import evaluate_robustness
from egc.model import Model


class Measured(Protocol):
    """What every part gives."""

    def summary(self) -> dict[str, Any]:
        """Figures that JSON can hold."""
        ...


@dataclass(frozen=True)
class Plan:
    """How much is measured, and how."""

    seed: int = 0
    most: int | None = None
    """images to classify; None: all"""
    levels: int = 9
    """noise levels at which accuracy is measured too; 0: none"""
    ensemble: int = 0
    """draws of noise that p(y|x) is averaged over, beside the plain way; 0: plain alone"""
    samples: int = 1000
    features: str = "auto"
    steps: int | None = None
    sampler: str | None = None
    guidance: float | None = None
    cfg: float | None = None
    images: int = 256
    """to attack, to certify, and to bound"""
    attacks: tuple[str, ...] = ("fgsm", "pgd")
    norm: str = "linf"
    epsilons: tuple[float, ...] = (2 / 255, 4 / 255, 8 / 255)
    attack_steps: int = 20
    restarts: int = 1
    purify: int = 0
    """noise level to clean images from; 0: not"""
    checks: bool = True
    """whether the attacks are checked too"""
    certify: float = 0.25
    """standard deviation of the noise to certify with, in pixels of 0..1"""
    draws: int = 1000
    """of noise for each certified image"""
    others: tuple[str, ...] = DEFAULT_OTHERS
    novel: int = 1000
    """images of each kind, for novelty"""


@dataclass(frozen=True)
class Naming:
    """Classification in all the ways it was asked for."""

    ways: dict[str, Classification]
    """`plain`, and how else the model was asked"""
    against_t: AgainstT | None

    def summary(self) -> dict[str, Any]:
        found = {**self.ways["plain"].summary()}
        found["ways"] = {name: result.figures() for name, result in self.ways.items()}
        if self.against_t is not None:
            found["against_t"] = self.against_t.summary()
        return found


def _classification(model: Model, data: Splits, plan: Plan, keep: Path | None, show: bool) -> Any:
    test = data.test
    fitting(model, test)
    if plan.most is not None:
        test = test.subset(labelled(test, plan.most))
    ways = {"plain": evaluate_classification(model, test)}
    if plan.ensemble:
        name = f"ensemble of {plan.ensemble}"
        ways[name] = evaluate_classification(model, test, ensemble=plan.ensemble, seed=plan.seed)
    if plan.purify:
        ways[f"purified from {plan.purify}"] = evaluate_classification(
            model, test, purify=plan.purify, seed=plan.seed
        )
    levels = None
    if plan.levels and model.net.denoises:
        last = model.diffusion.steps - 1
        times = np.linspace(0, last, plan.levels).round().astype(int).tolist()
        levels = accuracy_against_t(model, test, times, seed=plan.seed)
    return Naming(ways, levels)


def _generation(model: Model, data: Splits, plan: Plan, keep: Path | None, show: bool) -> Any:
    guidance = model.config.sample.guidance if plan.guidance is None else plan.guidance
    asked = guidance > 0 or model.net.takes_label
    return evaluate_generation(
        model,
        data.train,
        data.test,
        count=plan.samples,
        features=plan.features,
        keep=keep,
        labels="data" if asked else "none",
        seed=plan.seed,
        steps=plan.steps,
        sampler=plan.sampler,
        guidance=plan.guidance,
        cfg=plan.cfg,
        progress=show,
    )


def _robustness(model: Model, data: Splits, plan: Plan, keep: Path | None, show: bool) -> Any:
    return evaluate_robustness(
        model,
        data.test,
        epsilons=plan.epsilons,
        norm=plan.norm,
        attacks=plan.attacks,
        steps=plan.attack_steps,
        restarts=plan.restarts,
        count=plan.images,
        ensemble=plan.ensemble,
        purify=plan.purify,
        seed=plan.seed,
        checks=plan.checks,
        show=show,
    )


def _certified(model: Model, data: Splits, plan: Plan, keep: Path | None, show: bool) -> Any:
    return evaluate_certified(
        model,
        data.test,
        sigma=plan.certify,
        n=plan.draws,
        count=plan.images,
        seed=plan.seed,
        show=show,
    )


def _novelty(model: Model, data: Splits, plan: Plan, keep: Path | None, show: bool) -> Any:
    return evaluate_novelty(
        model, data.test, plan.others, fit_on=data.validation, count=plan.novel, seed=plan.seed
    )


def _likelihood(model: Model, data: Splits, plan: Plan, keep: Path | None, show: bool) -> Any:
    return evaluate_likelihood(model, data.test, count=plan.images, seed=plan.seed)


METRICS: dict[str, Callable[[Model, Splits, Plan, Path | None, bool], Measured]] = {
    "classification": _classification,
    "generation": _generation,
    "robustness": _robustness,
    "certified": _certified,
    "novelty": _novelty,
    "likelihood": _likelihood,
}


def obstacle(model: Model, metric: str) -> str | None:
    """Why a model cannot be measured so; None if it can."""
    pixels = model.config.codec.kind == "pixel"
    if metric in ("classification", "robustness", "certified") and not model.classes:
        return "it names nothing, as it was trained without labels"
    if metric == "generation" and not model.net.draws:
        return "it was not trained to draw (objective.kind = classifier)"
    if metric == "likelihood" and not model.net.denoises:
        return f"it knows no noise levels (objective.kind = {model.config.objective.kind})"
    if metric in ("likelihood", "certified") and not pixels:
        return "it works on latents, and the figure would be one of latents"
    return None


def evaluate(
    model: Model,
    data: Splits,
    metrics: Sequence[str] | None = None,
    plan: Plan | None = None,
    *,
    keep: Path | None = None,
    progress: bool = True,
) -> dict[str, Measured]:
    """Measure a model on the test images of `data`.

    Args:
        metrics: some of `METRICS`; default: all that this kind of model has.
        keep: where drawn images are kept, so that the same call goes on where it was.
    """
    plan = plan or Plan()
    for name in metrics or ():
        if name not in METRICS:
            raise ConfigError(f"There is no metric {name!r}. {suggest(name, METRICS)}")
        if reason := obstacle(model, name):
            raise ModelError(f"The model cannot be measured by {name!r}: {reason}.")
    chosen = metrics or [name for name in METRICS if obstacle(model, name) is None]
    return {name: METRICS[name](model, data, plan, keep, progress) for name in chosen}


def data_for(
    model: Model, source: str | None = None, changes: Mapping[str, Any] | None = None
) -> Splits:
    """The model's own data, or another source as it is, unless `changes` say how to open it."""
    own = model.config.data
    wanted: dict[str, Any] = {"source": source or own.source}
    if wanted["source"] == own.source:
        kept = ("image_size", "channels", "test", "validation")
        wanted |= {key: value for key in kept if (value := getattr(own, key)) is not None}
    return open_source(Config.from_dict({"data": {**wanted, **dict(changes or {})}}).data)


def measured_on(data: Splits, split: str) -> Splits:
    """The splits with another part in the place of the test images."""
    parts: dict[str, ImageSet] = data._asdict()
    return data._replace(test=parts[split])
