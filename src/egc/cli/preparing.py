"""Verbs that prepare what models are made of: autoencoders, latents, published weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from egc.cli.base import Result, Verb, settings_argument

# --- train-codec ---------------------------------------------------------------------------------

RECIPE_OPTIONS = {
    "factor": "pixels a latent position stands for, along a side (4)",
    "channels": "channels of the latents (4)",
    "width": "channels of the network at full resolution (64)",
    "steps": "training steps (20000)",
    "batch_size": "images a step (32)",
    "lr": "learning rate (1e-3)",
    "kl": "weight of the KL term (1e-6)",
    "seed": "of weights, order and noise (0)",
}


def _train_codec_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a data.source, such as folder:photos")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the autoencoder goes")
    for name, text in RECIPE_OPTIONS.items():
        kind = float if name in ("lr", "kl") else int
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text)
    parser.add_argument("--no-flip", action="store_true", help="do not mirror training images")
    settings_argument(parser)


def _train_codec(args: argparse.Namespace) -> Result:
    from egc.config import Config
    from egc.data import open_source
    from egc.training.autoencoder import Recipe, train_autoencoder

    given = {name: getattr(args, name) for name in RECIPE_OPTIONS}
    given = {name: value for name, value in given.items() if value is not None}
    recipe = Recipe.from_dict({**given, "flip": not args.no_flip})
    config = Config().replace(data={"source": args.source}).with_settings(args.settings)
    figures = train_autoencoder(recipe, open_source(config.data), Path(args.out))
    text = (
        f"autoencoder  {args.out}\n"
        f"error        {figures['mean_absolute_error']:.2f} of 255 on average, "
        f"PSNR {figures['psnr']:.1f} dB, on {figures['images']:,} test images\n"
        f"picture      {Path(args.out) / 'reconstructions.png'}"
    )
    following = (
        "egc train PRESET --run DIR --set codec.kind=latent "
        f"--set codec.autoencoder={args.out} --set data.source={args.source}"
    )
    return Result({"out": args.out, **figures}, text, following)


# --- encode --------------------------------------------------------------------------------------


def _encode_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "preset", metavar="PRESET|FILE.toml", help="which data and which autoencoder"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="where the latents go")
    parser.add_argument("--flip", action="store_true", help="store mirrored twins too")
    parser.add_argument(
        "--shard", type=int, default=4096, metavar="N", help="images a file (4096)"
    )
    settings_argument(parser)


def _encode(args: argparse.Namespace) -> Result:
    import torch

    from egc.config import Config
    from egc.data.latents import encode_parts
    from egc.data.sources import open_parts
    from egc.errors import ConfigError
    from egc.distributed import process_index

    if args.shard < 1:
        raise ConfigError(f"--shard must be at least 1; got {args.shard}.")
    config = Config.load(args.preset).with_settings(args.settings)
    device = (
        f"cuda:{process_index() % torch.cuda.device_count()}"
        if torch.cuda.is_available()
        else "cpu"
    )
    out = Path(args.out)
    index = encode_parts(
        open_parts(config.data),
        config,
        out,
        flip=args.flip,
        shard_images=args.shard,
        device=device,
    )
    counts = ", ".join(f"{count:,} {name}" for name, count in index["parts"].items())
    shape = "x".join(map(str, index["shape"]))
    text = (
        f"{counts}: latents of {shape}{' and their mirrored twins' if args.flip else ''} in {out}"
    )
    following = f"egc train {args.preset} --run DIR --set data.source=latents:{out}"
    return Result({"out": str(out), **index}, text, following)


VERBS = [
    Verb(
        "train-codec",
        "train an autoencoder for your images; the same command again resumes",
        [
            "egc train-codec cifar10 --out codecs/cifar10 --factor 2 --width 16 --steps 3000",
            "egc train-codec folder:photos --out codecs/photos --set data.image_size=256",
        ],
        _train_codec_arguments,
        _train_codec,
    ),
    Verb(
        "encode",
        "turn a data set into latents, once; the same command again goes on",
        [
            "egc encode imagenet256 --out latents/imagenet --flip",
            "egc encode church256 --out latents/church --set codec.autoencoder=codecs/mine",
        ],
        _encode_arguments,
        _encode,
    ),
]
