"""`egc evaluate`: everything in one table, for any kind of model, and what it refuses."""

import json

import numpy as np
import pytest
from PIL import Image

from egc.api import EGC, load
from egc.cli import main
from egc.data.sources import open_for
from egc.errors import ConfigError, DataError, ModelError
from egc.metrics import judge
from egc.metrics.evaluate import all_metrics, as_text, evaluate, evaluation_page, measured_on
from egc.registry import metrics
from tests.baselines.test_objectives import rival
from tests.conftest import shaken

SMALL = {
    "images": 6, "levels": 3, "ensemble": 2, "count": 12, "features": "judge", "attack_steps": 2,
    "epsilons": [25.5], "purify": 20, "certify_draws": 20, "examples": 2,
}  # fmt: skip


def data_for(model, source=None):
    return open_for(model.config.data, source)


@pytest.fixture(autouse=True)
def quick_judge(monkeypatch, tmp_path_factory):
    """A judge of a few steps, kept where all tests of this file find it."""
    monkeypatch.setenv("EGC_DATA", str(tmp_path_factory.getbasetemp() / "evaluated"))
    monkeypatch.setattr(judge, "STEPS", 20)


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_everything_is_measured_in_one_call(tiny):
    found = evaluate(tiny, data_for(tiny), options=SMALL, progress=False)
    assert list(found) == list(all_metrics())
    figures = {name: result.summary() for name, result in found.items()}
    json.dumps(figures)
    assert figures["classification"]["images"] == 6
    assert len(figures["classification"]["against_t"]["times"]) == 3
    assert set(figures["classification"]["ways"]) == {
        "plain", "ensemble of 2", "purified from 20"
    }  # fmt: skip
    assert {"adaptive", "transfer"} <= figures["robustness"]["purify"].keys()
    text = as_text({"tiny": found})
    for words in ("accuracy", "ECE", "judge frechet", "pgd at 25.5/255, purified, adaptive",
                  "certified within 0.00", "AUROC", "bits per dimension"):  # fmt: skip
        assert words in text, words
    page = evaluation_page({"tiny": found})
    assert page.count("<img") >= 8


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("classifier", {"generation", "likelihood"}),
        ("jem", {"likelihood"}),
        ("ddpm", {"classification", "robustness", "certified"}),
        ("egc-unsupervised", {"classification", "robustness", "certified"}),
    ],
)
def test_each_rival_is_measured_by_what_it_has(tiny_config, kind, missing):
    model = rival(tiny_config, kind, sample={"steps": 2})
    plan = {**SMALL, "ensemble": 0, "purify": 0}
    found = evaluate(model, data_for(model), options=plan, progress=False)
    ours = {name for name in all_metrics() if metrics[name].__module__.startswith("egc.")}
    assert ours - set(found) == missing
    assert as_text({"model": found})
    for name in missing:
        assert all_metrics()[name].obstacle(model)
        with pytest.raises(ModelError, match=f"cannot be measured by {name!r}: it"):
            evaluate(model, data_for(model), [name], plan, progress=False)


def test_the_verb_prints_a_table_or_json_and_writes_a_page(capsys, tmp_path):
    page = tmp_path / "page.html"
    command = ["evaluate", "digits", "--metrics", "classification", "out_of_distribution",
               "--images", "20", "--set", "data.test=0.05", "--set", "data.validation=0.05",
               "--others", "noise", "--out", str(page)]  # fmt: skip
    code, out, err = call(capsys, *command)
    assert code == 0
    assert "accuracy" in out
    assert "noise, by energy" in out
    settings = "--set data.test=0.05 --set data.validation=0.05"
    assert f"next: egc evaluate digits {settings} --metrics robustness" in err
    assert page.read_text().startswith("<!doctype html>")
    code, out, _ = call(capsys, *command, "--split", "validation", "--json")
    found = json.loads(out)
    assert found["split"] == "validation"
    figures = found["models"]["digits"]
    assert figures["classification"]["images"] == 20
    assert figures["out_of_distribution"]["others"]["noise"]["energy"]["auroc"] > 0.9


def test_a_stored_threshold_flags_novel_images(capsys, tmp_path, tiny_config):
    model = shaken(EGC.build(tiny_config, [str(i) for i in range(10)]))
    model.save(tmp_path / "model")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    classify = ["classify", str(tmp_path / "model"), str(tmp_path / "noise.png"), "--flag-ood"]
    code, _, err = call(capsys, *classify)
    assert code == 2
    assert "--metrics out_of_distribution --store" in err
    page = str(tmp_path / "page.html")
    code, out, _ = call(capsys, "evaluate", str(tmp_path / "model"), "--metrics",
                        "out_of_distribution", "--set", "data.test=0.05", "--others", "noise",
                        "--store",
                        "--out", page)  # fmt: skip
    assert code == 0
    assert "threshold stored" in out
    code, out, _ = call(capsys, *classify, "--json")
    assert code == 0
    assert isinstance(json.loads(out)["images"][0]["out_of_distribution"], bool)


def test_training_stores_a_threshold(trained_run):
    model = load(trained_run)
    assert model.facts["out_of_distribution"]["share"] == 0.95
    flagged = model.is_out_of_distribution(data_for(model).validation.images())
    assert flagged.mean() < 0.2


def test_measuring_another_split_leaves_the_rest(tiny):
    splits = data_for(tiny)
    assert measured_on(splits, "validation").test is splits.validation
    assert measured_on(splits, "validation").train is splits.train


@pytest.mark.parametrize(
    ("size", "mode", "words"),
    [
        (8, "RGB", "data.channels = 1"),
        (12, "L", "data.image_size = 8"),
        (8, "L", "has 2 classes, but the model has 10"),
    ],
)
def test_data_that_does_not_fit_is_refused(capsys, tmp_path, size, mode, words):
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(12):
            pixels = np.random.default_rng(index).integers(0, 256, (size, size, 3), dtype=np.uint8)
            picture = Image.fromarray(pixels).convert(mode)
            picture.save(tmp_path / "photos" / name / f"{index}.png")
    source = f"folder:{tmp_path / 'photos'}"
    settings = ["--set", f"data.image_size={size}", "--set",
                f"data.channels={3 if mode == 'RGB' else 1}"]  # fmt: skip
    code, _, err = call(capsys, "evaluate", "digits", "--data", source, *settings,
                        "--metrics", "classification")  # fmt: skip
    assert code == 2
    assert words in err.strip().splitlines()[-1]


def test_wrong_options_get_one_sentence(tiny, capsys):
    with pytest.raises(ConfigError, match="Did you mean 'likelihood'"):
        evaluate(tiny, data_for(tiny), ["likelyhood"])
    with pytest.raises(ConfigError, match="not a known source"):
        data_for(tiny, "nowhere")
    assert call(capsys, "evaluate", "digits", "--set", "train.steps=3")[0] == 2
    assert call(capsys, "evaluate", "digits", "--out", "page.png")[0] == 2
    empty = measured_on(data_for(tiny), "test")
    empty = empty._replace(test=empty.test.subset(np.arange(0)))
    with pytest.raises(DataError, match="no images"):
        evaluate(tiny, empty, ["classification"])
