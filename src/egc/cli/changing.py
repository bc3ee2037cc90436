"""Verbs that change images: fill them, edit them, go from one to another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from egc.cli.base import (
    Result,
    Verb,
    best_of,
    drawing_arguments,
    drawing_options,
    model_argument,
    write_figure,
)

# --- inpaint -------------------------------------------------------------------------------------


def _inpaint_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("image", metavar="IMAGE", help="an image file")
    parser.add_argument("mask_file", nargs="?", metavar="MASK", help="an image; white is filled")
    parser.add_argument(
        "--mask",
        metavar="SHAPE",
        help="instead of a file: center, left, right, top, bottom, random-strokes",
    )
    parser.add_argument("--label", metavar="CLASS", help="class to fill towards")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="ways to fill it (1)")
    drawing_arguments(parser, "inpainted.png", "x.png, x.npz or a directory")


def _inpaint(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.errors import ConfigError

    if (args.mask is None) == (args.mask_file is None):
        raise ConfigError("Say what to fill: a MASK file, or --mask with a shape such as center.")
    model = load(args.model)
    mask = args.mask_file
    if args.mask is not None:
        mask = _shape(args.mask)
    filled = model.inpaint(
        args.image, mask, args.label, args.count, seed=args.seed, **drawing_options(args)
    )
    out = filled.save(args.out)
    data = {"out": str(out), "count": len(filled), "seeds": filled.seeds.tolist()}
    text = f"{len(filled)} filled in {out}"
    return Result(data, text, f"egc edit {args.model} {args.image} --to CLASS")


def _shape(name: str) -> str:
    from egc.errors import ConfigError, suggest
    from egc.tasks.inpaint import SHAPES

    if name not in SHAPES:
        raise ConfigError(f"There is no mask {name!r}. {suggest(name, SHAPES)}")
    return name


# --- interpolate ---------------------------------------------------------------------------------


def _interpolate_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="two images to go between")
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("A", "B"), help="or two seeds")
    parser.add_argument("--frames", type=int, default=9, metavar="N", help="(9)")
    parser.add_argument("--label", metavar="CLASS", help="class to draw all the way")
    parser.add_argument("--steps", type=int, metavar="N", help="sampling steps")
    parser.add_argument("--guidance", type=float, metavar="W", help="how strongly to insist")
    parser.add_argument(
        "--cfg", type=float, metavar="S", help="classifier-free guidance (1: none)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="short for --seeds N N+1")
    parser.add_argument(
        "--out", default="interpolation.png", metavar="PATH", help="(interpolation.png)"
    )


def _interpolate(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.errors import ConfigError

    seeds = args.seeds or (None if args.seed is None else (args.seed, args.seed + 1))
    if bool(args.images) == bool(seeds):
        raise ConfigError("Give two images, or --seeds A B, to go between.")
    if args.images and len(args.images) != 2:
        raise ConfigError(f"Two images are needed to go between; got {len(args.images)}.")
    model = load(args.model)
    way = model.interpolate(
        tuple(seeds) if seeds else None,
        list(map(Path, args.images)) or None,
        args.label,
        args.frames,
        **drawing_options(args),
    )
    out = write_figure(way.picture(), args.out)
    data = {"out": out, "frames": len(way.images), "seeds": seeds and list(seeds)}
    text = f"above through noise, below blended: {out}"
    return Result(data, text, f"egc watch {args.model}")


# --- edit ----------------------------------------------------------------------------------------


def _edit_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    parser.add_argument("--to", required=True, metavar="CLASS", help="the class to become")
    parser.add_argument(
        "--strength",
        default="auto",
        metavar="S",
        help="0 to 1, or auto: the smallest that changes the class (auto)",
    )
    drawing_arguments(parser, "edited.png", "before, after and difference")


def _edit(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.errors import ConfigError
    from egc.tasks.figures import edit_figure

    strength: float | str = args.strength
    if strength != "auto":
        try:
            strength = float(strength)
        except ValueError:
            raise ConfigError(
                f"--strength is a number from 0 to 1, or auto; got {args.strength!r}."
            ) from None
    model = load(args.model)
    paths = list(map(Path, args.images))
    edit = model.edit(paths, args.to, strength, seed=args.seed, **drawing_options(args))
    out = write_figure(edit_figure(edit, model.classes), args.out)
    rows: list[dict[str, Any]] = []
    for index, path in enumerate(paths):
        first, second = (
            {name: float(p) for name, p in zip(model.classes, row, strict=True)}
            for row in (edit.probabilities_before[index], edit.probabilities_after[index])
        )
        rows.append(
            {
                "image": str(path),
                "strength": float(edit.strengths[index]),
                "changed": bool(edit.flipped[index]),
                "before": first,
                "after": second,
            }
        )
    lines = [
        f"{row['image']}\tstrength {row['strength']:.2f}\t"
        f"{best_of(row['before'])} -> {best_of(row['after'])}"
        for row in rows
    ]
    following = f"egc evidence {args.model} {args.images[0]}"
    return Result({"out": out, "images": rows}, "\n".join([*lines, out]), following)


VERBS = [
    Verb(
        "inpaint",
        "fill a part of an image",
        [
            "egc inpaint digits seven.png --mask center --label 7 --count 6",
            "egc inpaint runs/mine photo.png mask.png --out filled/",
        ],
        _inpaint_arguments,
        _inpaint,
    ),
    Verb(
        "interpolate",
        "go from one image to another through the noise they come from",
        [
            "egc interpolate digits --seeds 3 8",
            "egc interpolate digits one.png two.png --frames 7",
        ],
        _interpolate_arguments,
        _interpolate,
    ),
    Verb(
        "edit",
        "change an image into another class, as little as it takes",
        [
            "egc edit digits seven.png --to 1",
            "egc edit digits seven.png --to 1 --strength 0.5 --out edited.png",
        ],
        _edit_arguments,
        _edit,
    ),
]
