"""Ctrl-C and SIGTERM, taken as a request: finish the step, save, and leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from egc.errors import EGCError


class StoppedError(EGCError):
    """Training was asked to stop, and did so in good order."""

    def __init__(self, step: int, number: int):
        super().__init__(
            f"Stopped by {signal.Signals(number).name} at step {step}, which is saved. "
            "The same command again goes on from there."
        )
        self.exit_code = 128 + number


class StopRequest:
    """The number of the signal that asked, or 0."""

    def __init__(self) -> None:
        self.number = 0

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.number:  # asked twice: do not insist on finishing
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """While inside, SIGINT and SIGTERM only ask. Elsewhere than in the main thread: no effect."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, request.ask) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
