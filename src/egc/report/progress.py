"""How far a stage is: a bar on a terminal, elsewhere one line in the log if it takes long.

Bars go to stderr. Where nobody watches, a stage that is not done within a few seconds logs one
line, with the time that it is likely to take.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("egc")

QUIET_SECONDS = 3.0
"""how long a stage may take without saying so"""


class Line:
    """A handle on a stage that is under way; this one shows nothing."""

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """So many more are done; the note says how it goes."""


class LoggedLine(Line):
    """One line in the log, once it is clear that the stage takes a while."""

    def __init__(self, what: str, total: int, done: int):
        self.what, self.total, self.done = what, total, done
        self._first, self._started = done, time.monotonic()
        self._said = False

    def advance(self, count: int = 1, note: str | None = None) -> None:
        self.done += count
        seconds = time.monotonic() - self._started
        if self._said or seconds < QUIET_SECONDS or self.done >= self.total:
            return
        self._said = True
        left = seconds * (self.total - self.done) / (self.done - self._first)
        log.info("%s: %d of %d, about %s to go.", self.what, self.done, self.total, duration(left))


class Bar(Line):
    """A bar with count, time left and the note."""

    def __init__(self, progress: Any, what: str, total: int, done: int):
        self._progress = progress
        self._task = progress.add_task(what, total=total, completed=done, note="")

    def advance(self, count: int = 1, note: str | None = None) -> None:
        fields = {} if note is None else {"note": note}
        self._progress.update(self._task, advance=count, **fields)


@contextmanager
def progress_line(what: str, total: int, *, done: int = 0, show: bool = True) -> Iterator[Line]:
    """Say how far a stage of `total` parts is, `done` of which were done before."""
    if not show:
        yield Line()
    elif not sys.stderr.isatty():
        yield LoggedLine(what, total, done)
    else:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=Console(stderr=True)) as progress:
            yield Bar(progress, what, total, done)


def duration(seconds: float) -> str:
    """A time in the unit that suits it, such as `40 s`, `3 min` or `2.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
