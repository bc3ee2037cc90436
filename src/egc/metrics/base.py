"""What a metric is: its options, how it measures, and how its figures are shown.

A metric is one class in one module, in this package or a user's own (`egc evaluate --import`):

    @metrics.register("sharpness")
    class Sharpness(Metric):
        title = "how sharp samples are"

        @dataclass(frozen=True)
        class Options(Metric.Options):
            count: int = key(100, "samples to make", low=1)

        def measure(self, model, data, options, progress):
            return Sharp(...)  # a `Measured`

Everything follows from it: `egc evaluate` makes flags of the fields of `Options` and shows the
rows, the summary and the figures of what was measured; `egc compare` takes its columns. Fields of
the same name mean the same in all metrics, as they are one flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from egc.config.parse import key
from egc.report.page import Section

if TYPE_CHECKING:
    from egc.data.imageset import Splits
    from egc.model import Model

Row = tuple[str, str]
"""what was measured, and the figure as text"""
OBSTACLES = {
    "classifies": "it names nothing",
    "draws": "it was not trained to draw",
    "denoises": "it knows no noise levels",
    "pixels": "it works on latents, and the figure would be one of latents",
}
"""what a metric may require of a model, and what to say of one that has it not"""


def percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def fields_of(found: Any) -> dict[str, Any]:
    """The fields of a dataclass, arrays as lists."""
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    return {name: n.tolist() if hasattr(n, "tolist") else n for name, n in values.items()}


def of_model(title: str, name: str, results: Mapping[str, Any]) -> str:
    """A title, with the name of the model where there are several."""
    return f"{title}: {name}" if len(results) > 1 else title


class Column(NamedTuple):
    """A figure of a summary that is a column of `egc compare`."""

    key: str
    """its name in JSON, unlike those of all other metrics"""
    title: str
    """the head of the column"""
    show: Callable[[Any], str]
    """how the figure is written, such as `percent`"""
    path: Sequence[str | int]
    """the way to it through the summary: keys of tables and places in lists"""

    def of(self, summary: Any) -> Any:
        """The figure itself; None where the summary has none."""
        for step in self.path:
            try:
                summary = summary[step]
            except (KeyError, IndexError, TypeError):
                return None
        return summary


class Measured:
    """What a metric found of one model."""

    def summary(self) -> dict[str, Any]:
        """All figures, and what they depend on, as JSON can hold them; here: all fields."""
        return fields_of(self)

    def rows(self) -> list[Row]:
        """The figures to read, in the terminal and on the page; here: numbers of the summary."""
        return [
            (name.replace("_", " "), f"{n:.4g}")
            for name, n in self.summary().items()
            if isinstance(n, int | float) and not isinstance(n, bool)
        ]

    def verdict(self) -> str:
        """One sentence for the top of the page, or nothing."""
        return ""

    def figures(self) -> list[Section]:
        """What there is to look at."""
        return []


class Metric:
    """A way to measure models."""

    title = ""
    """what is measured, in a few words"""
    finds: tuple[str, ...] = ()
    """well-known names of its figures: who asks for one of them as a metric is sent here"""
    requires: tuple[str, ...] = ()
    """keys of `OBSTACLES`: what a model must be able to do"""
    needs_labels = False
    """whether right answers are counted, so that the data must have the model's classes"""

    @dataclass(frozen=True)
    class Options:
        """Fields made by `egc.config.parse.key`; each becomes a flag."""

        seed: int = key(0, "of all that is random in measuring", low=0)

    def obstacle(self, model: Model) -> str | None:
        """Why a model cannot be measured so, to follow "because"; None if it can."""
        able = {
            "classifies": model.classifies,
            "draws": model.net.draws,
            "denoises": model.net.denoises,
            "pixels": model.config.codec.kind == "pixel",
        }
        return next((OBSTACLES[what] for what in self.requires if not able[what]), None)

    def measure(self, model: Model, data: Splits, options: Any, progress: bool) -> Measured:
        """Measure a model on `data.test`, with an instance of `Options` that was checked."""
        raise NotImplementedError

    def figures(self, results: Mapping[str, Any]) -> list[Section]:
        """What there is to look at of several models, by name; here: one after the other."""
        return [
            replace(section, title=of_model(section.title, name, results))
            for name, result in results.items()
            for section in result.figures()
        ]

    def columns(self, options: Any) -> list[Column]:
        """The figures that `egc compare` shows; it leaves out those that no entry has."""
        return []
