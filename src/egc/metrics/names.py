"""The names of metrics, known before any of them is imported: a typo is answered at once.

Those of the package are read from its files; those of a user's own module are registered when it
is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from egc.errors import ConfigError, suggest
from egc.registry import metrics


def check_metric(name: str) -> None:
    """Refuse a name that no metric has, with the one that was probably meant."""
    known = dict(_in_package()) | {own: each.finds for own, each in metrics.imported().items()}
    if name in known:
        return
    word = name.lower().replace("-", "_")
    owners = [metric for metric, finds in known.items() if word in (metric, *finds)]
    hint = f"It is a figure of {owners[0]!r}." if owners else suggest(word, known, len(known))
    raise ConfigError(f"There is no metric {name!r}. {hint}")


def _in_package() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names and `finds` of all classes in this package's files that are registered."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef) or not node.decorator_list:
                continue
            mark, *_ = node.decorator_list
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "metrics.register":
                assigned = [line for line in node.body if isinstance(line, ast.Assign)]
                finds = [x.value for x in assigned if ast.unparse(x.targets[0]) == "finds"]
                yield ast.literal_eval(mark.args[0]), ast.literal_eval(finds[0]) if finds else ()
