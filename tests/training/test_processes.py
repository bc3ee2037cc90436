"""Two processes on one machine (gloo): the same results as one."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from egc.api import load
from egc.cli import main
from egc.data.sets.latents import open_latents
from tests.training.workers import encode


def done(folder: Path, job: str) -> Path:
    """What a job of `tests.training.workers` left behind; both processes must be done."""
    finished = all((folder / f"{job}-{rank}.done").exists() for rank in (0, 1))
    assert finished, (folder / "log").read_text()[-3000:]
    return folder / job


def told(folder: Path, name: str) -> dict:
    """The one object that was printed: only the main process speaks."""
    assert (folder / f"{name}-1.json").read_text() == ""
    return json.loads((folder / f"{name}-0.json").read_text())


def test_gradients_equal_those_of_the_joined_batch(two_processes):
    """Asserted by `tests.training.workers.gradients`."""
    done(two_processes, "gradients")


def test_a_two_process_run_resumes(two_processes):
    folder = done(two_processes, "resumed")
    _, halves, whole = (told(folder, str(number)) for number in range(3))
    assert halves["accuracy"] == whole["accuracy"]
    weights = "model/model.safetensors"
    first, second = (load_file(folder / run / weights) for run in ("halves", "whole"))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    records = [json.loads(x) for x in (folder / "whole/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "loss" in r] == [1, 2, 3, 4]


def test_a_model_draws_here_and_now_and_drivers_split(two_processes):
    """Asserted by `tests.training.workers.drawing`: one process alone calls `model.sample`."""
    done(two_processes, "drawing")


def test_samples_split_over_processes_are_the_same_images(two_processes):
    folder = done(two_processes, "samples")
    assert told(folder, "told")["count"] == 5
    expected = load("digits").sample(["3", "8"], 5, steps=4, seed=11, progress=False)
    with np.load(folder / "two.npz") as arrays:
        assert arrays["images"].shape == expected.images.shape
        assert arrays["labels"].tolist() == [3, 8, 3, 8, 3]
        difference = arrays["images"].astype(int) - expected.images.astype(int)
    assert abs(difference).max() <= 1


def test_an_autoencoder_and_latents_by_two_processes(two_processes, tmp_path):
    folder = done(two_processes, "latents")
    assert told(folder, "vae")["psnr"] > 0
    assert main([*encode(folder), "--out", str(tmp_path / "one")]) == 0
    (one,), (both,) = open_latents(tmp_path / "one"), open_latents(folder / "two")
    everything = np.arange(40)
    np.testing.assert_allclose(
        one.with_twins().images(everything), both.with_twins().images(everything), atol=1e-2
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_work_is_dealt_out_and_put_together(monkeypatch, count):
    """Three processes, played one after the other: nothing lost, nothing twice, order kept."""
    from egc import distributed

    items = list(range(count * 4 + 1))
    shares = []
    for rank in range(count):
        monkeypatch.setenv("WORLD_SIZE", str(count))
        monkeypatch.setenv("RANK", str(rank))
        shares.append([item * 10 for item in distributed.share(items)])
    monkeypatch.setattr(distributed, "_join", lambda: None)
    monkeypatch.setattr("accelerate.utils.gather_object", lambda _: shares)
    assert distributed.gather(shares[0]) == [item * 10 for item in items]


def test_metrics_are_those_of_the_whole(two_processes):
    """Asserted by `tests.training.workers.metrics`."""
    done(two_processes, "metrics")
