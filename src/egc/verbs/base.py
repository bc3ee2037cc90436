"""What a verb of the command line is: arguments in, a `Result` out."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
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


def drawing_arguments(parser: argparse.ArgumentParser, out: str, what: str) -> None:
    parser.add_argument("--steps", type=int, metavar="N", help="sampling steps")
    parser.add_argument("--guidance", type=float, metavar="W", help="how strongly to insist")
    parser.add_argument(
        "--cfg", type=float, metavar="S", help="classifier-free guidance (1: none)"
    )
    seed_and_out(parser, out, what)


def seed_and_out(parser: argparse.ArgumentParser, out: str, what: str) -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(0)")
    parser.add_argument("--out", default=out, metavar="PATH", help=f"{what} ({out})")


def drawing_options(args: argparse.Namespace) -> dict[str, Any]:
    return {"steps": args.steps, "guidance": args.guidance, "cfg": args.cfg}


def write_figure(figure: Any, out: str) -> str:
    """A figure or picture as a PNG file."""
    from egc.errors import ConfigError
    from egc.report.figures import png

    path = Path(out)
    if path.suffix.lower() != ".png":
        raise ConfigError(f"Figures are written as .png; got {out!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(figure))
    return out


def best_of(probabilities: dict[str, float]) -> str:
    name = max(probabilities, key=lambda key: probabilities[key])
    return f"{name} {probabilities[name]:.1%}"
