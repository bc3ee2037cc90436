"""Verbs that use a model: their flags, files and JSON."""

import json
import shlex

import numpy as np
import pytest
from PIL import Image

from egc.api import EGC
from egc.cli import main
from egc.config import DataConfig
from egc.data import open_source


@pytest.fixture(autouse=True)
def in_a_clean_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def test_images():
    return open_source(DataConfig("digits")).test.images()[:3]


@pytest.fixture
def files(test_images, tmp_path):
    for index, pixels in enumerate(test_images):
        Image.fromarray(pixels[..., 0]).save(tmp_path / f"{index}.png")
    return [f"{index}.png" for index in range(len(test_images))]


def call(capsys, words: str) -> tuple[int, str, str]:
    try:
        code = main(shlex.split(words))
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, words: str) -> dict:
    code, out, err = call(capsys, f"{words} --json")
    assert code == 0, err
    data = json.loads(out)
    assert data.pop("version") == 1
    return data


HOW = {"sampler": "dpm++", "steps": 3, "guidance": 2.0, "cfg": 1.0, "seed": 4}


def test_what_a_sample_was_made_from_is_everywhere(capsys, tmp_path):
    words = "sample digits --label 3 5 --sampler dpm++ --steps 3 --guidance 2 --seed 4 --out"
    made = {"labels": ["3", "5"], "seeds": [4, 5], **HOW}
    assert as_json(capsys, f"{words} a.png") == {"out": "a.png", "count": 2, **made}
    assert json.loads(Image.open(tmp_path / "a.png").text["egc"]) == made
    assert as_json(capsys, f"{words} folder")["out"] == "folder"
    about = json.loads((tmp_path / "folder" / "samples.json").read_text())
    assert about == {
        "format": 1,
        **HOW,
        "images": [
            {"file": "seed000004.png", "seed": 4, "label": "3"},
            {"file": "seed000005.png", "seed": 5, "label": "5"},
        ],
    }
    second = json.loads(Image.open(tmp_path / "folder" / "seed000005.png").text["egc"])
    assert second == {"labels": ["5"], "seeds": [5], **HOW, "seed": 5}
    as_json(capsys, f"{words} a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        assert json.loads(str(arrays["settings"])) == HOW


def test_compositions_say_what_they_are_made_of(capsys):
    data = as_json(capsys, "sample digits --label 3 5 --compose not --steps 2 --sampler dpm++")
    assert data["compose"] == {"mode": "not", "labels": ["3", "5"]}
    assert data["sampler"] == "dpm++"


def test_next_commands_can_be_pasted(capsys, tmp_path, tiny):
    tiny.classes = ["it's a", *"bcdefghij"]
    (tmp_path / "my models").mkdir()
    tiny.save(tmp_path / "my models" / "one")
    code, _, err = call(capsys, "sample 'my models/one' --label j")
    assert code == 0
    following = err.splitlines()[-1].removeprefix("next: ")
    words = shlex.split(following)
    assert words[:5] == ["egc", "sample", "my models/one", "--label", "it's a"]
    assert main([*words[1:], "--steps", "2"]) == 0


def test_classify_flags_what_is_strange(capsys, files, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    data = as_json(capsys, f"classify digits {' '.join(files)} noise.png --flag-ood")
    for row in data["images"]:
        assert row["out_of_distribution"] == (row["score"] > data["threshold"])
    assert data["images"][-1]["out_of_distribution"]
    _, out, _ = call(capsys, "classify digits noise.png --flag-ood")
    assert "OUT OF DISTRIBUTION (score " in out


def test_flagging_says_at_once_what_it_needs(capsys, files, tiny, tmp_path):
    tiny.save(tmp_path / "fresh")
    code, out, err = call(capsys, "classify fresh 0.png --flag-ood")
    assert code == 2
    assert not out
    assert "at least 20 validation images" in err
    assert "egc evaluate MODEL --metrics out_of_distribution --store" in err


def test_unreadable_images_are_named_or_skipped(capsys, files, tmp_path):
    for name in ("bad1.png", "bad2.png"):
        (tmp_path / name).write_bytes(b"no image")
    code, _, err = call(capsys, "classify digits .")
    assert code == 2
    assert "bad1.png" in err
    assert "bad2.png" in err
    code, out, err = call(capsys, "classify digits . --skip-unreadable --json")
    assert code == 0
    data = json.loads(out)
    assert [row["image"] for row in data["images"]] == files
    assert data["skipped"] == ["bad1.png", "bad2.png"]
    assert "2" in err


def test_directories_stand_for_their_images(capsys, files):
    data = as_json(capsys, "edit digits . --to 1 --strength 0.3 --steps 4")
    assert [row["image"] for row in data["images"]] == files
    assert {"to", "sampler", "steps", "guidance", "cfg", "seed"} <= data.keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show evidense digits", "Did you mean 'evidence'"),
        ("show watch digits --scales 1 2", "--scales is for sweep_guidance; watch does not"),
        ("show evidence digits --steps 3", "--steps is for sweep_guidance and watch; evidence"),
        ("show landscape digits 0.png", "IMAGE is for evidence; landscape does not"),
        ("show sweep_guidance digits", "needs a class to draw: --label"),
        ("show sweep_guidance digits --label 3 --scales a b", "invalid float value: 'a'"),
        ("show sweep_guidance digits --label 3 --guidance 2", "--guidance is for watch"),
        ("show evidence digits missing.png", "no image 'missing.png'"),
        ("show watch digits --label eleven", "no class 'eleven'"),
        ("sample digits --out a.mp4", "saved as .png, .npz or a directory; got 'a.mp4'"),
        ("sample digits --seed -1", "--seed must be at least 0; got -1"),
        ("sample digits --guidance nan", "--guidance must be a finite number; got nan"),
        ("sample digits --cfg 2", "label-conditioned"),
        ("sample digits --device none", "no device 'none'"),
        ("inpaint digits 0.png --mask left --sampler ddim", "--sampler"),
        ("interpolate digits --seeds 0 1 --frames 1", "--frames must be at least 2"),
        ("report digits --out a.pdf", "written as .html"),
        ("report digit", "Did you mean 'digits'"),
    ],
)
def test_mistakes_are_one_sentence(capsys, files, tmp_path, words, said):
    before = sorted(tmp_path.iterdir())
    code, out, err = call(capsys, words)
    assert code == 2
    (error,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert said in error
    assert not out
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("small_gallery")
def test_a_report_of_a_run_begins_with_its_curves(capsys, tiny, tmp_path):
    run = tmp_path / "run"
    quick = tiny.config.replace(sample={"steps": 4})
    EGC(quick, tiny.classes, tiny.net, tiny.diffusion, tiny.codec).save(run / "model")
    records = [{"step": n, "loss": 1 / n, "score": 1 / n} for n in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    data = as_json(capsys, "report run --figures figures")
    assert data["figures"][0] == "curves"
    assert len(data["figures"]) == 11
    assert data["last"] == {"run": records[-1]}
    names = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert names == set(data["figures"])


def test_a_run_without_a_model_yet_has_its_curves(capsys, tmp_path):
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "score": 2.0}\n')
    data = as_json(capsys, "report young")
    assert data["figures"] == ["curves"]
    (tmp_path / "empty").mkdir()
    code, _, err = call(capsys, "report empty")
    assert code == 2
    assert "is it a run directory" in err
