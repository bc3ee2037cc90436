"""The examples, as a user runs them: in an empty directory, and through the command line."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

from egc.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(name: str, monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_is_run_here():
    text = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in text, path.name


def test_the_whole_method_on_one_page(monkeypatch, capsys):
    run("train_minimal.py", monkeypatch, "--train-steps", "3", "--levels", "10")
    assert "test accuracy" in capsys.readouterr().out
    assert Image.open("digits.png").width > 100


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_backbone.py", "parameters"),
        ("own_readout.py", "["),
        ("own_sampler.py", "of 16 are taken"),
        ("own_metric.py", "sharpness"),
    ],
)
def test_examples_run_by_themselves(name, words, monkeypatch, capsys):
    run(name, monkeypatch)
    assert words in capsys.readouterr().out


def call(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def train_settings(*settings: str) -> list[str]:
    short = ("train.steps=2", "sample.steps=2", *settings)
    return [word for setting in short for word in ("--set", setting)]


def test_own_networks_train_resume_and_draw_by_the_command_line(capsys):
    """One file each, and no other touched."""
    for module, settings in (
        ("own_backbone.py", ["network.kind=dit", "network.options.patch=4", "network.depth=1"]),
        ("own_readout.py", ["network.readout=quadratic"]),
    ):  # fmt: skip
        own = ["--import", str(EXAMPLES / module)]
        train = ["train", "digits-demo", "--run", module, *train_settings(*settings), *own]
        call(capsys, *train, "--no-report")
        found = call(capsys, "sample", module, "--label", "3", "--out", "x.png", *own)
        assert found["labels"] == ["3"]


def test_wrong_options_of_an_own_network_are_named(capsys):
    own = ["--import", str(EXAMPLES / "own_backbone.py"), "--dry-run"]
    for setting, words in (
        ("network.options.patches=4", "'network.options.patches'. Did you mean"),
        ("network.options.patch=3", "patch = 3 does not divide"),
    ):
        settings = train_settings("network.kind=dit", setting)
        assert main(["train", "digits-demo", "--run", "r", *settings, *own]) == 2
        assert words in capsys.readouterr().err


def test_a_name_that_nobody_registered_says_how_to_import_it(capsys):
    assert main(["train", "digits-demo", "--run", "r", "--set", "network.kind=none-such"]) == 2
    assert "--import" in capsys.readouterr().err
    assert main(["sample", "digits", "--import", "no_such_module"]) == 2
    assert "no_such_module" in capsys.readouterr().err


def test_own_sampler_by_the_command_line(capsys):
    own = ["--import", str(EXAMPLES / "own_sampler.py")]
    found = call(
        capsys, "sample", "digits", "--label", "3", "--sampler", "ab2", "--steps", "4", *own
    )
    assert (found["sampler"], found["steps"]) == ("ab2", 4)


def test_own_metric_by_the_command_line(capsys):
    own = ["--import", str(EXAMPLES / "own_metric.py")]
    found = call(capsys, "evaluate", "digits", "--metrics", "sharpness", "--count", "8", *own)
    assert "sharpness" in json.dumps(found)
    assert "sharpness" in Path("evaluation.html").read_text()
