"""The house rules: imports point one way, one word for one thing, the README runs."""

import argparse
import ast
import re
from pathlib import Path

import pytest

from egc.cli.main import parser_of, verbs

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "egc"

# A room may import from the rooms before it and from itself.
ORDER = [
    "errors",
    "registry",
    "hub",
    "distributed",
    "report",
    "config",
    "nn",
    "samplers",
    "energy",
    "diffusion",
    "codec",
    "objectives",
    "model",
    "data",
    "tasks",
    "metrics",
    "training",
    "published",
    "baselines",
    "api",
    "cli",
    "__init__",
    "__main__",
]
RANK = {room: rank for rank, room in enumerate(ORDER)}
# Type checkers may look where the interpreter does not.
ONLY_TYPES = {("hub", "model"), ("nn", "config")}
WORDS = ("shelf", "rival", "twice", "novelty", "novel", "drawn", "whole", "told", "tree", "kinds")
"""private words of before, that no name may have"""


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


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_point_one_way(path):
    room = room_of(path)
    for other in imported_rooms(path) - {room}:
        assert RANK[other] < RANK[room] or (room, other) in ONLY_TYPES, (room, other)


def test_modules_stay_readable():
    long = {
        p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long
    assert not list(PACKAGE.rglob("*utils*"))


def names_in(path: Path) -> set[str]:
    """Names of modules, functions, classes, arguments and assigned variables."""
    found = {path.stem}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize("word", WORDS)
def test_names_are_words_a_newcomer_knows(word):
    pattern = re.compile(rf"(?:^|_){word}s?(?:_|$)")
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in names_in(path)
        if pattern.search(name.lower())
    }
    assert not found - {"config/parse.py: tree"}


def test_tests_mirror_the_package():
    """Every directory of tests is a room of the package, or the examples."""
    folders = {p.name for p in (ROOT / "tests").iterdir() if (p / "__init__.py").exists()}
    assert folders <= {*RANK, "examples"}


# --- the command line ----------------------------------------------------------------------------


def flags() -> dict[str, dict[str, argparse.Action]]:
    """verb -> flag -> what argparse knows of it."""
    return {
        name: {
            option: action
            for action in parser_of(verb)._actions
            for option in action.option_strings
            if option.startswith("--") and not option.startswith("--no-")
        }
        for name, verb in verbs().items()
    }


def test_at_most_eighteen_verbs():
    assert len(verbs()) <= 18


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--steps", ["sampling steps"]),
        ("--count", ["images", "samples", "fill"]),
        ("--device", ["cpu, cuda"]),
        ("--seed", ["of "]),
        ("--images", ["images"]),
    ],
)
def test_the_same_word_means_the_same_everywhere(flag, words):
    said = {verb: known[flag].help for verb, known in flags().items() if flag in known}
    assert said
    for verb, text in said.items():
        assert any(word in text for word in words), (verb, flag, text)


def test_lists_are_separated_by_spaces_and_help_shows_defaults():
    for verb, known in flags().items():
        for option, action in known.items():
            assert "," not in (action.metavar or "") if isinstance(action.metavar, str) else True
            if action.default not in (None, False, [], argparse.SUPPRESS):
                assert "(" in (action.help or ""), (verb, option)


# --- the README ----------------------------------------------------------------------------------


def blocks(language: str, file: Path = ROOT / "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", file.read_text(), re.DOTALL)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


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


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda p: p.name)
def test_commands_in_the_docs_exist(file):
    """Every `egc` command of a document parses, and every file it links to is there."""
    import shlex

    text = file.read_text()
    lines = "\n".join(blocks("sh", file)).replace("\\\n", " ")
    for command in re.findall(r"^(?:\$ )?egc (.+?)(?:\s+#.*)?$", lines, re.MULTILINE):
        name, *words = shlex.split(command)
        if name not in ("--help", "--version"):
            parser_of(verbs()[name]).parse_args(words)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (file.parent / target).exists(), target


def test_shipped_weights_are_small():
    size = sum(p.stat().st_size for p in (PACKAGE / "models").rglob("*") if p.is_file())
    assert size < 2_000_000


def test_the_licence_of_the_digits_ships_with_them():
    assert "CC BY 4.0" in (PACKAGE / "data" / "assets" / "README.md").read_text()
