"""Two processes on one machine (gloo): the same results as one."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from egc.api import load
from egc.cli import main
from egc.data.latents import open_latents

ROOT = Path(__file__).parents[1]
QUICK = [
    "network.channels=8", "network.head_width=8", "network.groups=4", "sample.steps=2",
    "train.batch_size=4", "train.log_every=1", "train.warmup=0", "train.lr_decay=none",
    "train.checkpoint_every=2", "train.preview_every=4",
]  # fmt: skip


def two(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """Run `python COMMAND` in two processes that know each other."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
    ]
    path = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [*launcher, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_gradients_equal_those_of_the_joined_batch(tmp_path):
    two("-m", "tests.workers", "gradients", str(tmp_path))


def test_sharded_training_has_the_same_gradient(tmp_path):
    two("-m", "tests.workers", "sharded", str(tmp_path))


def test_a_two_process_run_resumes(tmp_path):
    def train(run: str, steps: int) -> dict:
        settings = [part for each in [*QUICK, f"train.steps={steps}"] for part in ("--set", each)]
        out = two(
            "-m", "egc", "train", "digits", "--run-dir", run, *settings, "--json", cwd=tmp_path
        )
        return json.loads(out.stdout)  # one object: only the main process speaks

    train("halves", 2)
    halves = train("halves", 4)
    whole = train("whole", 4)
    assert halves["accuracy"] == whole["accuracy"]
    weights = "model/model.safetensors"
    first, second = (load_file(tmp_path / run / weights) for run in ("halves", "whole"))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    records = [json.loads(x) for x in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "loss" in r] == [1, 2, 3, 4]


def test_samples_split_over_processes_are_the_same_images(tmp_path):
    options = ["--label", "3", "--label", "8", "--count", "5", "--steps", "4", "--seed", "11"]
    out = two(
        "-m", "egc", "sample", "digits", *options, "--out", "two.npz", "--json", cwd=tmp_path
    )
    assert json.loads(out.stdout)["count"] == 5
    expected = load("digits").sample(["3", "8"], 5, steps=4, seed=11, progress=False)
    with np.load(tmp_path / "two.npz") as arrays:
        assert arrays["images"].shape == expected.images.shape
        assert arrays["labels"].tolist() == [3, 8, 3, 8, 3]
        difference = arrays["images"].astype(int) - expected.images.astype(int)
    assert abs(difference).max() <= 1


def test_an_autoencoder_and_latents_by_two_processes(tmp_path, photo_folder):
    source = f"folder:{photo_folder}"
    small = ["--factor", "2", "--width", "4", "--steps", "3", "--batch-size", "4"]
    out = two("-m", "egc", "train-codec", source, "--out", "vae", *small, "--json", cwd=tmp_path)
    assert json.loads(out.stdout)["psnr"] > 0
    settings = [
        "data.image_size=12", f"data.source={source}", "codec.kind=latent",
        "codec.autoencoder=vae",
    ]  # fmt: skip
    options = [part for each in settings for part in ("--set", each)]
    encode = ["encode", "folder32", "--flip", "--shard", "3", *options]
    two("-m", "egc", *encode, "--out", "two", cwd=tmp_path)
    with contextlib.chdir(tmp_path):
        assert main([*encode, "--out", "one"]) == 0
    (one,), (both,) = open_latents(tmp_path / "one"), open_latents(tmp_path / "two")
    everything = np.arange(40)
    np.testing.assert_allclose(
        one.with_twins().images(everything), both.with_twins().images(everything), atol=1e-2
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_work_is_dealt_out_and_put_together(monkeypatch, count):
    """Three processes, played one after the other: nothing lost, nothing twice, order kept."""
    from egc import processes

    items = list(range(count * 4 + 1))
    shares = []
    for rank in range(count):
        monkeypatch.setenv("WORLD_SIZE", str(count))
        monkeypatch.setenv("RANK", str(rank))
        shares.append([item * 10 for item in processes.share(items)])
    monkeypatch.setattr(processes, "_join", lambda: None)
    monkeypatch.setattr(processes, "gather_object", lambda _: shares)
    assert processes.whole(shares[0]) == [item * 10 for item in items]


def test_metrics_are_those_of_the_whole(tmp_path):
    two("-m", "tests.workers", "metrics", str(tmp_path))
