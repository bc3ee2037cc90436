"""Verbs that say what there is."""

from __future__ import annotations

import argparse

import numpy as np

from egc.cli.base import Result, Verb, settings_argument

# --- data ----------------------------------------------------------------------------------------


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", nargs="?", metavar="SOURCE", help="a data.source; default: list the named ones"
    )
    settings_argument(parser)
    parser.add_argument("--out", metavar="PATH", help="write a picture of some training images")


def _data(args: argparse.Namespace) -> Result:
    from egc.config import Config
    from egc.data.files import data_home
    from egc.data.sources import KINDS, NAMED
    from egc.training.prepare import prepare

    if args.source is None:
        home = str(data_home())
        lines = [f"named sets, looked for in {home} (EGC_DATA):", *(f"  {n}" for n in NAMED)]
        lines += ["others:", *(f"  {kind}" for kind in KINDS)]
        found = {"home": home, "named": list(NAMED), "others": list(KINDS)}
        return Result(found, "\n".join(lines), "egc data digits --out digits.png")
    _, splits = prepare(args.source, Config().with_settings(args.settings))
    train = splits.train
    data = {
        "source": args.source,
        **{f"{name}_images": len(part) for name, part in splits._asdict().items()},
        "image_size": train.image_size,
        "channels": train.channels,
        "classes": train.classes,
    }
    counts = ", ".join(f"{len(part):,} {name}" for name, part in splits._asdict().items())
    size, some = train.image_size, ", ".join(train.classes[:10])
    more = ", ..." if len(train.classes) > 10 else ""
    text = (
        f"images   {counts}\nsize     {size}x{size}, {'grey' if train.channels == 1 else 'colour'}"
        f"\nclasses  {f'{len(train.classes)}: {some}{more}' if some else 'none'}"
    )
    if args.out:
        data["out"] = _picture(train.take(0, 64, seed=0)[0], args.out)
        text += f"\npicture  {args.out}"
    return Result(data, text, f"egc train PRESET --run DIR --set data.source={args.source}")


def _picture(images: np.ndarray, out: str) -> str:
    from pathlib import Path

    from egc.errors import ConfigError
    from egc.report.grid import image_grid

    if images.dtype != np.uint8:
        raise ConfigError("Stored latents are no pictures; leave out --out.")
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    image_grid(images).save(out)
    return out


VERBS = [
    Verb(
        "data",
        "look into a data set, fetching it if it is one of the named ones",
        ["egc data", "egc data cifar10 --out cifar10.png", "egc data folder:photos --json"],
        _data_arguments,
        _data,
    ),
]
