"""`egc train`: train a model; the same command again resumes."""

from __future__ import annotations

import argparse
import time
from typing import Any

from egc.cli.base import Result, Verb, command, settings_argument, settings_words
from egc.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET|FILE.toml", help="a preset's name or a file")
    # torchrun takes `--run` for an abbreviation of an option of its own: hence the second name.
    parser.add_argument("--run", "--run-dir", metavar="DIR", help="where the run is kept")
    settings_argument(parser)
    parser.add_argument(
        "--from",
        dest="start_from",
        metavar="MODEL",
        help="begin with the weights of a model, also one of other classes or sizes",
    )
    parser.add_argument(
        "--no-report",
        action="store_true",
        help="save the model and stop: no test accuracy, samples and page at the end",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show the configuration, its size and its cost, and stop; needs no data",
    )


def _run(args: argparse.Namespace) -> Result:
    from egc.config import Config

    config = Config.load(args.preset).with_settings(args.settings)
    if args.start_from:
        from egc.hub import find_model

        find_model(args.start_from)  # before anything is prepared
    if args.dry_run:
        return _dry_run(args, config)
    if not args.run:
        raise ConfigError("Where is the run to be kept? Say --run DIR.")
    from egc.api import EGC
    from egc.training.run import Run

    started = time.monotonic()
    model = EGC.fit(
        preset=config, run=args.run, start_from=args.start_from, report=not args.no_report
    )
    run = Run(args.run)
    data = {
        "run": str(run.path),
        "model": str(run.model),
        "report": str(run.report) if run.report.exists() else None,
        "accuracy": model.facts.get("test_accuracy"),
        "steps": model.facts["trained_steps"],
        "seconds": round(time.monotonic() - started, 1),
    }
    lines = {"model": data["model"], "report": data["report"]}
    if data["accuracy"] is not None:
        lines = {"test accuracy": f"{data['accuracy']:.1%}", **lines}
    text = "\n".join(f"{name:<13}  {value}" for name, value in lines.items() if value)
    use = ["sample", args.run, "--count", 16] if model.net.draws else ["evaluate", args.run]
    return Result(data, text, command(*use))


def _dry_run(args: argparse.Namespace, config: Any) -> Result:
    from egc.training.cost import estimate

    config, classes, cost, assumed = estimate(config)
    about = [
        f"{cost.parameters:,} parameters, {cost.mflop_per_image:,.1f} MFLOP an image",
        f"{cost.steps:,} steps of {config.train.batch_size} images, "
        f"each {cost.passes:.3g} passes: {cost.tflop:,.4g} TFLOP of training",
    ]
    if assumed:
        about.append(f"assumed, as the data is not at hand: {', '.join(assumed)}")
    text = "\n".join([config.to_toml(), *(f"# {line}" for line in about)])
    data = {"config": config.to_dict(), **cost._asdict(), "tflop": cost.tflop}
    data |= {"classes": classes, "assumed": assumed}
    words = ["train", args.preset, "--run", args.run or "runs/mine"]
    words += settings_words(args.settings)
    words += ["--from", args.start_from] if args.start_from else []
    return Result(data, text, command(*words))


VERB = Verb(
    "train",
    "train",
    "train a model; the same command again resumes",
    [
        "egc train digits --run runs/digits",
        "egc train folder32 --run runs/mine --set data.source=folder:photos",
        "egc train my.toml --run runs/more --from runs/mine --set train.steps=20000",
        "egc train cifar10 --dry-run",
    ],
    _arguments,
    _run,
)
