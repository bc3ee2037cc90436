"""`egc interpolate`: go from one image to another through the noise they come from."""

from __future__ import annotations

import argparse

from egc.cli.base import (
    Result,
    Verb,
    check_images,
    check_suffix,
    command,
    model_argument,
    opened,
    out_argument,
    sampling_arguments,
    sampling_options,
    write_picture,
)
from egc.cli.inputs import check_at_least, check_labels
from egc.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("files", nargs="*", metavar="IMAGE", help="two images to go between")
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("A", "B"), help="or two seeds")
    parser.add_argument("--frames", type=int, default=9, metavar="N", help="steps of the way (9)")
    parser.add_argument("--label", metavar="CLASS", help="class to draw all the way (none)")
    sampling_arguments(parser)
    out_argument(parser, "interpolation.png", "the picture")


def _run(args: argparse.Namespace) -> Result:
    how = sampling_options(args)
    check_at_least(args.frames, 2, "--frames")
    check_suffix(args.out, ".png")
    if bool(args.files) == bool(args.seeds):
        raise ConfigError("Give two images, or --seeds A B, to go between.")
    if args.files and len(args.files) != 2:
        raise ConfigError(f"Two images are needed to go between; got {len(args.files)}.")
    files = check_images(args.files) or None
    check_labels(args.model, [args.label])
    model = opened(args)
    seeds = tuple(args.seeds) if args.seeds else None
    way = model.interpolate(seeds, files, args.label, args.frames, **how)
    out = write_picture(way.picture(), args.out)
    data = {
        "out": out,
        "frames": len(way.images),
        "seeds": args.seeds,
        "images": args.files or None,
        **vars(model.sampling(**how)),
    }
    text = f"above through noise, below blended: {out}"
    return Result(data, text, command("show", "watch", args.model))


VERB = Verb(
    "interpolate",
    "use",
    "go from one image to another through the noise they come from",
    [
        "egc interpolate digits --seeds 3 8",
        "egc interpolate digits one.png two.png --frames 7",
    ],
    _arguments,
    _run,
)
