"""What a verb of the command line is: arguments in, a `Result` out."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple


class Result(NamedTuple):
    """What a verb gives back: figures for `--json`, the same as text, and what to try next."""

    data: dict[str, Any]
    text: str
    next: str


class Verb(NamedTuple):
    name: str
    summary: str
    examples: list[str]
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Result]


def settings_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the configuration, such as train.steps=500; can be repeated",
    )


def model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a shipped name, a model or run directory, or a hub id"
    )
