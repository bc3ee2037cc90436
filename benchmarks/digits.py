"""The figures of the README for digits: train from three seeds and measure.

    python benchmarks/digits.py [--presets digits-demo digits] [--seeds 0 1 2] [--work DIR]

For each preset and seed: test accuracy; the figures of `egc evaluate --metrics generation` for as
many samples as there are training digits (the share that the judge assigns to the class asked for,
and the Frechet distance to the test digits in its features, beside that of the training digits);
time and speed. Writes `benchmarks/digits.json` and prints the table. What is in `--work` is not
done again.
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
from egc.metrics.generation import evaluate_generation
from egc.training.prepare import prepare

RESULTS = Path(__file__).with_name("digits.json")


def measure(preset: str, seed: int, work: Path) -> dict[str, float]:
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

    count, first = len(splits.train), 1_000_000 * (seed + 1)
    made = evaluate_generation(model, splits.train, splits.test, count=count, seed=first).summary()
    figures = {
        "seed": seed,
        "accuracy": model.facts["test_accuracy"],
        "agreement": made["agreement"],
        "judge_accuracy": made["judge_accuracy"],
        "samples": count,
        "frechet_samples": made["judge_frechet"],
        "frechet_training": made["baseline"]["judge_frechet"],
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

    results: dict = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
        "presets": {},
    }
    for preset in args.presets:
        rows = []
        for seed in args.seeds:
            rows.append(measure(preset, seed, args.work))
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
