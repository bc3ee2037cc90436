"""`egc codec train` and `egc codec encode`: an autoencoder of one's own, and stored latents."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from egc.cli.base import (
    Result,
    Verb,
    add_options,
    command,
    read_options,
    settings_argument,
    settings_words,
)
from egc.errors import ConfigError

SEE = "see egc codec --help"


def _arguments(parser: argparse.ArgumentParser) -> None:
    from egc.training.recipe import Recipe

    actions = parser.add_subparsers(dest="action", metavar="train|encode", required=True)
    # What every verb has can be said after the action too.
    both = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    both.add_argument("--out", required=True, metavar="DIR", help="where the result goes")
    both.add_argument("--import", dest="imports", action="append", metavar="MODULE", help=SEE)
    both.add_argument("--json", action="store_true", help=SEE)
    both.add_argument("--debug", action="store_true", help=SEE)

    train = actions.add_parser("train", parents=[both], help="an autoencoder for your images")
    train.add_argument("source", metavar="SOURCE", help="a data.source, such as folder:photos")
    settings_argument(train, "data.KEY=VALUE")
    add_options(train, Recipe, title="recipe")

    encode = actions.add_parser("encode", parents=[both], help="a data set becomes latents, once")
    what = "which data and which autoencoder"
    encode.add_argument("preset", metavar="PRESET|FILE.toml", help=what)
    settings_argument(encode)
    encode.add_argument("--flip", action="store_true", help="store mirrored twins too (no)")
    shard = "images a file (%(default)s)"
    encode.add_argument("--shard", type=int, default=4096, metavar="N", help=shard)


def _run(args: argparse.Namespace) -> Result:
    return _train(args) if args.action == "train" else _encode(args)


def _check_settings(settings: Iterable[str], *sections: str, hint: str) -> None:
    """What would not be used is refused."""
    for setting in settings:
        if setting.partition(".")[0].strip() not in sections:
            allowed = " or ".join(f"{section}.KEY=VALUE" for section in sections)
            raise ConfigError(f"--set takes {allowed} here; got {setting!r}. {hint}")


def _train(args: argparse.Namespace) -> Result:
    from egc.training.recipe import Recipe

    _check_settings(args.settings, "data", hint="The rest is set by flags, such as --train-steps.")
    recipe = Recipe.from_dict(read_options(args, Recipe))
    from egc.config import DataConfig
    from egc.data.sources import open_source, with_settings

    data = open_source(with_settings(DataConfig(args.source), args.settings))
    from egc.training.autoencoder import train_autoencoder

    out = Path(args.out)
    figures = train_autoencoder(recipe, data, out)
    text = (
        f"autoencoder  {out}\n"
        f"error        {figures['mean_absolute_error']:.2f} of 255 on average, "
        f"PSNR {figures['psnr']:.1f} dB, on {figures['images']:,} test images\n"
        f"picture      {out / 'reconstructions.png'}"
    )
    settings = [
        f"data.source={args.source}",
        f"data.image_size={data.train.image_size}",
        f"data.channels={data.train.channels}",
        *args.settings,
        "codec.kind=latent",
        f"codec.autoencoder={out}",
    ]
    train = "train", "folder32", "--run", f"runs/{out.name}"
    return Result({"out": args.out, **figures}, text, command(*train, *settings_words(settings)))


def _encode(args: argparse.Namespace) -> Result:
    if args.shard < 1:
        raise ConfigError(f"--shard must be at least 1; got {args.shard}.")
    _check_settings(args.settings, "data", "codec", hint="Encoding uses nothing else.")
    from egc.config import Config

    config = Config.load(args.preset).with_settings(args.settings)
    import torch

    from egc.data.sets.latents import encode_parts
    from egc.data.sources import open_parts
    from egc.distributed import process_index

    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{process_index() % torch.cuda.device_count()}"
    out = Path(args.out)
    parts = open_parts(config.data)
    options = {"flip": args.flip, "shard_images": args.shard, "device": device}
    index = encode_parts(parts, config, out, **options)
    counts = ", ".join(f"{count:,} {name}" for name, count in index["parts"].items())
    shape = "x".join(map(str, index["shape"]))
    twins = " and their mirrored twins" if args.flip else ""
    text = f"{counts}: latents of {shape}{twins} in {out}"
    # Changes to pixels come too late for latents.
    streams = ["augment"] + (["augment_clean"] if config.data.clean_source is None else [])
    late = [
        f"data.{stream}.{key}={str(type(value)()).lower()}"
        for stream in streams
        for key, value in vars(getattr(config.data, stream)).items()
        if value and not (key == "flip" and args.flip)
    ]
    settings = settings_words([*args.settings, f"data.source=latents:{out}", *late])
    train = "train", args.preset, "--run", f"runs/{out.name}"
    return Result({"out": str(out), **index}, text, command(*train, *settings))


VERB = Verb(
    "codec",
    "train",
    "train an autoencoder, or turn a data set into its latents; the same command again resumes",
    [
        "egc codec train cifar10 --out codecs/cifar10 --factor 2 --width 16 --train-steps 3000",
        "egc codec train folder:photos --out codecs/photos --set data.image_size=256",
        "egc codec encode imagenet256 --out latents/imagenet --flip",
        "egc codec encode church256 --out latents/church --set codec.autoencoder=codecs/mine",
    ],
    _arguments,
    _run,
)
