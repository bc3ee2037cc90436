"""A bar for a terminal, a line for a log, and nothing for what is short or nobody asked for."""

import io
import logging
import subprocess
import sys

import pytest

from egc.report import progress
from egc.report.progress import Bar, LoggedLine, duration, progress_line


@pytest.fixture
def clock(monkeypatch):
    """The time, which passes only when it is told to."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def stage(clock, seconds_each: float, **options) -> None:
    with progress_line("Counting", 100, **options) as line:
        for _ in range(100 - options.get("done", 0)):
            clock[0] += seconds_each
            line.advance()


def test_a_long_stage_logs_one_line_off_a_terminal(clock, caplog):
    with caplog.at_level(logging.INFO, logger="egc"):
        stage(clock, 1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "Counting: 3 of 100, about 2 min to go."
    ]


def test_what_was_done_before_does_not_count_as_quick(clock, caplog):
    with caplog.at_level(logging.INFO, logger="egc"):
        stage(clock, 1.0, done=50)
    assert [record.getMessage() for record in caplog.records] == [
        "Counting: 53 of 100, about 47 s to go."
    ]


@pytest.mark.parametrize(("seconds", "show"), [(0.01, True), (10.0, False)])
def test_short_or_unwanted_stages_are_silent(clock, caplog, seconds, show):
    with caplog.at_level(logging.INFO, logger="egc"):
        stage(clock, seconds, show=show)
    assert not caplog.records


def test_a_terminal_gets_a_bar_and_no_log(monkeypatch, caplog):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with caplog.at_level(logging.INFO, logger="egc"), progress_line("Counting", 3) as line:
        assert isinstance(line, Bar)
        for _ in range(3):
            line.advance(note="well")
    assert "Counting" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()
    assert not caplog.records


def test_elsewhere_the_bar_is_not_even_imported(capsys):
    code = (
        "import sys\nfrom egc.report.progress import progress_line\n"
        "with progress_line('Counting', 2) as line: line.advance(2)\n"
        "assert 'rich' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.PIPE)
    with progress_line("Counting", 2) as line:
        assert isinstance(line, LoggedLine)


def test_durations():
    assert [duration(x) for x in (0.2, 40, 300, 9000)] == ["1 s", "40 s", "5 min", "2.5 h"]
