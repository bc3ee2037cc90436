"""`egc classify`: name what is in images."""

from __future__ import annotations

import argparse
from typing import Any

from egc.cli.base import Result, Verb, command, model_argument, opened
from egc.cli.inputs import check_at_least, listed_images


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("files", nargs="+", metavar="IMAGE", help="image files or directories")
    parser.add_argument("--top", type=int, default=1, metavar="N", help="classes to show (1)")
    parser.add_argument(
        "--flag-ood",
        action="store_true",
        help="say which images are out-of-distribution: stranger than 95 %% of the validation "
        "images were (no)",
    )
    parser.add_argument(
        "--skip-unreadable",
        action="store_true",
        help="go on without images that cannot be read, and say how many (no)",
    )


def _run(args: argparse.Namespace) -> Result:
    check_at_least(args.top, 1, "--top")
    paths = listed_images(args.files)
    model = opened(args)
    from egc.data.images import read_images, read_readable_images
    from egc.tasks.out_of_distribution import is_out_of_distribution, stored_threshold

    model.needs("classifies")
    stored = stored_threshold(model) if args.flag_ood else None
    shape = model.codec.image_size, model.codec.channels
    if args.skip_unreadable:
        images, kept = read_readable_images(paths, *shape)
    else:
        images, kept = read_images(paths, *shape), list(range(len(paths)))
    rows: list[dict[str, Any]] = []
    for position, row in zip(kept, model.predict_proba(images), strict=True):
        best = row.argsort()[::-1][: args.top]
        classes = [{"class": model.classes[i], "probability": float(row[i])} for i in best]
        rows.append({"image": str(paths[position]), "classes": classes})
    if model.net.has_energy:
        for entry, energy in zip(rows, model.energy(images), strict=True):
            entry["energy"] = float(energy)
    data: dict[str, Any] = {"images": rows}
    if stored is not None:
        for entry, strange, score in zip(
            rows, *is_out_of_distribution(model, images), strict=True
        ):
            entry |= {"out_of_distribution": bool(strange), "score": float(score)}
        data |= {"score": stored["score"], "threshold": stored["threshold"]}
    if args.skip_unreadable:
        left = set(range(len(paths))) - set(kept)
        data["skipped"] = [str(paths[position]) for position in sorted(left)]
    lines = [_line(entry, data.get("threshold", 0.0)) for entry in rows]
    first = rows[0]["classes"][0]["class"]
    following = command("sample", args.model, "--label", first, "--count", 9)
    return Result(data, "\n".join(lines), following)


def _line(entry: dict[str, Any], threshold: float) -> str:
    classes = "  ".join(f"{c['class']} {c['probability']:.1%}" for c in entry["classes"])
    parts = [entry["image"], classes]
    if "energy" in entry:
        parts.append(f"energy {entry['energy']:.1f}")
    if "score" in entry:
        known = "OUT OF DISTRIBUTION" if entry["out_of_distribution"] else "in distribution"
        parts.append(f"{known} (score {entry['score']:.1f}, threshold {threshold:.1f})")
    return "\t".join(parts)


VERB = Verb(
    "classify",
    "use",
    "name what is in images",
    [
        "egc classify digits seven.png",
        "egc classify runs/mine photos/ --top 3 --json",
        "egc classify runs/mine photos/ --flag-ood --skip-unreadable",
    ],
    _arguments,
    _run,
)
