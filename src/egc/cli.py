"""The command line: `egc VERB ...`; the verbs are in `egc.verbs`.

Results go to stdout, as text or with `--json` as one JSON object; messages go to stderr. Exit code
0: done; 2: the call was wrong; 1: it failed; 128 + n: stopped by signal n. A traceback is shown
only with `--debug`. Every success ends with the next useful command.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from egc.errors import EGCError, FailedError
from egc.verbs import VERBS, Result


@contextmanager
def _messages_on_stderr() -> Iterator[None]:
    """What the package has to say while a verb runs, one line each."""
    logger, handler = logging.getLogger("egc"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Parser(argparse.ArgumentParser):
    """argparse, with one sentence for a mistake instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="egc",
        description="One network that classifies by its forward pass and generates by its "
        "backward pass.",
        epilog="start here:\n  egc demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        sub = verbs.add_parser(
            verb.name,
            help=verb.summary,
            description=verb.summary[0].upper() + verb.summary[1:] + ".",
            epilog="examples:\n" + "\n".join(f"  {example}" for example in verb.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        sub.set_defaults(run_verb=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        with _messages_on_stderr():
            result: Result = args.run_verb(args)
    except KeyboardInterrupt:
        print("Stopped. The same command again goes on from the last checkpoint.", file=sys.stderr)
        return 130
    except Exception as error:
        if args.debug:
            raise
        if not isinstance(error, EGCError):
            error = FailedError(f"{type(error).__name__}: {error} (--debug shows where)")
        asked = error.exit_code > 128  # by a signal: not an error
        print(f"{'' if asked else 'error: '}{error}", file=sys.stderr)
        return error.exit_code
    if os.environ.get("RANK", "0") == "0":  # of several processes, one speaks
        print(json.dumps(result.data) if args.json else result.text)
        print(f"next: {result.next}", file=sys.stderr)
    return 0
