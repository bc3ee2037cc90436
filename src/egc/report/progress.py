"""One progress line at a time, on stderr, and none where nobody watches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class Line:
    """A handle on the running progress line."""

    def __init__(self, progress: Progress, total: int, what: str, done: int):
        self._progress = progress
        self._task = progress.add_task(what, total=total, completed=done, note="")

    def advance(self, count: int = 1, note: str | None = None) -> None:
        if note is None:
            self._progress.advance(self._task, count)
        else:
            self._progress.update(self._task, advance=count, note=note)


@contextmanager
def progress_line(what: str, total: int, *, done: int = 0, show: bool = True) -> Iterator[Line]:
    """A bar with count, time left and a note; silent unless stderr is a terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not (show and console.is_terminal),
    ) as progress:
        yield Line(progress, total, what, done)
