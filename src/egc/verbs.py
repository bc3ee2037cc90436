"""The verbs of the command line: arguments in, a `Result` out.

Each verb imports what it needs when it runs, so that `egc --help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from egc.config import SAMPLERS
from egc.errors import RunError


class Result(NamedTuple):
    """What a verb gives back: figures for `--json`, the same as text, and what to try next."""

    data: dict[str, Any]
    text: str
    next: str


class Verb(NamedTuple):
    name: str
    summary: str
    examples: list[str]
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Result]


def _model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a shipped name, a model or run directory, or a hub id"
    )


# --- train ---------------------------------------------------------------------------------------


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET|FILE.toml", help="a preset's name or a file")
    # torchrun takes `--run` for an abbreviation of an option of its own: hence the second name.
    parser.add_argument(
        "--run", "--run-dir", required=True, metavar="DIR", help="where the run is kept"
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the configuration, such as train.steps=500; can be repeated",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the configuration and its size, and stop"
    )


def _train(args: argparse.Namespace) -> Result:
    from egc.api import EGC, prepare
    from egc.config import Config

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


# --- sample --------------------------------------------------------------------------------------


def _sample_arguments(parser: argparse.ArgumentParser) -> None:
    _model_argument(parser)
    parser.add_argument(
        "--label",
        dest="labels",
        action="append",
        metavar="CLASS",
        help="class to draw; repeat for several, taken in turn; default: no label",
    )
    parser.add_argument("--count", type=int, metavar="N", help="images in all (one a label)")
    parser.add_argument("--steps", type=int, metavar="N", help="sampling steps")
    parser.add_argument("--sampler", metavar="NAME", help=", ".join(SAMPLERS))
    parser.add_argument("--guidance", type=float, metavar="W", help="how strongly to insist")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first image (0)")
    parser.add_argument(
        "--out",
        default="samples.png",
        metavar="PATH",
        help="x.png: one picture; x.npz: arrays; else a directory of images (samples.png)",
    )


def _sample(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.processes import is_main

    model = load(args.model)
    samples = model.sample(
        args.labels, args.count, args.steps, args.sampler, args.guidance, args.seed
    )
    path = samples.save(args.out) if is_main() else Path(args.out)
    names = [model.classes[label] if label >= 0 else None for label in samples.labels]
    data = {
        "out": str(path),
        "count": len(samples),
        "labels": names,
        "seeds": samples.seeds.tolist(),
    }
    images = "1 image" if len(samples) == 1 else f"{len(samples)} images"
    following = f"egc sample {args.model} --seed {samples.seeds[-1] + 1}"
    if model.classes:
        following += f" --label {model.classes[(samples.labels[-1] + 1) % len(model.classes)]}"
    return Result(data, f"{images} in {path}", following)


# --- classify ------------------------------------------------------------------------------------


def _classify_arguments(parser: argparse.ArgumentParser) -> None:
    _model_argument(parser)
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files or directories")
    parser.add_argument("--top", type=int, default=1, metavar="K", help="classes to show (1)")


def _classify(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.data.images import image_files
    from egc.errors import ConfigError

    if args.top < 1:
        raise ConfigError(f"--top must be at least 1; got {args.top}.")
    model = load(args.model)
    paths = []
    for path in map(Path, args.images):
        paths += image_files(path) if path.is_dir() else [path]
    probabilities = model.predict_proba(paths)
    energies = model.energy(paths)
    rows: list[dict[str, Any]] = []
    for path, row, energy in zip(paths, probabilities, energies, strict=True):
        best = row.argsort()[::-1][: args.top]
        classes = [{"class": model.classes[i], "probability": float(row[i])} for i in best]
        rows.append({"image": str(path), "classes": classes, "energy": float(energy)})
    lines = [
        f"{row['image']}\t"
        + "  ".join(f"{c['class']} {c['probability']:.1%}" for c in row["classes"])
        + f"\tenergy {row['energy']:.1f}"
        for row in rows
    ]
    first = rows[0]["classes"][0]["class"]
    return Result(
        {"images": rows}, "\n".join(lines), f"egc sample {args.model} --label {first} --count 9"
    )


# --- models --------------------------------------------------------------------------------------


def _models(args: argparse.Namespace) -> Result:
    from egc.api import list_models, load
    from egc.config import list_presets

    models = []
    for name in list_models():
        model = load(name)
        models.append(
            {
                "name": name,
                "image_size": model.codec.image_size,
                "channels": model.codec.channels,
                "classes": len(model.classes),
                "test_accuracy": model.facts.get("test_accuracy"),
                **model.size(),
            }
        )
    presets = list_presets()
    lines = ["models (egc sample NAME, egc.load(NAME)):"]
    lines += [
        f"  {m['name']:<12} {m['image_size']}x{m['image_size']}x{m['channels']}, "
        f"{m['classes']} classes, {m['parameters']:,} parameters, "
        f"{m['mflop_per_image']:.1f} MFLOP an image"
        + (f", test accuracy {m['test_accuracy']:.1%}" if m["test_accuracy"] else "")
        for m in models
    ]
    lines += ["presets (egc train NAME --run DIR):", *(f"  {name}" for name in presets)]
    following = f"egc sample {models[0]['name']} --count 16" if models else "egc demo"
    return Result({"models": models, "presets": presets}, "\n".join(lines), following)


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


# --- demo ----------------------------------------------------------------------------------------


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of training (0)")
    parser.add_argument(
        "--out", default="runs/demo", metavar="DIR", help="where the run is kept (runs/demo)"
    )


def _demo(args: argparse.Namespace) -> Result:
    from egc.api import EGC, prepare
    from egc.config import Config
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


# --- all of them ---------------------------------------------------------------------------------

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
        "sample",
        "draw images",
        [
            "egc sample digits --label 3",
            "egc sample digits --label 3 --label 5 --count 16 --guidance 5 --out fives.png",
            "egc sample runs/mine --count 1000 --sampler dpm++ --steps 20 --out drawn/",
        ],
        _sample_arguments,
        _sample,
    ),
    Verb(
        "classify",
        "name what is in images",
        ["egc classify digits seven.png", "egc classify runs/mine photos/ --top 3 --json"],
        _classify_arguments,
        _classify,
    ),
    Verb(
        "plot",
        "draw the curves of one or several runs",
        ["egc plot runs/digits", "egc plot runs/first runs/second --out both.png"],
        _plot_arguments,
        _plot,
    ),
    Verb(
        "models",
        "list the models and presets that ship with EGC",
        ["egc models", "egc models --json"],
        lambda parser: None,
        _models,
    ),
]
