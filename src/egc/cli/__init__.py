"""The command line: `egc VERB ...`, one module a verb."""

from egc.cli.main import main

__all__ = ["main"]
