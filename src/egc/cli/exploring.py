"""Verbs that look into a model: guidance, the way out of the noise, evidence, the energy."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egc.cli.base import (
    Result,
    Verb,
    best_of,
    drawing_arguments,
    drawing_options,
    model_argument,
    seed_and_out,
    write_figure,
)

if TYPE_CHECKING:
    import numpy as np

    from egc.api import EGC

# --- sweep-guidance ------------------------------------------------------------------------------


def _sweep_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("--label", required=True, metavar="CLASS", help="class to draw")
    parser.add_argument(
        "--scales", default="0,1,2,6,20,200", metavar="A,B,...", help="(0,1,2,6,20,200)"
    )
    parser.add_argument("--count", type=int, default=16, metavar="N", help="images a scale (16)")
    parser.add_argument("--steps", type=int, metavar="N", help="sampling steps")
    seed_and_out(parser, "sweep.png", "the figure")


def _sweep(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.errors import ConfigError
    from egc.tasks.figures import sweep_figure

    try:
        scales = [float(part) for part in args.scales.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(
            f"--scales is a list of numbers such as 0,1,2,6; got {args.scales!r}."
        ) from None
    model = load(args.model)
    sweep = model.sweep_guidance(args.label, scales, args.count, steps=args.steps, seed=args.seed)
    name = model.classes[sweep.label]
    out = write_figure(sweep_figure(sweep, name), args.out)
    lines = ["scale    pixel diversity  feature diversity  agreement"]
    lines += [
        f"{row.scale:<8g} {row.pixel_diversity:>15.1f} {row.feature_diversity:>18.3f} "
        f"{row.agreement:>10.0%}"
        for row in sweep.rows
    ]
    data = {"label": name, "out": out, "rows": [row._asdict() for row in sweep.rows]}
    return Result(data, "\n".join([*lines, out]), f"egc watch {args.model} --label {args.label}")


# --- watch ---------------------------------------------------------------------------------------


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("--label", metavar="CLASS", help="class to draw; default: no label")
    parser.add_argument("--sampler", metavar="NAME", help="ddpm, ddim, dpm++ or unipc")
    drawing_arguments(parser, "watch.gif", "the animation, .gif or .webp; a .png beside it")


def _watch(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.tasks.figures import watch_figure

    model = load(args.model)
    watched = model.watch(
        args.label, sampler=args.sampler, seed=args.seed, **drawing_options(args)
    )
    out = watched.save(args.out)
    strip = write_figure(watch_figure(watched, model.classes), str(out.with_suffix(".png")))
    data = {"out": str(out), "strip": strip, "frames": len(watched.frames), "t": watched.times}
    if watched.probabilities is not None:
        data["probabilities"] = {
            name: watched.probabilities[:, index].tolist()
            for index, name in enumerate(model.classes)
        }
    following = f"egc watch {args.model} --seed {args.seed + 1}"
    return Result(data, f"animation  {out}\nstrip      {strip}", following)


# --- evidence ------------------------------------------------------------------------------------


def _evidence_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help="image files; default: samples of the model"
    )
    parser.add_argument("--top", type=int, default=3, metavar="K", help="classes to show (3)")
    seed_and_out(parser, "evidence.png", "the figure")


def _evidence(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.data import read_images
    from egc.errors import ConfigError
    from egc.tasks.figures import evidence_figure

    if args.top < 1:
        raise ConfigError(f"--top must be at least 1; got {args.top}.")
    model = load(args.model)
    names = args.images or [f"seed {args.seed + index}" for index in range(4)]
    if args.images:
        paths = list(map(Path, args.images))
        images = read_images(paths, model.codec.image_size, model.codec.channels)
    else:
        images = model.sample(count=len(names), seed=args.seed).images
    maps = model.evidence(images)
    out = write_figure(evidence_figure(images, maps, model.classes, args.top), args.out)
    means = maps.mean(axis=(2, 3))
    rows: list[dict[str, Any]] = [
        {"image": name, "evidence": dict(zip(model.classes, map(float, row), strict=True))}
        for name, row in zip(names, means, strict=True)
    ]
    text = "\n".join([*(f"{row['image']}\t{best_of(row['evidence'])}" for row in rows), out])
    return Result({"out": out, "images": rows}, text, f"egc watch {args.model}")


# --- energy --------------------------------------------------------------------------------------


def _energy_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument(
        "--data", metavar="SOURCE", help="images to look around; default: the model's own data"
    )
    parser.add_argument("--count", type=int, default=16, metavar="N", help="images (16)")
    seed_and_out(parser, "energy.png", "the figure")


def _energy(args: argparse.Namespace) -> Result:

    from egc.api import load
    from egc.errors import ConfigError
    from egc.tasks.figures import energy_figure

    if args.count < 1:
        raise ConfigError(f"--count must be at least 1; got {args.count}.")
    model = load(args.model)
    images = _images(model, args.data, args.count, args.seed)
    along, planes = model.landscape(images, args.seed)
    out = write_figure(energy_figure(along, planes), args.out)
    data: dict[str, Any] = {
        "out": out,
        "along_noise": dict(zip(map(str, along.times), along.fit, strict=True)),
        "over_plane": {str(plane.t): plane.fit for plane in planes},
    }
    lines = ["goodness of fit (1: the Gaussian it should be)"]
    lines += [f"along noise, t = {t}: {fit:.3f}" for t, fit in data["along_noise"].items()]
    lines += [f"over a plane, t = {t}: {fit:.3f}" for t, fit in data["over_plane"].items()]
    return Result(data, "\n".join([*lines, out]), f"egc sample {args.model} --count 16")


# --- report --------------------------------------------------------------------------------------


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument(
        "--data", metavar="SOURCE", help="images to work on; default: the model's own data"
    )
    parser.add_argument("--figures", metavar="DIR", help="write every figure as a PNG there too")
    seed_and_out(parser, "report.html", "the page")


def _report(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.report.progress import progress_line
    from egc.tasks.gallery import gallery
    from egc.report.page import render, write_page

    model = load(args.model)
    images = _images(model, args.data, 16, args.seed)
    sections = []
    with progress_line("Drawing figures", 11 if model.classes else 5) as line:
        for name, section in gallery(model, images, args.seed):
            sections.append(section)
            if args.figures:
                write_figure(section.picture, str(Path(args.figures) / f"{name}.png"))
            line.advance()
    figures = {"model": args.model, "parameters": f"{int(model.size()['parameters']):,}"}
    if model.facts.get("test_accuracy") is not None:
        figures["test accuracy"] = f"{model.facts['test_accuracy']:.1%}"
    lead = "What one network can do: its forward pass classifies, its backward pass generates."
    write_page(Path(args.out), render(str(args.model), lead, figures, sections))
    data = {"out": args.out, "figures": [section.title for section in sections]}
    return Result(data, f"{len(sections)} figures in {args.out}", f"egc energy {args.model}")


def _images(model: EGC, source: str | None, count: int, seed: int) -> np.ndarray:
    """Test images of the data that was asked for, else of the model's own, else its samples."""
    import numpy as np

    from egc.errors import EGCError
    from egc.training.prepare import prepare

    try:
        test = prepare(source, model.config)[1].test
        images = test.images(np.arange(min(count, len(test))))
    except EGCError as error:
        if source is not None:
            raise
        logging.getLogger("egc").warning("Using samples, not real images: %s", error)
        images = model.sample(count=count, seed=seed).images
    return images if images.dtype == np.uint8 else model.codec.decode(model.codec.encode(images))


VERBS = [
    Verb(
        "sweep-guidance",
        "draw one class at several guidance scales, and measure diversity and agreement",
        [
            "egc sweep-guidance digits --label 3",
            "egc sweep-guidance digits --label 3 --scales 0,2",
        ],
        _sweep_arguments,
        _sweep,
    ),
    Verb(
        "watch",
        "watch an image come out of the noise, and what the network takes it for",
        ["egc watch digits --label 3", "egc watch digits --label 3 --out three.webp"],
        _watch_arguments,
        _watch,
    ),
    Verb(
        "evidence",
        "show where in an image each class is seen",
        ["egc evidence digits seven.png"],
        _evidence_arguments,
        _evidence,
    ),
    Verb(
        "report",
        "draw all figures that fit a model, on one page",
        ["egc report digits", "egc report runs/mine --figures figures/ --out mine.html"],
        _report_arguments,
        _report,
    ),
    Verb(
        "energy",
        "draw the energy around images, beside the Gaussian it should be",
        ["egc energy digits", "egc energy digits --data digits --count 32 --out energy.png"],
        _energy_arguments,
        _energy,
    ),
]
