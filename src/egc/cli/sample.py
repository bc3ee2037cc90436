"""`egc sample`: draw images."""

from __future__ import annotations

import argparse
from pathlib import Path

from egc.cli.base import (
    Result,
    Verb,
    command,
    model_argument,
    opened,
    out_argument,
    sampling_arguments,
    sampling_options,
    seed_argument,
)
from egc.cli.inputs import check_at_least, check_labels, check_samples_file
from egc.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument(
        "--label",
        dest="labels",
        nargs="+",
        action="extend",
        metavar="CLASS",
        help="classes to draw, taken in turn (none: draw freely)",
    )
    parser.add_argument("--count", type=int, metavar="N", help="images to make (one a label)")
    parser.add_argument(
        "--compose",
        choices=("and", "not"),
        help="draw what is of all labels, or of the first and none of the others",
    )
    sampling_arguments(parser)
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="images at once (as many as fit)"
    )
    seed_argument(parser)
    out_argument(parser, "samples.png", "x.png: one picture; x.npz: arrays; else a directory")


def _run(args: argparse.Namespace) -> Result:
    how = sampling_options(args)
    check_at_least(args.count, 1, "--count")
    check_at_least(args.batch_size, 1, "--batch-size")
    check_at_least(args.seed, 0, "--seed")
    check_samples_file(args.out)
    labels = args.labels or []
    if args.compose and len(labels) < 2:
        raise ConfigError(f"--compose takes at least two labels; got {len(labels)}.")
    check_labels(args.model, labels)
    model = opened(args)
    from egc.distributed import is_main
    from egc.tasks.compose import compose
    from egc.tasks.sample import sample

    sampling = model.sampling(**how)
    if args.compose:
        count = args.count or 1
        samples = compose(model, labels, args.compose, count, sampling=sampling, seed=args.seed)
    else:
        samples = sample(
            model,
            args.labels,
            args.count,
            sampling=sampling,
            seed=args.seed,
            batch_size=args.batch_size,
            shared=True,
        )
    path = samples.save(args.out) if is_main() else Path(args.out)
    data = {"out": str(path), "count": len(samples), **samples.about()}
    if args.compose:
        data["compose"] = {"mode": args.compose, "labels": labels}
    images = "1 image" if len(samples) == 1 else f"{len(samples)} images"
    words = ["sample", args.model]
    if model.classes:
        words += ["--label", model.classes[(samples.labels[-1] + 1) % len(model.classes)]]
    following = command(*words, "--seed", samples.seeds[-1] + 1)
    return Result(data, f"{images} in {path}", following)


VERB = Verb(
    "sample",
    "use",
    "draw images",
    [
        "egc sample digits --label 3",
        "egc sample digits --label 3 5 --count 16 --guidance 5 --out fives.png",
        "egc sample digits --label 3 5 --compose and --count 8",
        "egc sample runs/mine --count 1000 --sampler dpm++ --steps 20 --out samples/",
    ],
    _arguments,
    _run,
)
