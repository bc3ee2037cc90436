"""An evaluation as a table to read and a page to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from egc.metrics.certified import Certified
from egc.metrics.generation import Generation
from egc.metrics.likelihood import Likelihood
from egc.metrics.out_of_distribution import Novelty
from egc.metrics.robustness import Robustness
from egc.metrics.evaluate import Measured, Naming
from egc.metrics.figures_calibration import against_t_figure, reliability_figure
from egc.report.figures import confusion_figure
from egc.metrics.figures_generation import generation_figure
from egc.metrics.figures_novelty import roc_figure, score_figure
from egc.report.page import Section, render
from egc.metrics.figures_robustness import certified_figure, robustness_figure

Row = tuple[str, str]


def rows(found: Mapping[str, Measured]) -> dict[str, list[Row]]:
    """What was found, as (what, figure) by metric."""
    return {name: _rows(result) for name, result in found.items()}


def as_text(found: Mapping[str, Measured]) -> str:
    """The table for a terminal."""
    blocks = []
    for name, lines in rows(found).items():
        width = max(len(what) for what, _ in lines)
        blocks.append("\n".join([name, *(f"  {what:<{width}}  {shown}" for what, shown in lines)]))
    return "\n\n".join(blocks)


def evaluation_page(title: str, found: Mapping[str, Measured], classes: list[str]) -> str:
    """All figures on one page of HTML."""
    numbers = {what: shown for lines in rows(found).values() for what, shown in lines[:3]}
    sections: list[Section[Any]] = []
    for result in found.values():
        sections += _sections(result, classes)
    return render(title, "What was measured of this model, and how.", numbers, sections)


def _rows(result: Any) -> list[Row]:
    if isinstance(result, Naming):
        return _naming_rows(result)
    if isinstance(result, Generation):
        return _generation_rows(result)
    if isinstance(result, Robustness):
        return _robustness_rows(result)
    if isinstance(result, Certified):
        shown = {
            f"certified within {radius:.2f}": f"{accuracy:.1%}"
            for radius, accuracy in zip(*_curve(result), strict=True)
        }
        about = f"sigma {result.sigma:.3f} (t = {result.t}), {result.n} draws"
        return [*shown.items(), ("abstains", f"{result.abstained:.1%}"), ("noise", about)]
    if isinstance(result, Novelty):
        return [
            (f"{other}, by {score}", f"AUROC {f['auroc']:.1%}  AUPR {f['aupr']:.1%}  "
             f"FPR95 {f['fpr95']:.1%}")
            for other, scores in result.table().items()
            for score, f in scores.items()
        ]  # fmt: skip
    assert isinstance(result, Likelihood)
    return [("bits per dimension, at most", f"{result.bits:.3f} ± {result.error:.3f}")]


def _naming_rows(result: Naming) -> list[Row]:
    lines: list[Row] = []
    for way, each in result.ways.items():
        tail = "" if way == "plain" else f", {way}"
        top5 = [] if each.top5 is None else [(f"top-5{tail}", f"{each.top5:.1%}")]
        lines += [
            (f"accuracy{tail}", f"{each.accuracy:.1%} of {len(each.labels):,}"),
            *top5,
            (f"NLL{tail}", f"{each.nll:.4f}"),
            (f"Brier{tail}", f"{each.brier:.4f}"),
            (f"ECE{tail}", f"{each.ece:.2%}"),
        ]
    if result.against_t is not None:
        middle = len(result.against_t.times) // 2
        t, accuracy = result.against_t.times[middle], result.against_t.accuracy[middle]
        lines.append((f"accuracy at t = {t}", f"{accuracy:.1%}"))
    return lines


def _generation_rows(result: Generation) -> list[Row]:
    found, real = result.summary(), result.baseline.summary() if result.baseline else {}
    lines = []
    for name in ("fid", "judge_frechet", "kid", "judge_kid", "precision", "judge_precision",
                 "recall", "judge_recall", "inception_score", "agreement"):  # fmt: skip
        if found.get(name) is not None:
            beside = f" (real training images {real[name]:.4g})" if real.get(name) else ""
            lines.append((name.replace("_", " "), f"{found[name]:.4g}{beside}"))
    count = f"{found['samples']:,} samples against {found['reference_images']:,} images"
    return [*lines, ("measured on", count)]


def _robustness_rows(result: Robustness) -> list[Row]:
    unit = 255 if result.strength.norm == "linf" else 1
    shown = "/255" if unit == 255 else ""
    lines = [("without attack", f"{result.clean:.1%} of {result.images}")]
    curves = {"": result.accuracy}
    if result.purify:
        curves = {
            ", purified, adaptive": result.accuracy,
            ", purified, transfer": result.transfer,
            ", purified, the worse of both": result.worst,
            ", not purified": result.undefended,
        }
    for tail, by_attack in curves.items():
        for attack, values in by_attack.items():
            lines += [
                (f"{attack} at {unit * epsilon:g}{shown}{tail}", f"{value:.1%}")
                for epsilon, value in zip(result.epsilons, values, strict=True)
            ]
    for name, check in result.checks.items():
        lines.append((name.replace("_", " "), "holds" if check.passed else "FAILS"))
    return lines


def _curve(result: Certified) -> tuple[list[float], list[float]]:
    found = result.summary()
    return found["radii"][::2], found["certified_accuracy"][::2]


def _sections(result: Any, classes: list[str]) -> list[Section[Any]]:
    if isinstance(result, Naming):
        plain = result.ways["plain"]
        sections: list[Section[Any]] = [
            Section("Confidence", "How often it is right when it is so sure.",
                    reliability_figure(result.ways)),
            Section("Confusion", "True class by predicted class.",
                    confusion_figure(plain.confusion, classes)),
        ]  # fmt: skip
        if result.against_t is not None:
            text = "Naming noised images as what they are."
            sections.append(Section("Against noise", text, against_t_figure(result.against_t)))
        return sections
    if isinstance(result, Generation):
        text = "The first of the samples, and their distance from real images."
        return [Section("Drawn", text, generation_figure(result))]
    if isinstance(result, Robustness):
        return [Section("Under attack", "Accuracy by how far an attack may go.",
                        robustness_figure({"model": result}))]  # fmt: skip
    if isinstance(result, Certified):
        return [Section("Proven", "Accuracy that no change within a radius can break.",
                        certified_figure({"model": result}))]  # fmt: skip
    if isinstance(result, Novelty):
        return [
            Section("Familiar and strange", "Scores of familiar images and of others.",
                    score_figure(result)),
            Section("Telling them apart", "Strange images found, by false alarms.",
                    roc_figure(result)),
        ]  # fmt: skip
    return []
