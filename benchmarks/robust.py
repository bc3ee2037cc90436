"""How well the shipped model stands attacks: test digits; 24 minutes on a third of a core.

    python benchmarks/robust.py [--models digits ...] [--quick]

FGSM, PGD-20 and a random search on all test digits; AutoAttack on some; purification against
attacks that know it and that do not; certified accuracy by randomized smoothing. The level to
purify from and the noise to certify with are chosen on validation digits, never on test digits.
Writes `benchmarks/robust.json` and `docs/robustness.png`. `--models` puts other models of digits
on the same axes; purification and certification are those of the first.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from egc.api import load
from egc.data.sources import open_for
from egc.metrics.certified import certified_figure, evaluate_certified
from egc.metrics.robustness import evaluate_robustness, robustness_figure
from egc.report.figures import png

RESULTS = Path(__file__).with_name("robust.json")
FIGURE = Path(__file__).parents[1] / "docs" / "robustness.png"
LINF, L2 = [8, 16, 32, 64], [0.25, 0.5, 1.0]
LEVELS = (50, 100, 200, 300)
SIGMAS = (0.12, 0.25, 0.5)
RADII = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["digits"])
    parser.add_argument("--quick", action="store_true", help="few images, to see that it works")
    args = parser.parse_args()
    models = {name: load(name) for name in args.models}
    name, model = next(iter(models.items()))
    splits = open_for(model.config.data)
    test, validation = splits.test, splits.validation
    many, some, few = (8, 4, 2) if args.quick else (64, 32, 24)
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
    }

    def keep(key: str, value: Any, started: float) -> None:
        results[key] = value
        results.setdefault("seconds", {})[key] = round(time.monotonic() - started, 1)
        print(key, json.dumps(value), flush=True)
        if not args.quick:
            RESULTS.write_text(json.dumps(results, indent=2) + "\n")

    # Attacks on the models as they are.
    every = {"images": many if args.quick else len(test)}
    plain = {}
    for norm, epsilons in (("linf", LINF), ("l2", L2)):
        started = time.monotonic()
        plain[norm] = {
            each: evaluate_robustness(other, test, epsilons=epsilons, norm=norm, **every)
            for each, other in models.items()
        }
        keep(norm, {each: result.summary() for each, result in plain[norm].items()}, started)

    # Purification: the level by validation digits, then both figures on test digits.
    started = time.monotonic()
    tried = {
        level: evaluate_robustness(
            model, validation, epsilons=[32], attacks=["pgd"], attack_steps=10, attack_draws=2,
            images=some, purify=level, checks=False,
        )
        for level in LEVELS
    }  # fmt: skip
    level = max(tried, key=lambda t: (tried[t].worst["pgd"][0], tried[t].clean))
    found = {t: {"clean": r.clean, "worst": r.worst["pgd"][0]} for t, r in tried.items()}
    keep("purify_on_validation", {"chosen": level, "levels": found}, started)
    started = time.monotonic()
    purified = evaluate_robustness(model, test, epsilons=LINF, images=some, purify=level)
    keep("purify", purified.summary(), started)

    # Certification: all levels are drawn, the one to quote is chosen on validation digits.
    started = time.monotonic()
    radii = {
        sigma: evaluate_certified(model, validation, sigma=sigma, count=some).summary(RADII)
        for sigma in SIGMAS
    }
    chosen = max(radii, key=lambda sigma: radii[sigma]["mean_radius"])
    means = {sigma: summary["mean_radius"] for sigma, summary in radii.items()}
    keep("certified_on_validation", {"chosen": chosen, "mean_radius": means}, started)
    started = time.monotonic()
    certified = {
        sigma: evaluate_certified(model, test, sigma=sigma, count=many) for sigma in SIGMAS
    }
    keep("certified", {s: result.summary(RADII) for s, result in certified.items()}, started)

    curves = certified_figure({f"noise {s}, t = {r.t}": r for s, r in certified.items()})
    if not args.quick:
        FIGURE.write_bytes(
            png(beside(robustness_figure({**plain["linf"], name: purified}), curves))
        )

    # The serious figure, beside PGD on the same images.
    started = time.monotonic()
    serious = evaluate_robustness(
        model, test, epsilons=LINF[1:],
        attacks=["pgd", "autoattack"], images=few, checks=False,
    )  # fmt: skip
    keep("autoattack", serious.summary(), started)


def beside(*figures: Any) -> Image.Image:
    """Figures of one height as one picture."""
    pictures = [Image.open(io.BytesIO(png(figure))) for figure in figures]
    joined = Image.new("RGB", (sum(p.width for p in pictures), pictures[0].height), "white")
    left = 0
    for picture in pictures:
        joined.paste(picture, (left, 0))
        left += picture.width
    return joined


if __name__ == "__main__":
    main()
