"""`egc config [KEY]`: every key of a configuration, with its type, default and meaning."""

from __future__ import annotations

import argparse
import textwrap

from egc.cli.base import Result, Verb, command, settings_argument


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key",
        nargs="?",
        metavar="KEY",
        help="a key such as train.steps, or a section such as train (all)",
    )
    parser.add_argument(
        "--preset", metavar="PRESET|FILE.toml", help="show the values of this configuration too"
    )
    settings_argument(parser)


def _run(args: argparse.Namespace) -> Result:
    from egc.config import Config
    from egc.config.parse import flat, keys
    from egc.errors import ConfigError, suggest

    config = Config.load(args.preset) if args.preset else Config()
    values = flat(config.with_settings(args.settings).to_dict())
    known = list(keys(Config))
    found = [
        each
        for each in known
        if args.key in (None, each.name) or each.name.startswith(f"{args.key}.")
    ]
    if not found:
        names = [each.name for each in known]
        raise ConfigError(f"There is no key {args.key!r}. {suggest(args.key, names, most=12)}")
    lines, rows = [], []
    for each in found:
        value = values.get(each.name, each.default)
        default = _shown(each.default)
        said = "" if _shown(value) == default else f", here {_shown(value)}"
        lines.append(f"{each.name}  ({each.type}; default {default}{said})")
        lines += textwrap.wrap(each.doc, 95, initial_indent="    ", subsequent_indent="    ")
        plain = list(each.default) if isinstance(each.default, tuple) else each.default
        about = {"name": each.name, "type": each.type, "default": plain, "meaning": each.doc}
        rows.append({**about, "value": value})
    following = command("train", args.preset or "digits", "--run", "runs/mine", "--dry-run")
    return Result({"keys": rows}, "\n".join(lines), following)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value in (None, {}) else repr(value) if value == "" else str(value)


VERB = Verb(
    "config",
    "start",
    "print every key of a configuration with its type, default and meaning",
    ["egc config", "egc config train.lr", "egc config network --preset cifar10"],
    _arguments,
    _run,
)
