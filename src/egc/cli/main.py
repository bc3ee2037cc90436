"""`egc VERB ...`: finds the verb, runs it, and says how it went.

Results go to stdout, as text or with `--json` as one JSON object; messages go to stderr. Exit code
0: done; 2: the call was wrong; 1: it failed; 128 + n: stopped by signal n. A traceback is shown
only with `--debug`. Every success ends with the next useful command.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from egc.cli.base import GROUPS, Result, Verb
from egc.cli.quick_imports import spare_the_compiler
from egc.errors import ConfigError, EGCError, FailedError, suggest


def verbs() -> dict[str, Verb]:
    """All verbs by name: every module of this package that has a `VERB`."""
    package = Path(__file__).parent
    modules = [
        import_module(f"egc.cli.{found.name}") for found in pkgutil.iter_modules([str(package)])
    ]
    found = [module.VERB for module in modules if hasattr(module, "VERB")]
    order = list(GROUPS)
    found.sort(key=lambda verb: order.index(verb.group))
    return {verb.name: verb for verb in found}


class _Parser(argparse.ArgumentParser):
    """argparse, with one sentence for a mistake instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def parser_of(verb: Verb) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"egc {verb.name}",
        description=verb.summary[0].upper() + verb.summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {example}" for example in verb.examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.arguments(parser)
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module or file of your own that registers networks, samplers, metrics, ...",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def parsed(verb: Verb, words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a call; files and flags may stand in any order."""
    parser = parser_of(verb)
    if parser._subparsers is not None:  # argparse cannot do both
        return parser.parse_args(words)
    return parser.parse_intermixed_args(words)


def overview() -> str:
    """What `egc --help` shows."""
    lines = [
        "usage: egc VERB ...",
        "",
        "One network that classifies by its forward pass and generates by its backward pass.",
    ]
    for group, title in GROUPS.items():
        members = [verb for verb in verbs().values() if verb.group == group]
        lines += ["", f"{title}:", *(f"  {verb.name:<12} {verb.summary}" for verb in members)]
    lines += ["", "`egc VERB --help` shows examples; `egc --version`; begin with `egc demo`."]
    return "\n".join(lines)


def import_modules(names: Sequence[str]) -> None:
    """Modules of the user's own, by name or by file, also from the current directory."""
    for name in names:
        path = Path(name)
        folder = path.parent if path.suffix == ".py" else Path()
        if path.suffix == ".py" and not path.is_file():
            raise ConfigError(f"There is no file {name!r} to import.")
        if str(folder.resolve()) not in sys.path:
            sys.path.insert(0, str(folder.resolve()))
        try:
            import_module(path.stem if path.suffix == ".py" else name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"--import {name}: {error}.") from None


@contextmanager
def messages_on_stderr() -> Iterator[None]:
    """What the package has to say while a verb runs, one line each."""
    logger, handler = logging.getLogger("egc"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] == "--version":
        from egc import __version__

        print(f"egc {__version__}")
        return 0
    known = verbs()
    if words[0] not in known:
        hint = suggest(words[0], known, most=len(known))
        print(f"error: There is no verb {words[0]!r}. {hint} See egc --help.", file=sys.stderr)
        return 2
    verb = known[words[0]]
    debug = "--debug" in words
    if argv is None:  # the process is ours alone
        spare_the_compiler()
    try:
        with messages_on_stderr():
            import_modules(_imports(words))
            verb.check(words[1:])
            args = parsed(verb, words[1:])
            result: Result = verb.run(args)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        if not isinstance(error, EGCError):
            error = FailedError(f"{type(error).__name__}: {error} (--debug shows where)")
        asked = error.exit_code > 128  # by a signal: not an error
        print(f"{'' if asked else 'error: '}{error}", file=sys.stderr)
        return error.exit_code
    if os.environ.get("RANK", "0") == "0":  # of several processes, one speaks
        print(json.dumps({"version": 1, **result.data}) if args.json else result.text)
        print(f"next: {result.next}", file=sys.stderr)
    return 0


def _imports(words: Sequence[str]) -> list[str]:
    """The modules named by --import, which may register flags: known before those are read."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--import", dest="imports", action="append", default=[])
    return first.parse_known_args(list(words))[0].imports
