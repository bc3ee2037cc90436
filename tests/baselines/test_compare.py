"""`egc compare`: equal budgets, one table, and no work done twice."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image

from egc.baselines import compare as comparison
from egc.baselines.compare import compare, read_comparison, steps_for
from egc.baselines.files import SHIPPED, list_comparisons
from egc.baselines.tables import comparison_table, scatter_figure
from egc.cli import main
from egc.config import Config
from egc.errors import ConfigError
from egc.metrics import judge
from egc.training import fit as fitting

ROOT = Path(__file__).parents[2]

TINY = """
title = "Tiny"
budget = 0.0006

[evaluate.generation]
count = 20
features = "judge"

[evaluate.robustness]
images = 10
attack_steps = 2

[evaluate.out_of_distribution]
others = ["noise"]
images = 30

[[entry]]
name = "EGC"
preset = "digits"
network = { channels = 8, head_width = 8, groups = 4 }
train = { batch_size = 4, warmup = 0, checkpoint_every = 1 }
sample = { steps = 2 }

[[entry]]
name = "EGC, unguided"
of = "EGC"
sample = { guidance = 0.0 }

[[entry]]
name = "classifier"
preset = "digits"
network = { channels = 8, head_width = 8, groups = 4 }
objective = { kind = "classifier" }
train = { batch_size = 4, warmup = 0, checkpoint_every = 1 }

[[entry]]
name = "DDPM"
preset = "digits"
network = { kind = "unet", channels = 8, head_width = 8, groups = 4 }
objective = { kind = "ddpm" }
train = { batch_size = 4, warmup = 0, checkpoint_every = 1 }
sample = { steps = 2 }
"""


@pytest.fixture(autouse=True, scope="module")
def quick_judge(tmp_path_factory):
    """A judge of a few steps, kept where all tests of this file find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EGC_DATA", str(tmp_path_factory.mktemp("judged")))
        patch.setattr(judge, "STEPS", 20)
        yield


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("compared") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def compared(tiny_file):
    """A comparison that was never interrupted: its rows, and where it is kept."""
    out = tiny_file.parent / "whole"
    return compare(read_comparison(tiny_file), out, progress=False), out


def test_shipped_comparisons_can_be_read_and_are_in_equal_shares():
    assert list_comparisons() == [
        "ablation-digits", "hybrids-cifar10", "hybrids-cifar10-small", "hybrids-fashion",
    ]  # fmt: skip
    ablation = read_comparison("ablation-digits")
    assert [entry.of == entry.name for entry in ablation.entries] == [
        True,
        True,
        False,
        True,
        True,
    ]
    assert ablation.entries[1].config.train.steps == 855
    assert ablation.entries[2].config.sample.guidance == 5


def test_budgets_are_equal_in_compute(tiny_file):
    """A DDPM image costs 3 passes, an EGC one 9: it gets that many more steps."""
    config = Config.load("digits").replace(network={"kind": "unet"})
    rival = config.replace(objective={"kind": "ddpm"})
    assert steps_for(rival, 50) / steps_for(config, 50) == pytest.approx(9 / 3, rel=0.03)
    assert steps_for(config, 100) == pytest.approx(2 * steps_for(config, 50), abs=1)


