"""`egc show KIND MODEL`: look into a model, under the names that the Python API has."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from egc.cli.base import (
    Result,
    Verb,
    check_name,
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
from egc.cli.inputs import check_at_least, check_labels, listed_images, some_pictures
from egc.errors import ConfigError

if TYPE_CHECKING:
    from egc.api import EGC

SCALES = (0.0, 1.0, 2.0, 6.0, 20.0, 200.0)
SAMPLES = 4
"""of the model, which evidence is shown of where no images are given"""


class Figure(NamedTuple):
    """What a KIND is shown by."""

    run: Callable[[argparse.Namespace, EGC], Result]
    flags: tuple[str, ...]
    """the arguments it takes, besides those that all do"""
    out: str
    suffixes: tuple[str, ...] = (".png",)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help=", ".join(FIGURES))
    model_argument(parser)
    parser.add_argument(
        "files", nargs="*", metavar="IMAGE", help="evidence: images (4 samples of the model)"
    )
    parser.add_argument(
        "--label", metavar="CLASS", help="sweep_guidance, watch: class to draw (none)"
    )
    scales = " ".join(f"{scale:g}" for scale in SCALES)
    parser.add_argument(
        "--scales",
        type=float,
        nargs="+",
        metavar="X",
        help=f"sweep_guidance: what to try ({scales})",
    )
    parser.add_argument(
        "--count", type=int, metavar="N", help="sweep_guidance: images to make a scale (16)"
    )
    parser.add_argument("--top", type=int, metavar="N", help="evidence: classes to show (3)")
    parser.add_argument("--images", type=int, metavar="N", help="landscape: images to use (16)")
    parser.add_argument(
        "--data", metavar="SOURCE", help="landscape: where from (the test images of its own data)"
    )
    sampling_arguments(parser)
    seed_argument(parser)
    out_argument(parser, None, "the figure (NAME.png; of watch an animation, .gif or .webp)")


def _run(args: argparse.Namespace) -> Result:
    from egc.config import SampleConfig
    from egc.config.parse import build

    name = args.kind.replace("-", "_")
    check_name(name, FIGURES, "figure")
    figure = FIGURES[name]
    for flag in {flag for each in FIGURES.values() for flag in each.flags} - set(figure.flags):
        if getattr(args, flag):
            word = "IMAGE" if flag == "files" else f"--{flag}"
            users = " and ".join(each for each in FIGURES if flag in FIGURES[each].flags)
            raise ConfigError(f"{word} is for {users}; {name} does not use it.")
    for flag in ("count", "top", "images"):
        check_at_least(getattr(args, flag), 2 if flag == "count" else 1, f"--{flag}")
    check_at_least(args.seed, 0, "--seed")
    if name == "sweep_guidance" and args.label is None:
        raise ConfigError("sweep_guidance needs a class to draw: --label CLASS.")
    sampling_options(args)
    for scale in args.scales or ():
        build(SampleConfig, {"guidance": scale}, "--scales: ")
    args.files = listed_images(args.files)
    args.out = str(check_suffix(args.out or figure.out, *figure.suffixes))
    check_labels(args.model, [args.label])
    return figure.run(args, opened(args))


def _sweep_guidance(args: argparse.Namespace, model: EGC) -> Result:
    how = sampling_options(args)
    scales, count = args.scales or SCALES, args.count or 16
    sweep = model.sweep_guidance(args.label, scales, count, seed=args.seed, **how)
    out = write_picture(sweep.picture(), args.out)
    lines = ["scale    pixel diversity  feature diversity  agreement"]
    lines += [
        f"{row.scale:<8g} {row.pixel_diversity:>15.1f} {row.feature_diversity:>18.3f} "
        f"{row.agreement:>10.0%}"
        for row in sweep.rows
    ]
    settings = {**vars(model.sampling(**how)), "seed": args.seed}
    del settings["guidance"]  # it is what the rows differ in
    rows = [row._asdict() for row in sweep.rows]
    data = {"out": out, "label": sweep.label, "count": count, "rows": rows, **settings}
    following = command("show", "watch", args.model, "--label", args.label)
    return Result(data, "\n".join([*lines, out]), following)


def _watch(args: argparse.Namespace, model: EGC) -> Result:
    how = sampling_options(args)
    watched = model.watch(args.label, seed=args.seed, **how)
    out = watched.save(args.out)
    strip = write_picture(watched.picture(), str(out.with_suffix(".png")))
    data: dict[str, Any] = {
        "out": str(out),
        "strip": strip,
        "label": args.label,
        "frames": len(watched.frames),
        "t": watched.times,
        **vars(model.sampling(**how)),
        "seed": args.seed,
    }
    if watched.probabilities is not None:
        data["probabilities"] = dict(
            zip(watched.classes, watched.probabilities.T.tolist(), strict=True)
        )
    label = [] if args.label is None else ["--label", args.label]
    following = command("show", "watch", args.model, *label, "--seed", args.seed + 1)
    return Result(data, f"animation  {out}\nstrip      {strip}", following)


def _evidence(args: argparse.Namespace, model: EGC) -> Result:
    names = [str(path) for path in args.files]
    images: Any = args.files
    if not names:
        samples = model.sample(count=SAMPLES, seed=args.seed)
        names, images = [f"seed {seed}" for seed in samples.seeds], samples.images
    found, top = model.evidence(images), args.top or 3
    out = write_picture(found.picture(top), args.out)
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        classes = [
            {
                "class": found.classes[each],
                "probability": float(found.probabilities[index, each]),
                "evidence": float(found.strongest[index, each]),
            }
            for each in found.ranked(index)[:top]
        ]
        rows.append({"image": name, "classes": classes})
    lines = [
        f"{row['image']}\t"
        + "  ".join(
            f"{c['class']} {c['probability']:.1%} (evidence {c['evidence']:.0%})"
            for c in row["classes"]
        )
        for row in rows
    ]
    following = command("show", "watch", args.model)
    return Result({"out": out, "images": rows}, "\n".join([*lines, out]), following)


def _landscape(args: argparse.Namespace, model: EGC) -> Result:
    count = args.images or 16
    found = model.landscape(some_pictures(model, args.data, count, args.seed), args.seed)
    out = write_picture(found.picture(), args.out)
    along = found.along
    data: dict[str, Any] = {
        "out": out,
        "along_noise": dict(zip(map(str, along.times), along.fit, strict=True)),
        "over_plane": {str(plane.t): plane.fit for plane in found.planes},
        "seed": args.seed,
    }
    lines = ["goodness of fit (1: the Gaussian it should be)"]
    lines += [f"along noise, t = {t}: {fit:.3f}" for t, fit in data["along_noise"].items()]
    lines += [f"over a plane, t = {t}: {fit:.3f}" for t, fit in data["over_plane"].items()]
    following = command("sample", args.model, "--count", 16)
    return Result(data, "\n".join([*lines, out]), following)


SAMPLING = ("sampler", "steps", "cfg")
FIGURES = {
    "sweep_guidance": Figure(
        _sweep_guidance, ("label", "scales", "count", *SAMPLING), "sweep.png"
    ),
    "watch": Figure(_watch, ("label", "guidance", *SAMPLING), "watch.gif", (".gif", ".webp")),
    "evidence": Figure(_evidence, ("files", "top"), "evidence.png"),
    "landscape": Figure(_landscape, ("images", "data"), "landscape.png"),
}

VERB = Verb(
    "show",
    "use",
    "look into a model: " + ", ".join(FIGURES),
    [
        "egc show sweep_guidance digits --label 3 --scales 0 1 2 6",
        "egc show watch digits --label 3 --out three.webp",
        "egc show evidence digits seven.png",
        "egc show landscape digits --images 32",
    ],
    _arguments,
    _run,
)
