"""`egc demo`: the shortest way to see what it is about."""

from __future__ import annotations

import argparse
import logging
import time

from egc.cli.base import Result, Verb, command, seed_argument
from egc.errors import FailedError

log = logging.getLogger("egc")


def _arguments(parser: argparse.ArgumentParser) -> None:
    seed_argument(parser, "of training")
    parser.add_argument(
        "--out", default="runs/demo", metavar="DIR", help="where the run is kept (runs/demo)"
    )


def _run(args: argparse.Namespace) -> Result:
    from egc.config import Config

    started = time.monotonic()
    config = Config.load("digits-demo").with_settings([f"train.seed={args.seed}"])
    from egc.api import EGC
    from egc.training.run import Run

    run = Run(args.out)
    before = run.saved_config()
    if before is None:
        run.check(config)  # somebody else's directory is left alone
    if before is None or before.train != config.train or run.report.exists():
        run.clear()  # a demonstration starts from scratch, unless one was stopped
        log.info("Training an EGC on 8x8 digits, from scratch.")
    model = EGC.fit(preset=config, run=run.path)
    if not run.report.exists():
        raise FailedError(f"The demonstration has a model, {run.model}, and no report.")
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
    return Result(data, text, command("sample", data["model"], "--label", 3, "--count", 16))


VERB = Verb(
    "demo",
    "start",
    "train on handwritten digits in two minutes and write a report",
    ["egc demo", "egc demo --seed 1 --out runs/second --json"],
    _arguments,
    _run,
)
