"""`egc import`: a checkpoint that the paper's authors published becomes a model directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from egc.cli.base import Result, Verb, command
from egc.errors import ModelError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT.pt", help="as the authors published it")
    parser.add_argument("--out", required=True, metavar="DIR", help="the model directory to write")
    parser.add_argument("--heads", type=int, default=4, metavar="N", help="attention heads (4)")
    parser.add_argument("--head-width", type=int, default=64, metavar="N", help="of each (64)")
    parser.add_argument(
        "--image-size", type=int, default=32, metavar="N", help="side of the latents to draw (32)"
    )
    parser.add_argument(
        "--autoencoder", metavar="PLACE", help="directory or hub id of the autoencoder"
    )


def _run(args: argparse.Namespace) -> Result:
    if not Path(args.checkpoint).is_file():
        raise ModelError(f"There is no checkpoint {args.checkpoint!r}.")
    from egc.api import EGC

    model = EGC.from_published(
        args.checkpoint,
        heads=args.heads,
        head_width=args.head_width,
        image_size=args.image_size,
        autoencoder=args.autoencoder,
    )
    model.save(args.out)
    network = model.config.network
    data = {
        "model": args.out,
        "classes": len(model.classes),
        "latents": list(model.codec.shape),
        **model.size(),
        "network": {
            "channels": network.channels,
            "multipliers": list(network.multipliers),
            "depth": network.depth,
            "attention": list(network.attention),
            "label_width": network.label_width,
        },
    }
    text = (
        f"{data['parameters']:,} parameters, {data['classes']} classes, "
        f"latents of {'x'.join(map(str, model.codec.shape))}\nmodel  {args.out}"
    )
    following = command("sample", args.out, "--label", model.classes[0], "--count", 4)
    return Result(data, text, following)


VERB = Verb(
    "import",
    "share",
    "make a model of a checkpoint that the paper's authors published",
    ["egc import 256x256_EGC.pt --out models/imagenet"],
    _arguments,
    _run,
)
