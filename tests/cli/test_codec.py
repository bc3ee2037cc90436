"""`egc codec` and `egc data`: what they take, refuse, and say to do next."""

import json
import shlex

import pytest

from egc.cli import main
from tests.data.test_latents import SMALL

FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "digits", "--set", "train.steps=500"], "--train-steps"),
        (["train", "digits", "--set", "nothing"], "--set takes data.KEY=VALUE here"),
        (["train", "digits", "--factor", "3"], "factor must be 1 or 2 or 4 or 8 or 16; got 3"),
        (["train", "digts"], "Did you mean 'digits'"),
        (["encode", "digits", "--shard", "0"], "--shard must be at least 1"),
        (["encode", "digits", "--set", "train.steps=5"], "data.KEY=VALUE or codec.KEY=VALUE"),
        (["encode", "digits"], 'codec.kind = "latent"'),
    ],
)
def test_codec_refuses_what_it_would_not_use(words, answer, tmp_path, capsys):
    assert main(["codec", *words, "--out", str(tmp_path / "out")]) == 2
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_steps_are_sampling_steps_only(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["codec", "train", "digits", "--out", str(tmp_path / "out"), "--steps", "5"])
    assert "--steps" in capsys.readouterr().err


def test_what_comes_next_can_be_pasted(photo_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photo_folder.rename(tmp_path / "my photos")
    train = ["codec", "train", "folder:my photos", "--out", "my codec", *FLAGS, "--train-steps=2"]
    assert main([*train, "--set", "data.test=0.3"]) == 0
    hint = capsys.readouterr().err.splitlines()[-1].removeprefix("next: ")
    words = shlex.split(hint)
    assert words[:3] == ["egc", "train", "folder32"]
    assert "data.source=folder:my photos" in words
    assert "data.test=0.3" in words
    assert "codec.autoencoder=my codec" in words

    settings = [word for word in words[5:] if word != "--set"]
    kept = [word for setting in settings for word in ("--set", setting)]
    assert main(["codec", "encode", "folder32", "--out", "latents", *kept, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["shape"] == [4, 6, 6]
    hint = shlex.split(err.splitlines()[-1].removeprefix("next: "))
    assert "data.source=latents:latents" in hint
    assert "data.augment.flip=false" in hint  # which comes too late for latents
    assert main(["data", "latents:latents"]) == 0
    assert "codec.kind=latent" in capsys.readouterr().err


def test_data_is_listed_and_looked_into(tmp_path, capsys):
    assert main(["data", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"digits", "cifar10", "imagenet"} < set(listed["named"])
    assert {"folder:PATH", "imagenet:PATH", "hub:NAME"} < set(listed["others"])
    picture = tmp_path / "below" / "digits.png"
    assert main(["data", "digits", "--out", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert "1,294 train, 144 validation, 359 test" in out
    assert picture.exists()
    assert err == "next: egc train digits --run runs/digits\n"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--out", "x.png"], "which SOURCE"),
        (["digits", "--out", "x.jpg"], "written as .png"),
        (["digits", "--set", "train.steps=5"], "Only data.KEY=VALUE can be set here"),
        (["digts"], "Did you mean 'digits'"),
    ],
)
def test_data_refuses(words, answer, capsys):
    assert main(["data", *words]) == 2
    assert answer in capsys.readouterr().err
