"""The files of comparisons: those that ship with the package, and a user's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from egc.errors import ConfigError, suggest

SHIPPED = resources.files("egc") / "baselines" / "comparisons"


def list_comparisons() -> list[str]:
    """The names of the comparisons that ship with the package."""
    names = (item.name for item in SHIPPED.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def read_file(source: str | Path) -> tuple[str, str]:
    """The text of a shipped comparison or of a TOML file, and its name."""
    if str(source) in list_comparisons():
        return (SHIPPED / f"{source}.toml").read_text(), str(source)
    path = Path(source)
    if path.is_file():
        return path.read_text(), path.stem
    raise ConfigError(
        f"There is no comparison {str(source)!r}. {suggest(str(source), list_comparisons())} "
        "A file of your own ends in .toml."
    )
