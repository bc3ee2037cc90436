"""What the shipped digits model knows: naming, calibration, what is strange, and likelihood.

    EGC_DATA=... python benchmarks/known.py [--model MODEL] [--others NAME ...]

On the test images of the model's data: accuracy, top-5, NLL, Brier and ECE, at once and averaged
over draws of noise; accuracy and confidence against t; how well each score tells them from other
images (the curve is fitted to validation images, with the threshold that 95 % of those stay
below); bits per dimension. Nothing is chosen by test images. Writes `benchmarks/known.json`, a
part for each model, and, for `digits`, `docs/calibration.png` and
`docs/out-of-distribution.png`.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import egc
from egc.data import ImageSet
from egc.data.sources import open_for
from egc.metrics.classification import (
    accuracy_against_t,
    against_t_figure,
    evaluate_classification,
    reliability_figure,
)
from egc.metrics.likelihood import evaluate_likelihood
from egc.metrics.out_of_distribution import (
    OutOfDistribution,
    evaluate_out_of_distribution,
    roc_figure,
    score_figure,
)
from egc.metrics.threshold import ood_threshold
from egc.report.figures import png

RESULTS = Path(__file__).parent / "known.json"
DOCS = Path(__file__).parents[1] / "docs"
TIMES = (0, 10, 25, 50, 100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 999)
DRAWS = (0, 1, 4, 16)


def beside(figures: list[Any], vertical: bool = False) -> Image.Image:
    """Several figures as one picture."""
    pictures = [Image.open(io.BytesIO(png(figure))).convert("RGB") for figure in figures]
    widths, heights = zip(*(picture.size for picture in pictures), strict=True)
    size = (max(widths), sum(heights)) if vertical else (sum(widths), max(heights))
    joined = Image.new("RGB", size, "white")
    x = y = 0
    for picture in pictures:
        joined.paste(picture, (x, y))
        x, y = (x, y + picture.height) if vertical else (x + picture.width, y)
    return joined


def flagged(threshold: dict[str, Any], scores: OutOfDistribution) -> dict[str, float]:
    """The share of each set that a stored threshold flags."""
    score = threshold["score"]
    sets = {scores.name: scores.familiar, **scores.others}
    return {name: float((of[score] > threshold["threshold"]).mean()) for name, of in sets.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="digits")
    parser.add_argument("--count", type=int, default=1000, help="test images at most (1000)")
    parser.add_argument("--terms", type=int, default=64, help="of the bound, an image (64)")
    parser.add_argument(
        "--others",
        nargs="+",
        default=["noise", "constant", "upside-down", "shuffled", "fashion-mnist"],
    )
    args = parser.parse_args()
    model = egc.load(args.model)
    splits = open_for(model.config.data)
    picked = np.sort(np.random.default_rng(0).permutation(len(splits.test))[: args.count])
    test: ImageSet = splits.test.subset(picked)

    asked = {draws: evaluate_classification(model, test, ensemble=draws) for draws in DRAWS}
    for draws, result in asked.items():
        print(f"{draws:2d} draws:", {k: round(v, 4) for k, v in result.numbers().items() if v})
    against = accuracy_against_t(model, test, TIMES)
    strange = evaluate_out_of_distribution(
        model, test, args.others, fit_on=splits.validation, count=args.count
    )
    threshold = ood_threshold(model, splits.validation)
    likelihood = {
        variance: evaluate_likelihood(model, test, terms=args.terms, variance=variance).summary()
        for variance in ("beta", "posterior")
    }
    found = {
        "test": splits.test.name,
        "images": len(test),
        "classification": asked[0].summary(),
        "ensemble": [{"draws": draws, **asked[draws].numbers()} for draws in DRAWS],
        "against_t": against.summary(),
        "out_of_distribution": strange.summary(),
        "flagged": flagged(threshold, strange),
        "likelihood": likelihood,
    }
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    name = args.model if args.model == "digits" else model.config.data.source
    results[name] = found
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    if args.model == "digits":
        ways = {"t = 0": asked[0], "16 draws": asked[16]}
        beside([reliability_figure(ways), against_t_figure(against)]).save(
            DOCS / "calibration.png"
        )
        beside([score_figure(strange), roc_figure(strange)], vertical=True).save(
            DOCS / "out-of-distribution.png"
        )

    scores = list(strange.familiar)
    print(f"AUROC / AUPR / FPR95\n| {strange.name} against | {' | '.join(scores)} | flagged |")
    for other, row in strange.table.items():
        cells = (f"{c['auroc']:.3f} / {c['aupr']:.3f} / {c['fpr95']:.1%}" for c in row.values())
        print(f"| {other} | {' | '.join(cells)} | {found['flagged'][other]:.1%} |")
    print(f"flagged of {strange.name}: {found['flagged'][strange.name]:.1%}")
    for variance, part in likelihood.items():
        print(f"{variance}: {part['bits_per_dim']:.3f} +- {part['standard_error']:.3f} bits/dim")
    for t, right, sure in zip(against.times, against.accuracy, against.confidence, strict=True):
        print(f"t = {t}: accuracy {right:.1%}, confidence {sure:.1%}")


if __name__ == "__main__":
    main()
