"""The command line: its overview, mistakes answered at once, and the keys of a configuration."""

import json
import subprocess
import sys

import pytest

import egc
from egc.cli.main import main, verbs
from egc.config import Config
from egc.config.parse import keys


def test_overview_groups_all_verbs(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for title in ("start here:", "train:", "use a model:", "measure:", "share:"):
        assert title in text
    for name in verbs():
        assert f"\n  {name} " in text
    assert main([]) == 2


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"egc {egc.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "meant"), [("smaple", "sample"), ("evalute", "evaluate"), ("clasify", "classify")]
)
def test_a_typo_in_a_verb_is_answered_by_the_nearest_one(capsys, typed, meant):
    assert main([typed, "digits"]) == 2
    captured = capsys.readouterr()
    assert f"Did you mean '{meant}'" in captured.err
    assert not captured.out


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (["classify", "digits", "missing.png"], "missing.png"),
        (["classify", "digts", __file__], "Did you mean 'digits'"),
        (["sample", "digts"], "Did you mean 'digits'"),
        (["sample", "digits", "--sampler", "dimm"], "Did you mean 'ddim'"),
        (["inpaint", "digits", "missing.png", "--mask", "center"], "missing.png"),
        (["inpaint", "digits", __file__, "--mask", "centre"], "center"),
        (["edit", "digits", "missing.png", "--to", "3"], "missing.png"),
        (["show", "evidense", "digits"], "evidence"),
        (["show", "evidence", "digits", "--top", "2", "missing.png"], "missing.png"),
        (["train", "digit", "--run", "r"], "Did you mean 'digits'"),
        (["train", "digits", "--run", "r", "--set", "train.stepz=5"], "train.steps"),
        (["config", "trian.lr"], "train.lr"),
        (["compare", "ablation-digit"], "ablation-digits"),
        (["import", "missing.pt", "--out", "m"], "missing.pt"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_mistakes_are_answered_before_pytorch_is_imported(tmp_path, call, words):
    """In a process of its own: it takes a tenth of a second instead of several."""
    code = (
        "import sys; from egc.cli import main; code = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules, 'imported PyTorch'; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *call], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


def test_config_prints_every_key(capsys):
    assert main(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["keys"]] == [each.name for each in keys(Config)]
    assert found["version"] == 1
    assert main(["config", "train.lr", "--preset", "digits"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("train.lr  (a number; default 0.0001, here 0.002)")
    assert "learning rate" in text
    assert main(["config", "train"]) == 0
    assert capsys.readouterr().out.count("\ntrain.") > 15


def test_modules_of_the_users_own_are_imported_from_where_they_work(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_here.py").write_text(
        "from egc.registry import samplers\nsamplers.register('mine-here')(samplers['ddim'])\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ["--sampler", "mine-here", "--steps", "2", "--json"]
    assert main(["sample", "digits", "--import", "mine_here", *options]) == 0
    assert json.loads(capsys.readouterr().out)["sampler"] == "mine-here"
    assert main(["sample", "digits", "--import", "none_such.py"]) == 2
    assert "none_such.py" in capsys.readouterr().err
