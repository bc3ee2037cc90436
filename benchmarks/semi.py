"""Digits with few labels: EGC, which learns from all images, against a classifier, which cannot.

    python benchmarks/semi.py [--seeds 5]

For 20, 50, 100 and 200 labels (evenly over the classes, others for each seed), the network of the
preset `digits-demo` is trained

  egc         on all 1,294 training digits, whose labels are known for those few
  classifier  on those few alone, by cross-entropy at t = 0, with the same network, augmentation,
              steps, learning rate and average

and measured on the 359 test digits. Both are results of the last step; nothing is chosen by test
accuracy. Goes on where it was stopped; writes `benchmarks/semi.json` and `docs/semi.png`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from egc.api import EGC
from egc.config import Config
from egc.data.augment import augment
from egc.data.imageset import ImageSet, balanced, keep_labels
from egc.metrics.classification import evaluate_classification
from egc.training.batches import step_generator
from egc.training.ema import EMA
from egc.training.prepare import open_clean, prepare
from egc.training.run import Run
from egc.training.schedule import learning_rate
from egc.training.trainer import Trainer

RESULTS = Path(__file__).parent / "semi.json"
FIGURE = Path(__file__).parents[1] / "docs" / "semi.png"
COUNTS = (20, 50, 100, 200)


def train_egc(config: Config, train: ImageSet) -> EGC:
    model = EGC.build(config, train.classes, seed=config.train.seed)
    with tempfile.TemporaryDirectory() as place:
        clean = open_clean(config, train)
        trainer = Trainer(model, train, Run(Path(place) / "run"), clean_data=clean)
        return replace(model, net=trainer.train(show=False))


def train_classifier(config: Config, train: ImageSet) -> EGC:
    """The same network on labelled images alone, as a classifier is trained."""
    model = EGC.build(config, train.classes, seed=config.train.seed)
    net, average = model.net.train(), EMA(model.net, config.train.ema)
    optimizer = torch.optim.Adam(net.parameters(), lr=config.train.lr)
    for step in range(config.train.steps):
        images, labels = train.take(step, config.train.batch_size, config.train.seed)
        generator = step_generator(config.train.seed, 0, step)
        changed = augment(torch.as_tensor(images), config.data.augment_clean, generator)
        logits = net(model.codec.encode(changed), 0).logits
        F.cross_entropy(logits, torch.as_tensor(labels)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), config.train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.train, step)
        optimizer.step()
        optimizer.zero_grad()
        average.update(net, step)
    return replace(model, net=average.net)


def curves(results: dict[str, dict[str, list[float]]]) -> Figure:
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    for kind, colour in (("egc", "#2f6fb3"), ("classifier", "#d1793b")):
        values = [100 * np.array(results[str(count)][kind]) for count in COUNTS]
        means, deviations = [v.mean() for v in values], [v.std(ddof=1) for v in values]
        axis.errorbar(COUNTS, means, deviations, marker="o", color=colour, label=kind, capsize=3)
    axis.set_xscale("log")
    axis.minorticks_off()
    axis.set_xticks(COUNTS, [str(count) for count in COUNTS])
    axis.set_xlabel("labels")
    axis.set_ylabel("test accuracy, %")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    config, splits = prepare(None, "digits-demo")
    results: dict[str, dict[str, list[float]]] = {}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text())
    for seed in range(args.seeds):
        for count in COUNTS:
            row = results.setdefault(str(count), {"egc": [], "classifier": []})
            kept = balanced(splits.train.labels, count / len(splits.train), seed)
            seeded = config.replace(train={"seed": seed})
            some = keep_labels(splits.train, kept)
            work = {
                "egc": lambda c=seeded, d=some: train_egc(c, d),
                "classifier": lambda c=seeded, d=some, k=kept: train_classifier(c, d.subset(k)),
            }
            for kind, train in work.items():
                if len(row[kind]) <= seed:
                    row[kind].append(evaluate_classification(train(), splits.test).accuracy)
                    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
                    print(f"seed {seed}, {count} labels, {kind}: {row[kind][-1]:.1%}", flush=True)
    curves(results).savefig(FIGURE, dpi=110)
    print("| labels | EGC | classifier |\n| --- | --- | --- |")
    for count in COUNTS:
        cells = (100 * np.array(results[str(count)][kind]) for kind in ("egc", "classifier"))
        shown = (f"{v.mean():.1f} ± {v.std(ddof=1):.1f} %" for v in cells)
        print(f"| {count} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
