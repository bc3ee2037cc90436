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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from egc.config.parse import key
from egc.report.page import Section

if TYPE_CHECKING:
    from egc.data.imageset import Splits
    from egc.model import Model

Row = tuple[str, str]
"""what was measured, and the figure as text"""


def percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


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
        """All figures, and what they depend on, as JSON can hold them."""
        raise NotImplementedError

    def rows(self) -> list[Row]:
        """The figures to read, in the terminal and on the page; here: numbers of the summary."""
        found = self.summary().items()
        return [(name.replace("_", " "), f"{n:.4g}") for name, n in found if _is_number(n)]

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
    needs_labels = False
    """whether right answers are counted, so that the data must have the model's classes"""

    @dataclass(frozen=True)
    class Options:
        """Fields made by `egc.config.parse.key`; each becomes a flag."""

        seed: int = key(0, "of all that is random in measuring", low=0)

    def obstacle(self, model: Model) -> str | None:
        """Why a model cannot be measured so, to follow "because"; None if it can."""
        return None

    def measure(self, model: Model, data: Splits, options: Any, progress: bool) -> Measured:
        """Measure a model on `data.test`.

        Args:
            options: an instance of `Options`, checked.
            progress: whether to show how far it is.
        """
        raise NotImplementedError

    def figures(self, results: Mapping[str, Any]) -> list[Section]:
        """What there is to look at of several models, by name; here: one after the other."""
        sections = []
        for name, result in results.items():
            for section in result.figures():
                title = section.title if len(results) == 1 else f"{section.title}: {name}"
                sections.append(Section(title, section.text, section.picture, section.table))
        return sections

    def columns(self, options: Any) -> list[Column]:
        """The figures of a summary, measured with these options, that `egc compare` shows.

        A column that no entry of a comparison has a figure for is left out by the table, so all
        that there may be are named here.
        """
        return []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
