"""The figures of the README for digits: train from three seeds and measure.

    python benchmarks/digits.py [--presets digits-demo digits] [--seeds 0 1 2] [--work DIR]

For each preset and seed: test accuracy; the share of class-conditional samples that an
independent judge assigns to the class asked for; the Frechet distance of the samples to the test
digits in the judge's features, beside that of as many training digits; time and speed. Writes
`benchmarks/digits.json` and prints the README's table. What is in `--work` is not done again.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch

from egc.api import EGC
from egc.config import Config
from egc.data import open_source
from egc.metrics.judge import Judge
from egc.training.prepare import prepare

RESULTS = Path(__file__).with_name("digits.json")


def measure(preset: str, seed: int, work: Path, judge: Judge) -> dict[str, float]:
    """Train one model as `egc train` does, and look at it from outside."""
    run = work / f"{preset}-{seed}"
    if (run / "figures.json").exists():
        return json.loads((run / "figures.json").read_text())
    config, splits = prepare(None, preset, [f"train.seed={seed}"])
    started = time.monotonic()
    model = EGC.fit(preset=config, run=run)
    seconds = time.monotonic() - started
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    speeds = [r["images_per_second"] for r in records if "images_per_second" in r]

    train, test = splits.train.images(), splits.test.images()
    labels = [index % len(model.classes) for index in range(len(train))]
    samples = model.sample(labels, seed=1_000_000 * (seed + 1))
    figures = {
        "seed": seed,
        "accuracy": model.facts["test_accuracy"],
        "agreement": judge.agreement(samples.images, samples.labels),
        "samples": len(samples),
        "frechet_samples": judge.distance(samples.images, test),
        "frechet_training": judge.distance(train, test),
        "seconds": seconds,
        "steps_per_second": float(np.median(speeds)) / config.train.batch_size,
        **model.size(),
    }
    (run / "figures.json").write_text(json.dumps(figures))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["digits-demo", "digits"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/bench-digits"))
    args = parser.parse_args()

    data = open_source(Config.load("digits").data)
    judge = Judge.train_on(data.train)
    results: dict = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
        "judge_accuracy": judge.agreement(data.test.images(), data.test.labels),
        "presets": {},
    }
    print(f"judge: {results['judge_accuracy']:.1%} on the test digits")
    for preset in args.presets:
        rows = []
        for seed in args.seeds:
            rows.append(measure(preset, seed, args.work, judge))
            print(preset, json.dumps(rows[-1]), flush=True)
        mean = {
            key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key != "seed"
        }
        results["presets"][preset] = {"mean": mean, "seeds": rows}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")

    print(
        "\n| preset | test accuracy | judge agrees | Frechet: samples | training digits | time |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for preset, result in results["presets"].items():
        mean, rows = result["mean"], result["seeds"]
        spread = ", ".join(f"{row['accuracy']:.1%}" for row in rows)
        print(
            f"| `{preset}` | {mean['accuracy']:.1%} ({spread}) | {mean['agreement']:.1%} "
            f"| {mean['frechet_samples']:.2f} | {mean['frechet_training']:.2f} "
            f"| {mean['seconds']:.0f} s |"
        )


if __name__ == "__main__":
    main()
