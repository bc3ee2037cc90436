"""`egc report`: all figures that fit a model, and the curves of its training, on one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egc.cli.base import (
    Result,
    Verb,
    check_suffix,
    command,
    device_argument,
    opened,
    out_argument,
    seed_argument,
    write_picture,
)
from egc.cli.inputs import check_at_least, some_pictures
from egc.errors import RunError

if TYPE_CHECKING:
    from egc.report.page import Section

PICTURES = 16
"""images that figures are made of"""
LEAD = "What one network can do: its forward pass classifies, its backward pass generates."


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar="MODEL|RUN",
        help="a model, or a run directory; the curves of several runs share their axes",
    )
    device_argument(parser)
    parser.add_argument(
        "--data", metavar="SOURCE", help="images to work on (the test images of its own data)"
    )
    parser.add_argument("--figures", metavar="DIR", help="write every figure as a PNG there too")
    seed_argument(parser)
    out_argument(parser, "report.html", "the page")


def _run(args: argparse.Namespace) -> Result:
    from egc.hub import find_model
    from egc.training.run import Run

    out = check_suffix(args.out, ".html")
    check_at_least(args.seed, 0, "--seed")
    records = {name: Run(name).read_metrics() for name in args.names}
    records = {name: rows for name, rows in records.items() if any("loss" in row for row in rows)}
    several = len(args.names) > 1
    for name in args.names:
        if name not in records and (several or _unfinished(find_model(name))):
            raise RunError(f"{name} has no metrics.jsonl with steps in it; is it a run directory?")
    from egc.report.figures import run_curves
    from egc.report.page import Section, render, write_page

    sections: dict[str, Section] = {}
    figures: dict[str, str] = {}
    if records:
        text = "The terms of the loss, and the accuracy on validation images."
        sections["curves"] = Section("Learning", text, run_curves(records))
    if not several and not _unfinished(find_model(args.names[0])):
        sections |= _gallery(args, figures)
    if args.figures:
        for name, section in sections.items():
            write_picture(section.picture, str(Path(args.figures) / f"{name}.png"))
    title = ", ".join(args.names)
    write_page(out, render(title, LEAD, figures, list(sections.values())))
    last = {name: [row for row in rows if "loss" in row][-1] for name, rows in records.items()}
    data = {"out": str(out), "figures": list(sections), "last": last}
    lines = [f"{name}: step {row['step']}, loss {row['loss']:.4f}" for name, row in last.items()]
    lines.append(f"{len(sections)} figures in {out}")
    following = command("evaluate", args.names[0])
    return Result(data, "\n".join(lines), following)


def _unfinished(folder: Path) -> bool:
    """Whether this is a run that has no model yet."""
    return not (folder / "config.json").exists()


def _gallery(args: argparse.Namespace, figures: dict[str, str]) -> dict[str, Any]:
    """The sections of a model's gallery; what the page shows first goes to `figures`."""
    from egc.report.progress import progress_line
    from egc.tasks.gallery import fitting, gallery

    name = args.names[0]
    model = opened(args, name)
    figures |= {"model": name, "parameters": f"{int(model.size()['parameters']):,}"}
    if model.facts.get("test_accuracy") is not None:
        figures["test accuracy"] = f"{model.facts['test_accuracy']:.1%}"
    images = some_pictures(model, args.data, PICTURES, args.seed)
    sections = {}
    with progress_line("Drawing figures", len(fitting(model))) as line:
        for figure, section in gallery(model, images, args.seed):
            sections[figure] = section
            line.advance()
    return sections


VERB = Verb(
    "report",
    "measure",
    "draw all figures that fit a model, and the curves of runs, on one page",
    [
        "egc report digits",
        "egc report runs/mine --figures figures/ --out mine.html",
        "egc report runs/first runs/second --out both.html",
    ],
    _arguments,
    _run,
)
