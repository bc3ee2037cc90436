"""How good the paired gradient is: its error against its step h, and its curves on digits.

    python benchmarks/paired.py [--seeds 0 1 2] [--work DIR]

Error: |paired - exact| / |exact| over all parameters, fp32, on 64 digits, for the digits network
with both readouts, untrained and after 300 steps of exact training. Curves: preset `digits-demo`
trained with both gradients from the same seeds, so from the same weights on the same noise. Writes
`benchmarks/paired.json`, `docs/paired-error.png` and `docs/paired-curves.png`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from egc.api import EGC
from egc.objectives import egc as objectives
from egc.report.figures import COLOURS, png
from egc.training.batches import BatchStream
from egc.training.prepare import prepare
from egc.training.run import Run
from egc.training.trainer import Trainer

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
STEPS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]


def gradient(model: EGC, kind: str, batch: objectives.Batch) -> torch.Tensor:
    config = model.config.replace(objective={"gradient": kind})
    objective = objectives.EGCObjective(model.net, model.diffusion, config.objective)
    model.net.zero_grad()
    for part in objective.plan(batch):
        objective(part).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.net.parameters()])


def error_by_step(work: Path) -> dict[str, dict[str, float]]:
    """Relative error for each h, readout, and state of training; without the clean stream."""
    found: dict[str, dict[str, float]] = {}
    chosen = objectives.PAIR_STEP
    for readout in ("dense", "pooled"):
        for steps in (0, 300):
            settings = [f"network.readout={readout}", "objective.clean_stream=false"]
            settings += ["network.head_width=32", "train.batch_size=64"]
            settings += [f"train.steps={max(steps, 60)}", "objective.gradient=exact"]
            config, splits = prepare(None, "digits-demo", settings)
            model = EGC.build(config, splits.train.classes)
            if steps:
                Trainer(model, splits.train, Run(work / f"{readout}-{steps}")).train()
            batch = BatchStream(splits.test, model.codec, config, torch.device("cpu"))(0)
            exact = gradient(model, "exact", batch)
            row = {}
            for step in STEPS:
                objectives.PAIR_STEP = step
                row[str(step)] = float(
                    (gradient(model, "paired", batch) - exact).norm() / exact.norm()
                )
            found[f"{readout}, {'trained' if steps else 'untrained'}"] = row
    objectives.PAIR_STEP = chosen
    return found


def curves(seeds: list[int], work: Path) -> dict[str, list[list[dict]]]:
    """metrics.jsonl of each gradient and seed."""
    records: dict[str, list[list[dict]]] = {"exact": [], "paired": []}
    for seed in seeds:
        for kind, rows in records.items():
            settings = [f"train.seed={seed}", f"objective.gradient={kind}"]
            run = Run(work / f"{kind}-{seed}")
            EGC.fit(preset="digits-demo", run=run.path, settings=settings)
            rows.append(run.read_metrics())
    return records


def draw_error(found: dict[str, dict[str, float]]) -> Figure:
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axis = figure.subplots()
    for (name, row), colour in zip(found.items(), COLOURS, strict=False):
        axis.plot([float(h) for h in row], [100 * e for e in row.values()], "o-", label=name,
                  color=colour)  # fmt: skip
    axis.axvline(objectives.PAIR_STEP, color="grey", linestyle=":")
    axis.axhline(1, color="grey", linestyle=":")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("h: root mean square of the displacement")
    axis.set_ylabel("error of the gradient, %")
    axis.legend(frameon=False, fontsize=8)
    axis.grid(alpha=0.25, which="both")
    return figure


def draw_curves(records: dict[str, list[list[dict]]]) -> Figure:
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, term in zip(axes, ("score", "class_clean"), strict=True):
        for (kind, runs), colour in zip(records.items(), COLOURS, strict=False):
            for index, run in enumerate(runs):
                points = [(r["step"], r[term]) for r in run if term in r]
                label = kind if index == 0 else None
                axis.plot(*zip(*points, strict=True), color=colour, alpha=0.7, label=label)
        axis.set_yscale("log")
        axis.set_xlabel("step")
        axis.set_title({"score": "noise error", "class_clean": "cross-entropy, clean"}[term])
        axis.legend(frameon=False)
        axis.grid(alpha=0.25, which="both")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/bench-paired"))
    args = parser.parse_args()
    errors = error_by_step(args.work)
    DOCS.joinpath("paired-error.png").write_bytes(png(draw_error(errors)))
    records = curves(args.seeds, args.work)
    DOCS.joinpath("paired-curves.png").write_bytes(png(draw_curves(records)))
    last = {
        term: {
            kind: [float(np.mean([r[term] for r in run if term in r][-4:])) for run in runs]
            for kind, runs in records.items()
        }
        for term in ("score", "class_noisy", "class_clean")
    }
    accuracy = {
        kind: [
            json.loads((args.work / f"{kind}-{seed}" / "model" / "config.json").read_text())[
                "facts"
            ]["test_accuracy"]
            for seed in args.seeds
        ]
        for kind in records
    }
    results = {"error": errors, "final_terms": last, "test_accuracy": accuracy}
    (HERE / "paired.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
