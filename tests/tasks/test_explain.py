"""Evidence agrees with the prediction: in the result, the text, the JSON and the figure."""

import json

import numpy as np
import pytest
from PIL import Image

from egc.api import EGC, load
from egc.cli import main
from egc.config import DataConfig
from egc.data import open_source


@pytest.fixture(scope="module")
def digits() -> EGC:
    return load("digits")


@pytest.fixture(scope="module")
def test_images():
    return open_source(DataConfig("digits")).test.images()


def test_the_top_class_is_the_predicted_one_and_evidence_agrees(digits, test_images):
    found = digits.evidence(test_images)
    predicted = digits.predict_proba(test_images).argmax(axis=1)
    ranked = np.array([found.ranked(index)[0] for index in range(len(test_images))])
    np.testing.assert_array_equal(ranked, predicted)
    assert (found.strongest.argmax(axis=1) == predicted).mean() >= 0.95
    assert found.maps.shape[:2] == (len(test_images), 10)


def test_text_json_and_figure_say_the_same(digits, test_images, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(test_images[0, ..., 0]).save("digit.png")
    assert main(["show", "evidence", "digits", "digit.png", "--top", "2", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["images"]
    probabilities = digits.predict_proba(test_images[:1])[0]
    order = probabilities.argsort()[::-1][:2]
    assert [c["class"] for c in row["classes"]] == [digits.classes[i] for i in order]
    for given, index in zip(row["classes"], order, strict=True):
        assert given["probability"] == pytest.approx(float(probabilities[index]), abs=1e-6)
        assert 0 <= given["evidence"] <= 1
    assert main(["show", "evidence", "digits", "digit.png", "--top", "2"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    best = row["classes"][0]
    words = f"{best['class']} {best['probability']:.1%} (evidence {best['evidence']:.0%})"
    assert line.startswith(f"digit.png\t{words}")
    figure = digits.evidence(test_images[:1]).picture(top=2)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[1] == (
        f"{best['class']} {best['probability']:.1%}\nevidence {best['evidence']:.0%}"
    )
    assert len(titles) == 3


def test_every_result_has_its_picture(tiny, tmp_path):
    """Class names with a dollar sign are names, not formulas."""
    tiny.classes = [f"$_{index}$" for index in range(10)]
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), dtype=np.uint8)
    how = {"steps": 3, "progress": False}
    for result in (
        tiny.edit(images, 3, 0.5, **how),
        tiny.sweep_guidance(3, [0, 2], 2, **how),
        tiny.watch(3, **how),
        tiny.evidence(images),
        tiny.landscape(images),
    ):
        path = tmp_path / f"{type(result).__name__}.png"
        result.picture().savefig(path)
        assert path.stat().st_size > 1000
    picture = tiny.interpolate((0, 1), frames=3, **how).picture()
    assert isinstance(picture, Image.Image)
