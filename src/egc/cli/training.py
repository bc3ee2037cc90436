"""Verbs that train, and that look back on training."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from egc.errors import RunError
from egc.cli.base import Result, Verb, settings_argument

# --- demo ----------------------------------------------------------------------------------------


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of training (0)")
    parser.add_argument(
        "--out", default="runs/demo", metavar="DIR", help="where the run is kept (runs/demo)"
    )


def _demo(args: argparse.Namespace) -> Result:
    from egc.api import EGC
    from egc.config import Config
    from egc.training.prepare import prepare
    from egc.training.run import Run

    started = time.monotonic()
    config = Config.load("digits-demo").with_settings([f"train.seed={args.seed}"])
    config, _ = prepare(None, config)
    run = Run(args.out)
    try:
        run.check(config)
    except RunError:
        if not run.config.exists():
            raise
    run.clear()  # a demonstration starts from scratch
    print("Training an EGC on 8x8 digits, from scratch.", file=sys.stderr)
    model = EGC.fit(preset=config, run=run.path)
    data = {
        "accuracy": model.facts["test_accuracy"],
        "seconds": round(time.monotonic() - started, 1),
        "report": str(run.report),
        "model": str(run.model),
        "steps": model.facts["trained_steps"],
        "test_images": model.facts["test_images"],
        "median_energy": model.facts["median_energy"],
        "seed": args.seed,
    }
    text = (
        f"test accuracy  {data['accuracy']:.1%} of {data['test_images']} digits it never saw\n"
        f"time           {data['seconds']:.0f} s\n"
        f"report         {data['report']}"
    )
    return Result(data, text, f"egc sample {data['model']} --label 3 --count 16")


# --- train ---------------------------------------------------------------------------------------


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET|FILE.toml", help="a preset's name or a file")
    # torchrun takes `--run` for an abbreviation of an option of its own: hence the second name.
    parser.add_argument(
        "--run", "--run-dir", required=True, metavar="DIR", help="where the run is kept"
    )
    settings_argument(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="show the configuration and its size, and stop"
    )


def _train(args: argparse.Namespace) -> Result:
    from egc.api import EGC
    from egc.config import Config
    from egc.training.prepare import prepare

    config = Config.load(args.preset).with_settings(args.settings)
    if args.dry_run:
        config, splits = prepare(None, config)
        size = EGC.build(config, splits.train.classes).size()
        counts = {f"{name}_images": len(part) for name, part in splits._asdict().items()}
        text = (
            f"{config.to_toml()}\n# {size['parameters']:,} parameters, "
            f"{size['mflop_per_image']:.1f} MFLOP an image\n# "
            + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items())
        )
        data = {"config": config.to_dict(), **size, **counts}
        return Result(data, text, f"egc train {args.preset} --run {args.run}")
    started = time.monotonic()
    model = EGC.fit(preset=config, run=args.run)
    run = Path(args.run)
    data = {
        "run": str(run),
        "model": str(run / "model"),
        "report": str(run / "report.html"),
        "accuracy": model.facts["test_accuracy"],
        "steps": model.facts["trained_steps"],
        "seconds": round(time.monotonic() - started, 1),
    }
    text = "" if data["accuracy"] is None else f"test accuracy  {data['accuracy']:.1%}\n"
    text += f"model          {data['model']}\nreport         {data['report']}"
    return Result(data, text, f"egc sample {data['model']} --count 16")


# --- plot ----------------------------------------------------------------------------------------


def _plot_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    parser.add_argument("--out", default="curves.png", metavar="PATH", help="(curves.png)")


def _plot(args: argparse.Namespace) -> Result:
    from egc.report.figures import png, run_curves
    from egc.training.run import Run

    records = {name: Run(name).read_metrics() for name in args.runs}
    for name, rows in records.items():
        if not any("loss" in row for row in rows):
            raise RunError(f"{name} has no metrics.jsonl with steps in it; is it a run directory?")
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(png(run_curves(records)))
    last = {name: [row for row in rows if "loss" in row][-1] for name, rows in records.items()}
    lines = [f"{name}: step {row['step']}, loss {row['loss']:.4f}" for name, row in last.items()]
    following = f"egc sample {args.runs[0]} --count 16"
    return Result({"out": str(out), "last": last}, "\n".join([*lines, str(out)]), following)


VERBS = [
    Verb(
        "demo",
        "train on handwritten digits in two minutes and write a report",
        ["egc demo", "egc demo --seed 1 --out runs/second --json"],
        _demo_arguments,
        _demo,
    ),
    Verb(
        "train",
        "train a model; the same command again resumes",
        [
            "egc train digits --run runs/digits",
            "egc train folder32 --run runs/mine --set data.source=folder:photos",
            "egc train my.toml --run runs/mine --set train.steps=20000",
        ],
        _train_arguments,
        _train,
    ),
    Verb(
        "plot",
        "draw the curves of one or several runs",
        ["egc plot runs/digits", "egc plot runs/first runs/second --out both.png"],
        _plot_arguments,
        _plot,
    ),
]
