"""The house rules: imports point one way, the README runs, the package stays small."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "egc"

# A room may import from the rooms before it and from itself.
ORDER = [
    ["errors"],
    ["tree", "shelf"],
    ["config", "progress", "grid", "processes"],
    ["nn"],
    ["energy", "codec", "diffusion", "data"],
    ["rivals"],
    ["model"],
    ["published", "preparation"],
    ["objectives"],
    ["training"],
    ["tasks"],
    ["evaluation"],
    ["report"],
    ["api"],
    ["comparison"],
    ["verbs"],
    ["cli"],
    ["__init__", "__main__"],
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
# The two wings do not know each other: tasks and what builds on them never import training.
APART = {room: {"training", "objectives"} for room in ("tasks", "evaluation", "report")}
APART["training"] = {"tasks", "evaluation", "report"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("egc.")}
    return rooms


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.name))
def test_imports_point_one_way(path):
    room = room_of(path)
    for other in imported_rooms(path) - {room}:
        assert RANK[other] < RANK[room] or (room, other) == ("data", "codec"), (room, other)
        assert other not in APART.get(room, set()), f"{room} must not import {other}"


def test_modules_stay_readable():
    long = {
        p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long
    assert not list(PACKAGE.rglob("*utils*"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_readme_python_runs(tmp_path, monkeypatch):
    """All Python blocks of the README, in order, as one session in an empty directory.

    The shipped model takes fewer steps here than a reader's would.
    """
    import egc

    load = egc.load

    def quick(name):
        model = load(name)
        model.config = model.config.replace(sample={"steps": 5})
        return model

    monkeypatch.setattr(egc, "load", quick, raising=False)
    monkeypatch.chdir(tmp_path)
    code = blocks("python")
    assert code
    names: dict = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), names)


def test_readme_commands_exist():
    """Every `egc` command of the README parses, and every file it names by path is there."""
    from egc.cli import _parser

    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"^(?:\$ )?egc (.+?)(?:\s+#.*)?$", "\n".join(blocks("sh")), re.MULTILINE)
    assert commands
    for command in commands:
        _parser().parse_args(command.split())
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / target).exists(), target


def test_shipped_weights_are_small():
    size = sum(p.stat().st_size for p in (PACKAGE / "models").rglob("*") if p.is_file())
    assert size < 2_000_000


def test_the_licence_of_the_digits_ships_with_them():
    assert "CC BY 4.0" in (PACKAGE / "data" / "assets" / "README.md").read_text()
