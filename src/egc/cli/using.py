"""Verbs that use a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egc.config import SAMPLERS
from egc.cli.base import Result, Verb, model_argument

if TYPE_CHECKING:
    from egc.api import EGC
    from egc.tasks.sample import Samples

# --- sample --------------------------------------------------------------------------------------


def _sample_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument(
        "--label",
        dest="labels",
        action="append",
        metavar="CLASS",
        help="class to draw; repeat for several, taken in turn; default: no label",
    )
    parser.add_argument("--count", type=int, metavar="N", help="images in all (one a label)")
    parser.add_argument(
        "--compose",
        choices=("and", "not"),
        help="draw what is of all labels, or of the first and none of the others",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="sampling steps")
    parser.add_argument("--sampler", metavar="NAME", help=", ".join(SAMPLERS))
    parser.add_argument("--guidance", type=float, metavar="W", help="how strongly to insist")
    parser.add_argument(
        "--cfg",
        type=float,
        metavar="S",
        help="classifier-free guidance, of label-conditioned networks (1: none)",
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="images at once")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first image (0)")
    parser.add_argument(
        "--out",
        default="samples.png",
        metavar="PATH",
        help="x.png: one picture; x.npz: arrays; else a directory of images (samples.png)",
    )


def _composed(model: EGC, args: argparse.Namespace) -> Samples:
    """Samples under a sum or difference of energies."""
    options = {"steps": args.steps, "guidance": args.guidance, "seed": args.seed}
    return model.compose(args.labels or [], args.compose, args.count or 1, **options)


def _sample(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.distributed import is_main

    model = load(args.model)
    samples = (
        _composed(model, args)
        if args.compose
        else model.sample(
            args.labels,
            args.count,
            args.steps,
            args.sampler,
            args.guidance,
            args.seed,
            cfg=args.cfg,
            batch_size=args.batch_size,
        )
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
    model_argument(parser)
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files or directories")
    parser.add_argument("--top", type=int, default=1, metavar="K", help="classes to show (1)")
    parser.add_argument(
        "--flag-novel",
        action="store_true",
        help="say which images are stranger than 95 %% of those the model was checked with",
    )


def _classify(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.data.images import image_files, read_images
    from egc.errors import ConfigError
    from egc.tasks.out_of_distribution import is_novel, stored_threshold

    if args.top < 1:
        raise ConfigError(f"--top must be at least 1; got {args.top}.")
    model = load(args.model)
    threshold = stored_threshold(model)["threshold"] if args.flag_novel else 0
    paths = []
    for path in map(Path, args.images):
        paths += image_files(path) if path.is_dir() else [path]
    images = read_images(paths, model.codec.image_size, model.codec.channels)
    probabilities = model.predict_proba(images)
    energies = model.energy(images)
    rows: list[dict[str, Any]] = []
    for path, row, energy in zip(paths, probabilities, energies, strict=True):
        best = row.argsort()[::-1][: args.top]
        classes = [{"class": model.classes[i], "probability": float(row[i])} for i in best]
        rows.append({"image": str(path), "classes": classes, "energy": float(energy)})
    if args.flag_novel:
        for row, novel, score in zip(rows, *is_novel(model, images), strict=True):
            row |= {"novel": bool(novel), "novelty": float(score)}
    lines = [
        f"{row['image']}\t"
        + "  ".join(f"{c['class']} {c['probability']:.1%}" for c in row["classes"])
        + f"\tenergy {row['energy']:.1f}"
        + (_familiarity(row, threshold) if args.flag_novel else "")
        for row in rows
    ]
    first = rows[0]["classes"][0]["class"]
    data: dict[str, Any] = {"images": rows}
    if args.flag_novel:
        data["novelty_threshold"] = threshold
    return Result(data, "\n".join(lines), f"egc sample {args.model} --label {first} --count 9")


def _familiarity(row: dict[str, Any], threshold: float) -> str:
    if row["novel"]:
        return f"\tNOVEL (score {row['novelty']:.1f} above {threshold:.1f})"
    return f"\tfamiliar (score {row['novelty']:.1f} of {threshold:.1f})"


VERBS = [
    Verb(
        "sample",
        "draw images",
        [
            "egc sample digits --label 3",
            "egc sample digits --label 3 --label 5 --count 16 --guidance 5 --out fives.png",
            "egc sample digits --label 3 --label 5 --compose and --count 8",
            "egc sample runs/mine --count 1000 --sampler dpm++ --steps 20 --out drawn/",
        ],
        _sample_arguments,
        _sample,
    ),
    Verb(
        "classify",
        "name what is in images",
        [
            "egc classify digits seven.png",
            "egc classify runs/mine photos/ --top 3 --json",
            "egc classify runs/mine photos/ --flag-novel",
        ],
        _classify_arguments,
        _classify,
    ),
]
