"""`fit` from start to end: longer runs, other weights to begin with, reports that fail."""

import json
import logging
import shutil
import socket

import numpy as np
import pytest
import torch

from egc.api import EGC, load
from egc.cli import main
from egc.config import Config, list_presets
from egc.errors import RunError
from egc.nn.double_backward import double_backward
from egc.objectives.base import Objective, Terms
from egc.registry import objectives
from egc.training import fit as fitting
from egc.training import outcome
from egc.training.cost import affordable_images, estimate
from egc.training.run import Run
from tests.conftest import TINY

QUIET = {"report": False, "progress": False}


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.INFO, "egc")
    return caplog


def weights(path) -> dict[str, torch.Tensor]:
    return load(path).net.state_dict()


def test_a_longer_run_is_the_run_it_would_have_been(tiny_config, tmp_path):
    run = tmp_path / "run"
    EGC.fit(preset=tiny_config.replace(train={"steps": 2}), run=run, **QUIET)
    model = EGC.fit(preset=tiny_config, run=run, **QUIET)
    assert model.facts["trained_steps"] == 4
    EGC.fit(preset=tiny_config, run=tmp_path / "straight", **QUIET)
    straight = weights(tmp_path / "straight")
    assert all(torch.equal(w, straight[name]) for name, w in weights(run).items())


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"lr_decay": "cosine"}, 'lr_decay = "cosine" was planned'),
        ({"lr_decay": "drops", "lr_drops": [0.5]}, 'lr_decay = "drops" was planned'),
        ({"warmup": 20}, "its warm-up was cut to 0 steps"),
    ],
)
def test_a_run_whose_rates_would_differ_says_why_and_what_to_do(
    tiny_config, tmp_path, train, words
):
    config = tiny_config.replace(train=train)
    Run(tmp_path / "run").start(config)
    with pytest.raises(RunError, match=words) as error:
        EGC.fit(preset=config.replace(train={"steps": 40}), run=tmp_path / "run", **QUIET)
    assert f"--from {tmp_path / 'run'}" in str(error.value)


def test_a_few_steps_need_no_other_settings(tmp_path):
    """Whatever the preset's warm-up."""
    small = ["network.channels=8", "network.head_width=8", "train.batch_size=2", "train.steps=6"]
    assert Config.load("digits").train.warmup > 6
    model = EGC.fit(preset="digits", run=tmp_path / "run", settings=small, **QUIET)
    assert model.facts["trained_steps"] == 6


def test_fine_tuning_begins_with_the_weights_that_fit(tiny_config, tmp_path, messages):
    first = tmp_path / "first"
    EGC.fit(preset=tiny_config, run=first, **QUIET)
    still = tiny_config.replace(train={"lr": 1e-30, "steps": 1, "lr_decay": "cosine"})
    EGC.fit(preset=still, run=tmp_path / "second", start_from=first, **QUIET)
    before, after = weights(first), weights(tmp_path / "second")
    assert all(torch.equal(w, before[name]) for name, w in after.items())
    assert f"Took {len(before)} of {len(before)} weights" in messages.text
    assert Run(tmp_path / "second").saved_config().train.start_from == str(first)


def test_fine_tuning_to_other_classes_starts_what_does_not_fit_fresh(
    tiny_config, tmp_path, messages
):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 8, 8, 1), np.uint8), np.arange(60) % 3
    first = tmp_path / "first"
    EGC.fit(preset=tiny_config, run=first, **QUIET)
    still = tiny_config.replace(train={"lr": 1e-30, "steps": 1})
    model = EGC.fit((images, labels), still, tmp_path / "other", start_from=first, **QUIET)
    assert model.classes == ["0", "1", "2"]
    before, after = weights(first), weights(tmp_path / "other")
    fresh = [name for name in after if after[name].shape != before[name].shape]
    assert fresh
    assert f"{len(fresh)} start fresh, such as {fresh[0]}" in messages.text
    assert all(torch.equal(after[n], before[n]) for n in after if n not in fresh)


def test_a_fine_tuned_run_goes_on_without_the_model_it_began_with(tiny_config, tmp_path):
    first, run = tmp_path / "first", tmp_path / "run"
    EGC.fit(preset=tiny_config, run=first, **QUIET)
    EGC.fit(preset=tiny_config, run=run, start_from=first, **QUIET)
    longer = tiny_config.replace(train={"steps": 6})
    EGC.fit(preset=longer, run=tmp_path / "straight", start_from=first, **QUIET)
    shutil.rmtree(first)
    EGC.fit(preset=longer, run=run, **QUIET)
    straight = weights(tmp_path / "straight")
    assert all(torch.equal(w, straight[name]) for name, w in weights(run).items())


def test_a_run_that_began_by_itself_takes_no_other_weights(tiny_config, tmp_path):
    EGC.fit(preset=tiny_config, run=tmp_path / "run", **QUIET)
    with pytest.raises(RunError, match=r"train\.start_from was None, now digits"):
        EGC.fit(preset=tiny_config, run=tmp_path / "run", start_from="digits", **QUIET)


def test_a_finished_run_says_so_and_opens_no_data(tiny_config, tmp_path, messages, monkeypatch):
    run = tmp_path / "run"
    model = EGC.fit(preset=tiny_config, run=run, progress=False)
    monkeypatch.setattr(fitting, "Trainer", None)
    monkeypatch.setattr(fitting, "prepare", None)
    again = EGC.fit(preset=tiny_config, run=run, progress=False)
    assert f"{run} is finished: 4 steps." in messages.text
    assert again.facts == model.facts
    with pytest.raises(RunError, match=r"train\.lr was"):
        EGC.fit(preset=tiny_config.replace(train={"lr": 0.5}), run=run, progress=False)


