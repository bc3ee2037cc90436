"""A source of one's own is one file; what sources say of themselves before they are opened."""

import json
import sys

import numpy as np
import pytest

from egc.cli import main
from egc.config import DataConfig
from egc.data import Description, ImageSet, describe, open_source, read_images
from egc.data.sources import open_parts, source_forms
from egc.errors import ConfigError, DataError
from egc.registry import sources

MODULE = '''
"""Dark and light squares."""

import numpy as np

from egc.data import described, sets_of_arrays
from egc.registry import sources


@sources.register("squares")
@described(("", ":SEED"), image_size=8, channels=1, classes=["dark", "light"])
def squares(config, rest):
    """Dark and light squares; [all]."""
    rng = np.random.default_rng(int(rest or 0))
    labels = np.arange(40) % 2
    images = rng.integers(0, 100, (40, 8, 8, 1), dtype=np.uint8)
    images[labels == 1] += 150
    return sets_of_arrays("squares", [(images, labels)], ["dark", "light"], config)
'''


@pytest.fixture
def in_reach(tmp_path, monkeypatch):
    """A module with a source, in the current directory, that nobody has imported."""
    (tmp_path / "my_squares.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_squares", None)
    sources._entries.pop("squares", None)


def test_a_source_of_ones_own_is_one_file(in_reach, capsys):
    own = ["--import", "my_squares"]
    assert main(["data", *own, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "squares" in listed["named"]
    assert "squares:SEED" in listed["others"]
    assert main(["data", "squares:3", *own, "--set", "data.image_size=16", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["train_images"] + found["validation_images"] + found["test_images"] == 40
    assert (found["image_size"], found["classes"]) == (16, ["dark", "light"])
    assert "resized to 16x16 (40 of 40)" in err
    assert "--set data.source=squares:3 --set data.image_size=16 --import my_squares" in err
    assert describe("squares") == Description(8, 1, ["dark", "light"])


def test_it_is_trained_on_by_name(in_reach, tiny_config):
    (in_reach / "mine.toml").write_text(tiny_config.to_toml())
    train = ["train", "mine.toml", "--run", "run", "--import", "my_squares.py", "--no-report"]
    assert main([*train, "--set", "data.source=squares", "--set", "train.steps=2"]) == 0
    assert json.loads((in_reach / "run" / "model" / "config.json").read_text())["classes"] == [
        "dark",
        "light",
    ]


@pytest.mark.parametrize("given", [[], ["images"], 3, [1, 2, 3]])
def test_a_source_that_gives_something_else_is_named(given, monkeypatch):
    monkeypatch.setitem(sources._entries, "odd", lambda config, rest: given)
    with pytest.raises(DataError, match=r"source 'odd' must give a list of one ImageSet"):
        open_parts(DataConfig("odd"))


def test_a_source_may_be_one_set_and_needs_no_more_than_its_name(monkeypatch):
    images = np.zeros((10, 8, 8, 1), dtype=np.uint8)
    opener = lambda config, rest: ImageSet.from_arrays(images)  # noqa: E731
    monkeypatch.setitem(sources._entries, "plain", opener)
    assert sum(map(len, open_source(DataConfig("plain")))) == 10
    assert describe("plain") is None
    assert "plain" in source_forms()
    with pytest.raises(ConfigError, match="not a known source"):
        open_parts(DataConfig("plain:rest"))


@pytest.mark.parametrize(
    ("source", "size", "channels", "classes"),
    [
        ("digits", 8, 1, 10),
        ("mnist", 28, 1, 10),
        ("fashion-mnist", 28, 1, 10),
        ("cifar10", 32, 3, 10),
        ("cifar100", 32, 3, 100),
        ("imagenet", None, 3, 1000),
        ("imagenet:/nowhere", None, 3, 1000),
        ("celebahq", None, 3, 0),
        ("lsun-church", None, 3, 0),
    ],
)
@pytest.mark.usefixtures("home")
def test_named_sets_are_known_before_they_are_there(source, size, channels, classes):
    about = describe(source)
    assert (about.image_size, about.channels, len(about.classes)) == (size, channels, classes)


def test_others_are_known_only_when_they_are_opened():
    assert [describe(name) for name in ("folder:photos", "hub:a/b", "latents:x")] == [None] * 3
    assert describe("cifar10").classes[0] == "airplane"
    assert describe("imagenet").classes[0] == "tench"
    with pytest.raises(ConfigError, match="Did you mean 'digits'"):
        describe("digts")
    for source in ("folder:", "latents:", "hub:"):
        with pytest.raises(ConfigError, match=f"names no set; say {source}"):
            describe(source)


def test_digits_are_converted_like_every_named_set(caplog):
    plain = open_source(DataConfig("digits"))
    large = open_source(DataConfig("digits", image_size=16, channels=3))
    assert "L to colour (1797 of 1797), resized to 16x16 (1797 of 1797)" in caplog.text
    assert large.train.images().shape == (len(plain.train), 16, 16, 3)
    np.testing.assert_array_equal(large.test.labels, plain.test.labels)
    np.testing.assert_array_equal(large.test.images(), read_images(plain.test.images(), 16, 3))
