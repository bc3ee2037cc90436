"""`egc evaluate` follows from its metrics: a metric of one's own, several models, what it says."""

import json

import numpy as np
import pytest
from PIL import Image

import egc
from egc.cli import main
from egc.data.sources import open_for
from egc.metrics.base import Column
from egc.metrics.evaluate import all_metrics, read_options
from egc.metrics.names import check_metric
from egc.registry import metrics

OWN = """
from dataclasses import dataclass

from egc.config.parse import key
from egc.metrics.base import Column, Measured, Metric
from egc.registry import metrics


@dataclass(frozen=True)
class Bright(Measured):
    brightness: float
    images: int

    def summary(self):
        return {"brightness": self.brightness, "images": self.images}

    def verdict(self):
        return f"The images are {self.brightness:.1f} bright."


@metrics.register("brightness")
class Brightness(Metric):
    title = "how bright the test images are"
    finds = ("luminance",)

    @dataclass(frozen=True)
    class Options(Metric.Options):
        images: int = key(20, "test images to use", low=1)
        gain: float = key(1.0, "what brightness is multiplied by", above=0)

    def measure(self, model, data, options, progress):
        images = data.test.images(slice(options.images))
        return Bright(options.gain * float(images.mean()), len(images))

    def columns(self, options):
        return [Column("brightness", "brightness", "{:.1f}".format, ("brightness",))]
"""


@pytest.fixture
def own_metric(tmp_path, monkeypatch):
    """A file with a metric, forgotten after the test."""
    metrics.names()
    monkeypatch.setattr(metrics, "_entries", metrics.imported())
    path = tmp_path / f"own_{tmp_path.name}.py"
    path.write_text(OWN)
    return path


@pytest.fixture
def two_models(tiny, tmp_path):
    """The tiny model and one with other weights, as directories."""
    names = [str(tiny.save(tmp_path / "one"))]
    for parameter in tiny.net.parameters():
        parameter.data.mul_(1.1)
    return [*names, str(tiny.save(tmp_path / "two"))]


def call(capsys, *words: object) -> tuple[int, str, str]:
    code = main(["evaluate", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_metric_in_a_file_of_its_own_has_flags_rows_json_and_a_page(
    capsys, tmp_path, own_metric
):
    page = tmp_path / "page.html"
    words = ["digits", "--import", own_metric, "--metrics", "brightness", "--out", page]
    code, out, err = call(capsys, *words, "--gain", "2")
    assert code == 0, err
    assert out.splitlines()[0] == "brightness"
    images = open_for(egc.load("digits").config.data).test.images(slice(20))
    doubled = 2 * float(images.mean())
    assert f"{doubled:.4g}" in out
    html = page.read_text()
    assert f"The images are {doubled:.1f} bright." in html
    assert f"<td>brightness</td><td>{doubled:.4g}</td>" in html
    code, out, _ = call(capsys, *words, "--gain", "2", "--images", "5", "--json")
    found = json.loads(out)["models"]["digits"]["brightness"]
    assert found["images"] == 5
    assert call(capsys, *words, "--gain", "-1")[0] == 2
    with pytest.raises(SystemExit):
        main(["evaluate", "--help", "--import", str(own_metric)])
    assert "--gain X" in capsys.readouterr().out
    code, _, err = call(capsys, "digits", "--import", own_metric, "--metrics", "luminance")
    assert code == 2
    assert "a figure of 'brightness'" in err


def test_columns_find_their_figures():
    every = all_metrics()
    options = read_options({"attacks": ["pgd"], "epsilons": [8], "others": ["noise"]})
    columns = {c.key: c for name in every for c in every[name].columns(options[name])}
    assert {"accuracy", "ece", "fid", "judge_frechet", "agreement", "pgd_8", "auroc_noise"} <= set(
        columns
    )
    assert columns["pgd_8"].title == "PGD-20 at 8/255"
    assert columns["pgd_8"].of({"accuracy": {"pgd": [0.5]}}) == 0.5
    assert columns["pgd_8"].of(None) is None
    assert columns["accuracy"].show(0.5) == "50.0 %"
    assert isinstance(columns["auroc_noise"], Column)


def test_several_models_share_their_axes(capsys, tmp_path, two_models):
    page = tmp_path / "page.html"
    words = [*two_models, "--metrics", "classification", "robustness", "--images", 6, "--levels",
             0, "--attack-steps", 1, "--epsilons", 32, "--no-checks", "--out", page]  # fmt: skip
    code, out, err = call(capsys, *words)
    assert code == 0, err
    for name in two_models:
        assert f"{name}: robustness" in out
    html = page.read_text()
    assert html.count("<h2>Under attack</h2>") == 1
    assert html.count("<h2>Attacked images: ") == 2
    head = "".join(f"<th>{name}</th>" for name in two_models)
    assert f"<tr><th></th>{head}</tr>" in html
    code, out, _ = call(capsys, *words, "--json")
    found = json.loads(out)
    assert list(found["models"]) == two_models
    assert all(
        each.keys() == {"classification", "robustness"} for each in found["models"].values()
    )
    code, _, err = call(capsys, two_models[0], two_models[0])
    assert code == 2
    assert "only once" in err


def test_a_threshold_is_not_stored_with_a_shipped_model(capsys, tmp_path):
    place = egc.hub.SHIPPED / "digits" / "config.json"
    before = place.read_text()
    words = ["--metrics", "out_of_distribution", "--store", "--out", tmp_path / "page.html"]
    code, _, err = call(capsys, "digits", *words)
    assert code == 2
    assert "ships with the package" in err
    assert "save('my-digits')" in err
    assert place.read_text() == before
    with pytest.raises(egc.errors.ModelError, match="save a copy first"):
        egc.metrics.threshold.store_threshold("digits", {})


def test_too_few_validation_images_are_said_before_measuring(capsys, tiny, tmp_path):
    path = tiny.save(tmp_path / "model")
    words = ["--metrics", "out_of_distribution", "--store", "--set", "data.validation=0.01"]
    code, _, err = call(capsys, path, *words)
    assert code == 2
    assert "needs 20 validation images or more" in err


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("fid", "generation"), ("KID", "generation"), ("accuracy", "classification"),
        ("ece", "classification"), ("pgd", "robustness"), ("attack", "robustness"),
        ("auroc", "out_of_distribution"), ("ood", "out_of_distribution"),
        ("novelty", "out_of_distribution"), ("out-of-distribution", "out_of_distribution"),
        ("nll", "classification"), ("bits", "likelihood"), ("certifed", "certified"),
    ],
)  # fmt: skip
def test_a_figure_asked_for_as_a_metric_is_sent_to_it(capsys, name, metric):
    code, out, err = call(capsys, "digits", "--metrics", name)
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"error: There is no metric {name!r}.")
    assert f"{metric!r}" in line


def test_names_are_those_of_the_registry():
    for name in metrics.names():
        check_metric(name)


def test_other_data_is_converted_and_that_is_said(capsys, tmp_path, tiny, caplog):
    """12x12 colour photos in the ten classes of the model."""
    for digit in range(10):
        folder = tmp_path / "photos" / str(digit)
        folder.mkdir(parents=True)
        for index in range(4):
            pixels = np.random.default_rng(index).integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    path = tiny.save(tmp_path / "model")
    code, out, err = call(
        capsys, path, "--data", f"folder:{tmp_path / 'photos'}", "--metrics", "classification",
        "--levels", 0, "--out", tmp_path / "page.html", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["models"][str(path)]["classification"]["images"] == 8
    (line,) = [line for line in err.splitlines() if line.startswith("Converted")]
    assert "grey" in line
    assert "resized to 8x8" in line
