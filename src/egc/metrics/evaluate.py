"""Everything that can be measured of a model, in one call, as a table and on a page.

What a kind of model cannot do (a DDPM names nothing, a classifier draws nothing) is left out, or
refused if it was asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from egc.config.parse import build
from egc.data.imageset import Splits
from egc.errors import ConfigError, ModelError, suggest
from egc.metrics.base import Measured, Metric
from egc.metrics.fitting import fitting
from egc.metrics.names import check_metric
from egc.model import Model
from egc.registry import metrics
from egc.report.page import Section, Table, render

FIRST = ("classification", "generation", "robustness")
"""what most want to know"""

Found = Mapping[str, Mapping[str, Measured]]
"""name of a model -> metric -> what was measured"""


def all_metrics() -> dict[str, Metric]:
    """All metrics by name, those of users' own modules too."""
    return {name: metrics[name]() for name in dict.fromkeys((*FIRST, *metrics.names()))}


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of every metric, from one table: each takes the keys that it has."""
    every = all_metrics()
    known = {f.name for metric in every.values() for f in fields(metric.Options)}
    for name in given:
        if name not in known:
            raise ConfigError(f"No metric has an option {name!r}. {suggest(name, sorted(known))}")
    found = {}
    for name, metric in every.items():
        own = {f.name: given[f.name] for f in fields(metric.Options) if f.name in given}
        found[name] = build(metric.Options, own)
    return found


def choose(model: Model, data: Splits, names: Sequence[str] | None = None) -> dict[str, Metric]:
    """The metrics that were asked for, or all that this kind of model has; checked."""
    every = all_metrics()
    for name in names or ():
        check_metric(name)
        if reason := every[name].obstacle(model):
            raise ModelError(
                f"The model cannot be measured by {name!r}: {reason} ({model.net.about})"
            )
    chosen = names or [name for name, metric in every.items() if metric.obstacle(model) is None]
    if any(every[name].needs_labels for name in chosen):
        fitting(model, data.test)
    return {name: every[name] for name in chosen}


def evaluate(
    model: Model,
    data: Splits,
    names: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    progress: bool = True,
) -> dict[str, Measured]:
    """Measure a model on the test images of `data`.

    Args:
        names: of metrics; default: all that this kind of model has.
        options: of all metrics together, such as `{"images": 100, "count": 500}`.
    """
    how = read_options(options or {})
    return {
        name: metric.measure(model, data, how[name], progress)
        for name, metric in choose(model, data, names).items()
    }


def measured_on(data: Splits, split: str) -> Splits:
    """The splits with another part in the place of the test images."""
    return data._replace(test=getattr(data, split))


def as_text(found: Found) -> str:
    """The table for a terminal, one model after the other."""
    blocks = []
    for model, results in found.items():
        head = f"{model}: " if len(found) > 1 else ""
        for name, result in results.items():
            rows = result.rows()
            width = max((len(what) for what, _ in rows), default=0)
            lines = [f"  {what:<{width}}  {shown}" for what, shown in rows]
            blocks.append("\n".join([f"{head}{name}", *lines]))
    return "\n\n".join(blocks)


def evaluation_page(found: Found) -> str:
    """All figures on one page of HTML: what they say, tables of them, and pictures."""
    every = all_metrics()
    verdicts = []
    for model, results in found.items():
        said = " ".join(filter(None, (result.verdict() for result in results.values())))
        verdicts.append(f"{model}: {said}" if len(found) > 1 else said)
    sections = []
    for name in dict.fromkeys(name for results in found.values() for name in results):
        of_metric = {model: each[name] for model, each in found.items() if name in each}
        title, text = name.replace("_", " ").capitalize(), f"{every[name].title}.".capitalize()
        sections.append(Section(title, text, table=_table(of_metric)))
        sections += every[name].figures(of_metric)
    return render(f"Evaluation of {', '.join(found)}", " ".join(verdicts), {}, sections)


def _table(results: Mapping[str, Measured]) -> Table:
    """Rows of figures, a column a model."""
    columns = {model: dict(result.rows()) for model, result in results.items()}
    labels = dict.fromkeys(label for column in columns.values() for label in column)
    rows = [[what, *(column.get(what, "-") for column in columns.values())] for what in labels]
    return Table(["", *columns], rows)
