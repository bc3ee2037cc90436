"""The command line, as a user meets it: output, exit codes, and one sentence for each mistake."""

import json

import numpy as np
import pytest
from PIL import Image

from egc.cli import main
from egc.cli.main import verbs
from egc.config import DataConfig
from egc.data import open_source

QUICK = [
    "--set", "train.steps=2", "--set", "train.warmup=0", "--set", "network.channels=8",
    "--set", "network.head_width=8", "--set", "network.groups=4", "--set", "sample.steps=3",
    "--set", "train.batch_size=4", "--set", "train.log_every=1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_clean_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(list(arguments))
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    return code, out, err


def one_sentence(err: str) -> str:
    """The error, after checking that it is a single line and no traceback."""
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert "Traceback" not in err
    return lines[0]


@pytest.mark.parametrize("verb", verbs().values(), ids=lambda verb: verb.name)
def test_help_shows_examples(capsys, verb):
    code, out, _ = call(capsys, verb.name, "--help")
    assert code == 0
    assert "examples:" in out
    assert "--json" in out
    for example in verb.examples:
        assert example.startswith(f"egc {verb.name}")


def test_sample_writes_a_picture_and_says_what_next(capsys, tmp_path):
    code, out, err = call(capsys, "sample", "digits", "--label", "3", "--steps", "5")
    assert code == 0
    assert out.strip() == "1 image in samples.png"
    assert err.strip().splitlines()[-1].startswith("next: egc sample digits")
    assert Image.open(tmp_path / "samples.png").size == (64, 64)


def test_sample_as_json(capsys):
    code, out, _ = call(
        capsys, "sample", "digits", "--label", "3", "5", "--count", "4",
        "--steps", "3", "--seed", "9", "--out", "drawn", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out) == {
        "version": 1,
        "out": "drawn",
        "count": 4,
        "labels": ["3", "5", "3", "5"],
        "seeds": [9, 10, 11, 12],
        "sampler": "ddim",
        "steps": 3,
        "guidance": 3.0,
        "cfg": 1.0,
        "seed": 9,
    }


def test_classify_names_images(capsys, tmp_path):
    test = open_source(DataConfig("digits")).test
    for index in range(6):
        Image.fromarray(test.images()[index, ..., 0]).save(tmp_path / f"{index}.png")
    code, out, err = call(capsys, "classify", "digits", str(tmp_path), "--top", "2", "--json")
    assert code == 0
    rows = json.loads(out)["images"]
    named = [int(row["classes"][0]["class"]) for row in rows]
    assert np.mean(np.array(named) == test.labels[:6]) >= 5 / 6
    assert [len(row["classes"]) for row in rows] == [2] * 6
    assert "next: egc sample digits --label" in err
    code, out, _ = call(capsys, "classify", "digits", "0.png", "1.png")
    assert [line.split("\t")[0] for line in out.splitlines()] == ["0.png", "1.png"]


def test_classify_says_what_it_converted(capsys, tmp_path):
    Image.new("RGB", (20, 10)).save(tmp_path / "wide.png")
    code, out, err = call(capsys, "classify", "digits", "wide.png")
    assert code == 0
    assert "Converted images: RGB to grey (1 of 1)" in err
    assert "resized to 8x8" in err
    assert out.startswith("wide.png\t")


def test_models_lists_models_and_presets(capsys):
    code, out, _ = call(capsys, "models", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["models"][0]["name"] == "digits"
    assert data["models"][0]["parameters"] > 0
    assert "digits" in data["presets"]
    assert "digits" in call(capsys, "models")[1]


def test_train_dry_run_writes_nothing(capsys, tmp_path):
    code, out, _ = call(capsys, "train", "digits", "--run", "run", "--dry-run")
    assert code == 0
    assert "parameters" in out
    assert "MFLOP" in out
    assert list(tmp_path.iterdir()) == []


def test_train_on_a_folder_resumes_and_is_used(capsys, photo_folder, tmp_path):
    (tmp_path / "my.toml").write_text(
        f'preset = "digits"\n[data]\nsource = "folder:{photo_folder}"\n'
        "image_size = 8\nchannels = 1\n"
    )
    command = ["train", "my.toml", "--run", "runs/mine", *QUICK]
    code, out, err = call(capsys, *command, "--json")
    assert code == 0, err
    data = json.loads(out)
    assert (tmp_path / data["model"] / "model.safetensors").is_file()
    assert (tmp_path / data["report"]).is_file()
    before = (tmp_path / "runs/mine/metrics.jsonl").read_text()
    assert call(capsys, *command)[0] == 0
    assert (tmp_path / "runs/mine/metrics.jsonl").read_text() == before
    code, out, _ = call(capsys, "sample", "runs/mine", "--label", "dark", "--json")
    assert json.loads(out)["labels"] == ["dark"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sample", "digit"], "no model 'digit'"),
        (["sample", "digits", "--label", "eleven"], "Known: '0', '1'"),
        (["sample", "digits", "--count", "-2"], "at least 1; got -2"),
        (["sample", "digits", "--steps", "-2"], "--steps must be larger than 0; got -2"),
        (["sample", "digits", "--sampler", "dimm"], "Did you mean 'ddim'"),
        (["sample", "digits", "--count", "some"], "invalid int value: 'some'"),
        (["sample"], "required: MODEL"),
        (["smaple", "digits"], "Did you mean 'sample'"),
        (["sample", "digits", "--cuont", "3"], "--cuont"),
        (["classify", "digits", "nowhere.png"], "no image 'nowhere.png'"),
        (["classify", "digits", "."], "no image"),
        (["classify", "digits", "x.png", "--top", "0"], "at least 1; got 0"),
        (["train", "digit", "--run", "r"], "Did you mean 'digits'"),
        (["train", "none.toml", "--run", "r"], "no configuration file"),
        (["train", "digits", "--run", "r", "--set", "train.stepz=1"], "'train.steps'"),
        (["train", "digits", "--run", "r", "--set", "data.source=folder:no"], "no folder 'no'"),
        (["train", "digits", "--run", "r", "--set", "train.steps=-1"], "larger than 0; got -1"),
        (["train", "digits", "--run", "r", "--set", "network.head_width=7"], "choose a divisor"),
        (["demo", "--seed", "-1"], "at least 0; got -1"),
    ],
)
def test_a_wrong_call_gets_one_sentence_and_code_2(capsys, tmp_path, arguments, words):
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert words in one_sentence(err)
    assert out == ""
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_report_draws_the_curves_of_several_runs(capsys, tmp_path, trained_run):
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(trained_run)
    words = ("report", "a", "b", "--out", "deep/both.html", "--figures", "deep", "--json")
    code, out, _ = call(capsys, *words)
    assert code == 0
    data = json.loads(out)
    assert data["last"]["a"] == {**data["last"]["a"], "step": 4}
    assert Image.open(tmp_path / "deep/curves.png").size[0] > 800
    assert (tmp_path / "deep/both.html").read_text().count("<img") == 1
    code, _, err = call(capsys, "report", "a", "nowhere")
    assert code == 2
    assert "is it a run directory" in one_sentence(err)


def test_a_run_of_another_configuration_is_refused(capsys, trained_run):
    command = ["train", str(trained_run / "config.toml"), "--run", str(trained_run)]
    code, _, err = call(capsys, *command, "--set", "train.lr=0.5")
    assert code == 2
    assert "train.lr was" in one_sentence(err)


def test_a_failure_is_code_1_and_debug_shows_it(capsys, monkeypatch):
    def fail(*_):
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr("egc.api.EGC.load", fail)
    code, _, err = call(capsys, "sample", "digits")
    assert code == 1
    assert "the disk is on fire" in one_sentence(err)
    with pytest.raises(RuntimeError):
        main(["sample", "digits", "--debug"])


def test_interrupting_is_calm(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("egc.api.EGC.load", interrupt)
    code, _, err = call(capsys, "sample", "digits")
    assert code == 130
    assert "Stopped" in err


def test_demo_does_not_clear_a_directory_that_is_not_a_run(capsys, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "main.tex").write_text("x")
    code, _, err = call(capsys, "demo", "--out", "thesis")
    assert code == 2
    assert "neither empty nor a run" in one_sentence(err)
    assert (tmp_path / "thesis" / "main.tex").read_text() == "x"
