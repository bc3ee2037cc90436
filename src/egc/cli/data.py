"""`egc data`: the sources of images there are, and a look into one."""

from __future__ import annotations

import argparse
from typing import Any

from egc.cli.base import Result, Verb, check_suffix, command, settings_argument, settings_words
from egc.errors import ConfigError

PLAIN_LATENTS = (
    "codec.kind=latent",
    "data.augment.flip=false",
    "data.augment_clean.flip=false",
    "data.augment_clean.shift=0",
)
"""what the preset for one's own images needs to train on stored latents"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", nargs="?", metavar="SOURCE", help="what to look into (all sources are listed)"
    )
    settings_argument(parser, "data.KEY=VALUE")
    parser.add_argument("--out", metavar="PATH", help="write a picture of 64 training images")


def _run(args: argparse.Namespace) -> Result:
    if args.out:
        check_suffix(args.out, ".png")
    if args.source is None:
        if args.out or args.settings:
            raise ConfigError("Say which SOURCE to look into, such as egc data digits.")
        return _listed()
    from egc.config import DataConfig
    from egc.data.sources import open_source, with_settings

    splits = open_source(with_settings(DataConfig(args.source), args.settings))
    train = splits.train
    if args.out and train.autoencoder is not None:
        raise ConfigError("Stored latents are no pictures; leave out --out.")
    counts = {name: len(part) for name, part in splits._asdict().items()}
    shape = {"image_size": train.image_size, "channels": train.channels}
    data: dict[str, Any] = {"source": args.source, **shape, "classes": train.classes}
    data |= {f"{name}_images": count for name, count in counts.items()}
    size, colours = train.image_size, "grey" if train.channels == 1 else "colour"
    names = ", ".join(train.classes[:10]) + (", ..." if len(train.classes) > 10 else "")
    text = (
        f"images   {', '.join(f'{count:,} {name}' for name, count in counts.items())}\n"
        f"size     {size}x{size}, {colours}\n"
        f"classes  {f'{len(train.classes)}: {names}' if names else 'none'}"
    )
    if args.out:
        from egc.cli.base import write_picture
        from egc.report.grid import image_grid

        data["out"] = write_picture(image_grid(train.take(0, 64, seed=0)[0]), args.out)
        text += f"\npicture  {args.out}"
    return Result(data, text, _next(args))


def _listed() -> Result:
    from egc.data.files import data_home
    from egc.data.sources import source_forms
    from egc.registry import sources

    def lines(forms: list[str]) -> list[str]:
        about = {form: sources[form.partition(":")[0]].__doc__ or "" for form in forms}
        return [f"  {form:<18} {text.partition(';')[0].rstrip()}" for form, text in about.items()]

    home, forms = str(data_home()), source_forms()
    named = [form for form in forms if ":" not in form]
    others = [form for form in forms if ":" in form]
    title = f"named sets, looked for in {home} (EGC_DATA):"
    text = "\n".join([title, *lines(named), "others:", *lines(others)])
    found = {"home": home, "named": named, "others": others}
    return Result(found, text, command("data", "digits", "--out", "digits.png"))


def _next(args: argparse.Namespace) -> str:
    """Training on this source, by its own preset if it has one."""
    from egc.config import list_presets
    from egc.config.schema import read_preset

    name = args.source.partition(":")[0]
    own = [p for p in list_presets() if read_preset(p)["data"].get("source") == args.source]
    preset = min(own, key=len, default="folder32")
    settings = [*(() if own else [f"data.source={args.source}"]), *args.settings]
    if name == "latents":
        settings += PLAIN_LATENTS
    imports = [word for module in args.imports for word in ("--import", module)]
    return command("train", preset, "--run", f"runs/{name}", *settings_words(settings), *imports)


VERB = Verb(
    "data",
    "start",
    "list the sources of images, or look into one, fetching it if it can be",
    ["egc data", "egc data cifar10 --out cifar10.png", "egc data folder:photos --json"],
    _arguments,
    _run,
)
