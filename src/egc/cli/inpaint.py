"""`egc inpaint`: fill a part of an image."""

from __future__ import annotations

import argparse

from egc.cli.base import (
    Result,
    Verb,
    check_images,
    check_name,
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
    parser.add_argument("image", metavar="IMAGE", help="an image file")
    parser.add_argument("mask_file", nargs="?", metavar="MASK", help="an image; white is filled")
    parser.add_argument(
        "--mask",
        metavar="SHAPE",
        help="instead of a file: center, left, right, top, bottom, random-strokes",
    )
    parser.add_argument("--label", metavar="CLASS", help="class to fill towards (none)")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="images to make (1)")
    sampling_arguments(parser, skip=("sampler",))
    seed_argument(parser)
    out_argument(parser, "inpainted.png", "x.png: one picture; x.npz: arrays; else a directory")


def _run(args: argparse.Namespace) -> Result:
    from egc.tasks.masks import SHAPES

    how = sampling_options(args)
    check_at_least(args.count, 1, "--count")
    check_at_least(args.seed, 0, "--seed")
    check_samples_file(args.out)
    if (args.mask is None) == (args.mask_file is None):
        raise ConfigError("Say what to fill: a MASK file, or --mask with a shape such as center.")
    if args.mask is not None:
        check_name(args.mask, SHAPES, "mask")
    check_images([args.image, *([args.mask_file] if args.mask_file else [])])
    check_labels(args.model, [args.label])
    model = opened(args)
    mask = args.mask or args.mask_file
    filled = model.inpaint(args.image, mask, args.label, args.count, seed=args.seed, **how)
    out = filled.save(args.out)
    data = {"out": str(out), "count": len(filled), **filled.about()}
    target = model.classes[0] if model.classes else None
    following = command("show", "watch", args.model)
    if target is not None:
        following = command("edit", args.model, args.image, "--to", target)
    return Result(data, f"{len(filled)} filled in {out}", following)


VERB = Verb(
    "inpaint",
    "use",
    "fill a part of an image",
    [
        "egc inpaint digits seven.png --mask center --label 7 --count 6",
        "egc inpaint runs/mine photo.png mask.png --out filled/",
    ],
    _arguments,
    _run,
)
