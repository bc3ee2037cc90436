"""Errors a user can act on: what was wrong, what we got, what is allowed, what to do next.

The command line prints the message as one sentence and leaves with `exit_code`:
2 when the call was wrong, 1 when the work failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EGCError(Exception):
    """Anything EGC refuses or fails to do, with a message meant for the user."""

    exit_code = 2


class ConfigError(EGCError):
    """A preset, configuration file or setting that cannot be used."""


class DataError(EGCError):
    """Images or labels that are missing, unreadable or do not fit."""


class ModelError(EGCError):
    """A model that cannot be found or opened."""


class RunError(EGCError):
    """A run directory that cannot be used as asked."""


class FailedError(EGCError):
    """The call was right, but the work failed."""

    exit_code = 1


class TrainingError(FailedError):
    """Training started and could not go on."""


def suggest(word: str, allowed: Iterable[str], most: int = 8) -> str:
    """A hint for a word that is not among the allowed ones, such as `Did you mean 'ddim'?`"""
    allowed = list(allowed)
    if close := difflib.get_close_matches(word, allowed, n=2, cutoff=0.5):
        return "Did you mean " + " or ".join(repr(name) for name in close) + "?"
    if not allowed:
        return "There is none to choose from."
    shown = ", ".join(repr(name) for name in allowed[:most])
    return f"Known: {shown}{', ...' if len(allowed) > most else ''}."
