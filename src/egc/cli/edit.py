"""`egc edit`: change an image into another class, as little as it takes."""

from __future__ import annotations

import argparse
from typing import Any

from egc.cli.base import (
    Result,
    Verb,
    best_of,
    check_suffix,
    command,
    model_argument,
    opened,
    out_argument,
    sampling_arguments,
    sampling_options,
    seed_argument,
    write_picture,
)
from egc.cli.inputs import check_at_least, check_labels, listed_images
from egc.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("files", nargs="+", metavar="IMAGE", help="image files or directories")
    parser.add_argument("--to", required=True, metavar="CLASS", help="the class to become")
    parser.add_argument(
        "--strength",
        default="auto",
        metavar="X",
        help="0 to 1, or auto: the smallest that changes the class (auto)",
    )
    sampling_arguments(parser)
    seed_argument(parser)
    out_argument(parser, "edited.png", "before, after and difference")


def _run(args: argparse.Namespace) -> Result:
    how = sampling_options(args)
    strength = _strength(args.strength)
    check_at_least(args.seed, 0, "--seed")
    check_suffix(args.out, ".png")
    files = listed_images(args.files)
    check_labels(args.model, [args.to])
    model = opened(args)
    found = model.edit(files, args.to, strength, seed=args.seed, **how)
    out = write_picture(found.picture(), args.out)
    rows: list[dict[str, Any]] = []
    for index, path in enumerate(files):
        before, after = (
            dict(zip(found.classes, table[index].tolist(), strict=True))
            for table in (found.probabilities_before, found.probabilities_after)
        )
        rows.append(
            {
                "image": str(path),
                "strength": float(found.strengths[index]),
                "changed": bool(found.flipped[index]),
                "before": before,
                "after": after,
            }
        )
    lines = [
        f"{row['image']}\tstrength {row['strength']:.2f}\t"
        f"{best_of(row['before'])} -> {best_of(row['after'])}"
        for row in rows
    ]
    to = found.classes[found.target]
    data = {"out": out, "to": to, "images": rows, **vars(model.sampling(**how)), "seed": args.seed}
    following = command("show", "evidence", args.model, files[0])
    return Result(data, "\n".join([*lines, out]), following)


def _strength(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ConfigError(f"--strength must be 0 to 1, or auto; got {text!r}.")
    return value


VERB = Verb(
    "edit",
    "use",
    "change an image into another class, as little as it takes",
    [
        "egc edit digits seven.png --to 1",
        "egc edit digits seven.png --to 1 --strength 0.5 --out edited.png",
    ],
    _arguments,
    _run,
)