def test_a_comparison_measures_all_and_resumes(tiny_file, compared, monkeypatch, capsys):
    found, out = compared
    rows = {row["name"]: row for row in found}
    egc_row, free, classifier, ddpm = rows.values()
    assert egc_row["accuracy"] == free["accuracy"]  # the same weights
    assert egc_row["judge_frechet"] != free["judge_frechet"]
    assert egc_row["agreement"] is not None
    assert free["agreement"] is None  # without guidance no class is asked for
    assert classifier["judge_frechet"] is None
    assert ddpm["accuracy"] is None
    assert ddpm["pgd_8"] is None
    assert 0 <= egc_row["pgd_8"] <= 1
    assert 0 <= ddpm["auroc_noise"] <= 1
    assert all(row["seconds"] > 0 for row in rows.values())

    # Nothing is trained or measured a second time.
    def refuse(*args, **kwargs):
        raise AssertionError("done already")

    for name in ("measure", "step_seconds"):
        monkeypatch.setattr(comparison, name, refuse)
    monkeypatch.setattr(fitting, "Trainer", refuse)
    assert main(["compare", str(tiny_file), "--out", str(out), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["rows"] == list(rows.values())
    assert {"table.md", "results.json", "scatter.png"} <= {path.name for path in out.iterdir()}


@pytest.mark.slow
def test_the_comparison_for_gpus_runs_when_it_is_shrunk(tmp_path, monkeypatch):
    """hybrids-cifar10 with all its entries, on a few small pictures and tiny networks."""
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(30):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    monkeypatch.setenv("EGC_INCEPTION", str(fake_inception(tmp_path / "net.pt")))
    tree = tomllib.loads((SHIPPED / "hybrids-cifar10.toml").read_text())
    tree["budget"] = 1e-4
    tree["evaluate"]["generation"] |= {"count": 6}
    tree["evaluate"]["robustness"] |= {"images": 4, "attack_steps": 1}
    tree["evaluate"]["out_of_distribution"] |= {"images": 20}
    for entry in tree["entry"]:
        attention = Config.load(entry["preset"]).network.attention
        small = {"channels": 8, "depth": 1, "head_width": 8, "attention": [8] if attention else []}
        groups = Config.load(entry["preset"]).network.groups
        entry |= {
            "data": {"source": f"folder:{tmp_path / 'photos'}", "image_size": 8, "channels": 3,
                     "validation": 0.25},
            "network": {**small, "groups": min(groups, 4)},
            "train": {"batch_size": 2},
            "sample": {"steps": 2},
        }  # fmt: skip
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(tree))
    rows = compare(read_comparison(path), tmp_path / "out", progress=False)
    assert [row["kind"] for row in rows] == [
        "egc", "egc", "egc-unsupervised", "jem", "classifier", "ddpm"
    ]  # fmt: skip
    assert [row["fid"] is None for row in rows] == [False, False, False, False, True, False]
    assert [row["accuracy"] is None for row in rows] == [False, False, True, False, False, True]
    assert all(row["judge_frechet"] is None for row in rows)


def fake_inception(path: Path) -> Path:
    """A TorchScript network of four features."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(2)[:, :, ::1000].mean(dim=1)[:, :4]

    torch.jit.script(Net()).save(str(path))
    return path


# Runs `egc compare` in forked children that kill themselves: at a step of training, before a
# measurement, or while its figures are written.
KILLER = """
import os, signal, sys
import diffusers, torch, torch._dynamo
torch.set_num_threads(int(os.environ.get("EGC_TEST_THREADS", "1")))
from egc.baselines import compare as comparison
from egc.cli import main
from egc.metrics import judge
from egc.training import trainer
judge.STEPS = 20

def attempt(countdown):
    def before(function):
        def wrapped(*args, **kwargs):
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return wrapped
    trainer.learning_rate = before(trainer.learning_rate)
    comparison.measure = before(comparison.measure)
    comparison.json.dumps = before(comparison.json.dumps)
    os._exit(main(["compare", sys.argv[1], "--out", sys.argv[2]]))

for countdown in [2, 9, 6, 5, 9, 0]:
    if (child := os.fork()) == 0:
        attempt(countdown)
    status = os.waitpid(child, 0)[1]
    print("killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
"""


@pytest.mark.slow
def test_a_killed_comparison_goes_on_to_the_same_table(tiny_file, compared, tmp_path):
    expected, _ = compared
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(tiny_file), str(tmp_path / "killed")],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    outcomes = [line for line in done.stdout.splitlines() if line in ("killed", "0", "1", "2")]
    assert outcomes.count("killed") >= 4
    assert outcomes[-1] == "0", done.stderr
    found = json.loads((tmp_path / "killed" / "results.json").read_text())["rows"]
    for mine, other in zip(expected, found, strict=True):
        timed = {"seconds": None}  # the only thing that is
        assert {**mine, **timed} == {**other, **timed}


def test_the_table_leaves_out_what_nobody_has_and_dashes_what_one_lacks(tiny_file):
    whole = {"accuracy": 0.5, "judge_frechet": 1.25, "parameters": 1e6, "steps": 10}
    rows = [
        {"name": "both", "fid": None, **whole},
        {"name": "draws", "fid": None, **whole, "accuracy": None},
        {"name": "names", "fid": None, **whole, "judge_frechet": None},
    ]
    lines = comparison_table(rows, read_comparison(tiny_file)).splitlines()
    assert lines[0] == "| | accuracy | judge-Frechet | parameters | steps |"
    assert lines[3] == "| draws | - | 1.25 | 1.00 M | 10 |"
    assert lines[4] == "| names | 50.0 % | - | 1.00 M | 10 |"
    assert "FID" not in lines[0]
    axis = scatter_figure(rows).axes[0]
    assert axis.get_ylabel() == "judge-Frechet distance (not FID)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title = 'x'", "no entries"),
        ("[[entry]]\npreset = 'digits'", "needs a name"),
        ("[[entry]]\nname = 'a'", "needs a preset"),
        ("[[entry]]\nname = 'a'\nof = 'b'", "no entry above it"),
        ("[[entry]]\nname = 'a'\npreset = 'digts'", "Did you mean 'digits'"),
        ("[[entry]]\nname = 'a'\npreset = 'digits'\nobjective = { kind = 'gan' }", "no objective"),
        ("sample = 3\n[[entry]]\nname = 'a'\npreset = 'digits'", "'sample'"),
        (
            "[evaluate.generation]\ncuont = 3\n[[entry]]\nname = 'a'\npreset = 'digits'",
            "Did you mean 'evaluate.generation.count'",
        ),
        (
            "[evaluate]\nsamples = 3\n[[entry]]\nname = 'a'\npreset = 'digits'",
            "no metric 'samples'",
        ),
        ("[[entry", "not valid TOML"),
        (
            "[[entry]]\nname = 'a'\npreset = 'digits'\n[[entry]]\nname = 'a'\npreset = 'digits'",
            "two entries",
        ),
    ],
)
def test_a_wrong_file_gets_one_sentence(tmp_path, text, words):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_comparison(path)


def test_an_unknown_comparison_is_suggested():
    with pytest.raises(ConfigError, match="Did you mean 'ablation-digits'"):
        read_comparison("ablation-digit")