def test_without_a_report_there_is_a_model_and_the_report_can_follow(tiny_config, tmp_path):
    run = Run(tmp_path / "run")
    model = EGC.fit(preset=tiny_config, run=run.path, **QUIET)
    assert "test_accuracy" not in model.facts
    assert load(run.path).facts["trained_steps"] == 4
    assert not run.report.exists()
    before = run.metrics.read_text()
    followed = EGC.fit(preset=tiny_config, run=run.path, progress=False)
    assert followed.facts["test_accuracy"] is not None
    assert run.report.exists()
    assert run.metrics.read_text() == before


def test_a_report_that_fails_does_not_lose_the_model(tiny_config, tmp_path, messages, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no more ink")

    monkeypatch.setattr(outcome, "histogram", fail)
    run = Run(tmp_path / "run")
    EGC.fit(preset=tiny_config, run=run.path, progress=False)
    assert "but its report failed (RuntimeError: no more ink)" in messages.text
    assert load(run.path).facts["test_accuracy"] is not None  # what was measured is kept
    assert not run.report.exists()
    monkeypatch.undo()
    EGC.fit(preset=tiny_config, run=run.path, progress=False)
    assert run.report.exists()


def test_the_report_says_what_it_does_where_there_is_no_terminal(tiny_config, tmp_path, messages):
    EGC.fit(preset=tiny_config, run=tmp_path / "run")
    for words in ("naming 359 test images", "drawing 100 images of classes", "energies"):
        assert f"Report: {words}" in messages.text


def test_looking_costs_little_beside_training(tiny_config):
    """All pictures after a real training, a few after some steps of a large network."""
    wanted = 10 * outcome.EACH + outcome.FREE + outcome.PATHS
    for preset in ("digits-demo", "fashion-mnist", "folder32"):
        config, *_ = estimate(Config.load(preset))
        model = EGC.build(config, list("0123456789"), device="meta")
        assert affordable_images(model, config.train.steps) >= wanted, preset
        assert affordable_images(model, config.train.preview_every) >= outcome.PREVIEW_IMAGES
    assert affordable_images(model, 6) < 20


@pytest.fixture
def alone(monkeypatch, home):
    """No data and no network."""

    def no_way(*args, **options):
        raise AssertionError("tried to connect")

    monkeypatch.setattr(socket.socket, "connect", no_way)
    return home


@pytest.mark.parametrize("preset", list_presets())
def test_size_and_cost_need_no_data(preset, alone, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["train", preset, "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    images = data["config"]["train"]["batch_size"] * data["steps"]
    assert data["tflop"] == pytest.approx(data["passes"] * data["mflop_per_image"] * images / 1e6)
    assert sorted(tmp_path.rglob("*")) == before
    assert data["assumed"] == (["10 classes"] if preset == "folder32" else [])


def test_a_dry_run_says_what_it_assumed_and_its_hint_pastes(alone, capsys, photo_folder):
    settings = ["--set", "data.source=hub:some/set", "--set", "data.augment={flip = true}"]
    assert main(["train", "digits", "--dry-run", "--run", "a run", *settings]) == 0
    out, err = capsys.readouterr()
    assert "assumed, as the data is not at hand: data.image_size = 32" in out
    assert (
        "next: egc train digits --run 'a run' --set data.source=hub:some/set "
        "--set 'data.augment={flip = true}'\n"
    ) in err
    assert main(["train", "folder32", "--dry-run", "--set", f"data.source=folder:{photo_folder}",
                 "--json"]) == 0  # fmt: skip
    data = json.loads(capsys.readouterr().out)
    assert (data["classes"], data["assumed"]) == (2, [])


def test_a_run_needs_a_place(capsys):
    assert main(["train", "digits"]) == 2
    assert "Say --run DIR" in capsys.readouterr().err


@pytest.fixture
def plain_objective():
    """An objective of a user's own: the score term alone, under a name of its own."""

    @objectives.register("plain")
    class Plain(Objective):
        def cost(self, forward, classify):
            return 6 * forward

        def plan(self, batch, share=1.0):
            return [(self.diffusion.noise(batch.x0, batch.t, batch.eps), batch, share)]

        def forward(self, part):
            x_t, batch, share = part
            x = x_t.requires_grad_(True)
            with double_backward():
                joint = self.net(x, batch.t)
            (s,) = torch.autograd.grad(joint.log_density.sum(), x, create_graph=True)
            error = share * (s + batch.eps).square().mean()
            named = share * self.cross_entropies(joint.logits, batch.labels).mean()
            return Terms.of(error + named, my_error=error)

    yield
    del objectives._entries["plain"]


def test_an_objective_of_ones_own_trains_reports_and_is_measured(
    plain_objective, tiny_config, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    config = {**TINY, "objective": {"kind": "plain"}}
    (tmp_path / "mine.toml").write_text(Config.from_dict(config).to_toml())
    assert main(["train", "mine.toml", "--run", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["accuracy"] <= 1
    assert (tmp_path / "run" / "report.html").is_file()
    assert [r["my_error"] > 0 for r in Run("run").read_metrics() if "loss" in r] == [True, True]
    words = ["--metrics", "classification", "--images", "20", "--json"]
    assert main(["evaluate", "run", *words]) == 0
