"""The verbs of the command line.

Each imports what it needs when it runs, so that `egc --help` answers at once.
"""

from egc.cli import (
    attacking,
    changing,
    evaluating,
    exploring,
    listing,
    preparing,
    training,
    using,
)
from egc.cli.base import Result, Verb

VERBS: list[Verb] = [
    *training.VERBS,
    *using.VERBS,
    *changing.VERBS,
    *exploring.VERBS,
    *evaluating.VERBS,
    *attacking.VERBS,
    *preparing.VERBS,
    *listing.VERBS,
]

__all__ = ["VERBS", "Result", "Verb"]
