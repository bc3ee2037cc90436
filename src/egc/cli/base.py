"""What a verb of the command line is, and how its flags are made from dataclasses.

A verb is one module of this package with a `VERB`: its name, group, summary, examples, a function
that adds its arguments and one that runs it and gives a `Result`. It imports what it needs when
it runs, and checks its arguments first, so that a mistake is answered at once.

The same word means the same on every verb: `--steps` sampling steps, `--count` images to make,
`--images` images to use, `--seed`, `--out`, `--device`, `--set`; lists are separated by spaces.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from egc.errors import ConfigError, suggest

GROUPS = {
    "start": "start here",
    "train": "train",
    "use": "use a model",
    "measure": "measure",
    "share": "share",
}


class Result(NamedTuple):
    """What a verb gives back: figures for `--json`, the same as text, and what to try next."""

    data: dict[str, Any]
    text: str
    next: str


class Verb(NamedTuple):
    name: str
    group: str
    """a key of GROUPS"""
    summary: str
    examples: list[str]
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Result]
    check: Callable[[Sequence[str]], None] = lambda words: None
    """a first look at the words, of verbs whose flags take long to import"""


def command(*words: object) -> str:
    """A command that can be pasted: its words quoted where they need it, None left out."""
    return shlex.join(["egc", *(str(word) for word in words if word is not None)])


# --- arguments that several verbs have -----------------------------------------------------------


def settings_argument(parser: argparse.ArgumentParser, what: str = "KEY=VALUE") -> None:
    example = "train.steps=500" if what == "KEY=VALUE" else "data.image_size=64"
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar=what,
        help=f"change a key of the configuration, such as {example}; can be repeated "
        "(`egc config` lists the keys)",
    )


def settings_words(settings: Iterable[str]) -> list[str]:
    """The same settings again, for a command that goes on with them."""
    return [word for setting in settings for word in ("--set", setting)]


def model_argument(parser: argparse.ArgumentParser, several: bool = False) -> None:
    parser.add_argument(
        "models" if several else "model",
        nargs="+" if several else None,
        metavar="MODEL",
        help="a shipped name, a model or run directory, or a hub id"
        + ("; several share their axes" if several else ""),
    )
    device_argument(parser)


def device_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="NAME", help="cpu, cuda, cuda:1 or mps (a GPU if there is one)"
    )


def seed_argument(parser: argparse.ArgumentParser, of: str = "of the first image") -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=f"{of} (0)")


def out_argument(parser: argparse.ArgumentParser, default: str | None, what: str) -> None:
    shown = f" ({default})" if default else ""
    parser.add_argument("--out", default=default, metavar="PATH", help=f"{what}{shown}")


def sampling_arguments(parser: argparse.ArgumentParser, skip: Iterable[str] = ()) -> None:
    """The flags of `SampleConfig`, whose defaults are the model's own."""
    from egc.config import SampleConfig

    default = "{}, or what its recipe says"
    add_options(parser, SampleConfig, default=default, title="sampling", skip=skip)


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """What was said of them, checked as far as that needs no model."""
    from egc.config import SampleConfig
    from egc.config.parse import build

    given = read_options(args, SampleConfig)
    build(SampleConfig, given, "--")
    return given


# --- flags from dataclasses ----------------------------------------------------------------------


def add_options(
    parser: argparse._ActionsContainer,
    cls: type,
    *,
    default: str | None = None,
    title: str | None = None,
    skip: Iterable[str] = (),
) -> None:
    """A flag for each field of a dataclass whose fields were made by `egc.config.parse.key`.

    A flag that is not given is None, so that the dataclass's own default holds; the help shows
    that default, or `default` with it filled in.
    """
    group = parser.add_argument_group(title) if title else parser
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if f.name in skip:
            continue
        kind, several = _item(hints[f.name])
        unset = f.metadata.get("none", "none") if f.default is None else None
        shown = (default or "{}").format(unset or _shown(f.default))
        options: dict[str, Any] = {"dest": f.name, "default": None}
        text = f.metadata["doc"]
        if "registry" in f.metadata:
            text += ": " + ", ".join(f.metadata["registry"].names())
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": kind, "metavar": {int: "N", float: "X"}.get(kind, "NAME")}
            if typing.get_origin(hints[f.name]) is Literal:
                options |= {"choices": typing.get_args(hints[f.name]), "type": str}
                options["metavar"] = None
                text += ": " + ", ".join(typing.get_args(hints[f.name]))
        if several:
            options["nargs"] = "+"
        options["help"] = f"{text} ({shown})".replace("%", "%%")
        group.add_argument(f"--{f.name.replace('_', '-')}", **options)


def read_options(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields of a dataclass that were given as flags."""
    given = {f.name: getattr(args, f.name, None) for f in dataclasses.fields(cls)}
    return {name: value for name, value in given.items() if value is not None}


def _item(hint: Any) -> tuple[Any, bool]:
    """The type of a flag's value, and whether it takes several."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return _item(arguments[0])
    if origin is tuple:
        return _item(arguments[0])[0], True
    return (str if origin is Literal else hint), False


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(map(str, default)) or "none"
    if isinstance(default, bool):
        return "yes" if default else "no"
    return (
        "none"
        if default is None
        else f"{default:g}"
        if isinstance(default, float)
        else str(default)
    )


# --- checks that come before any work ------------------------------------------------------------


def check_suffix(out: str, *suffixes: str) -> Path:
    """A file that is to be written, refused unless its name ends as it should."""
    path = Path(out)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"This is written as {' or '.join(suffixes)}; got {out!r}.")
    if path.is_dir():
        raise ConfigError(f"{out!r} is a directory; name a file that ends in {suffixes[0]}.")
    return path


def check_images(paths: Iterable[str | Path]) -> list[Path]:
    """Images, or directories of them, refused if one is not there."""
    found = [Path(path) for path in paths]
    for path in found:
        if not path.exists():
            raise ConfigError(f"There is no image {str(path)!r}.")
    return found


def check_name(name: str, known: Iterable[str], what: str) -> None:
    known = list(known)
    if name not in known:
        raise ConfigError(f"There is no {what} {name!r}. {suggest(name, known, most=len(known))}")


def opened(args: argparse.Namespace, name: str | None = None) -> Any:
    """The model that a verb works on, on the device that was asked for."""
    from egc.hub import find_model

    place = name or args.model
    folder = find_model(place)  # before PyTorch is imported
    from egc.api import EGC

    return EGC.load(folder, args.device)


def write_picture(picture: Any, out: str) -> str:
    """A figure or picture as a PNG file."""
    from egc.report.figures import png

    path = check_suffix(out, ".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(picture))
    return out


def best_of(probabilities: dict[str, float]) -> str:
    name = max(probabilities, key=lambda key: probabilities[key])
    return f"{name} {probabilities[name]:.1%}"
