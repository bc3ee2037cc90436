"""Verbs that measure models: one of them, or several against each other."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egc.cli.base import Result, Verb, model_argument

if TYPE_CHECKING:
    from egc.metrics.evaluate import Plan

# --- evaluate ------------------------------------------------------------------------------------


def _evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument(
        "--metrics",
        nargs="+",
        metavar="NAME",
        help="classification, generation, robustness, certified, novelty, likelihood "
        "(all that the model has)",
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="SOURCE", help="default: what the model was trained on")
    data.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="data.KEY=VALUE",
        help="how to open it, such as data.channels=3; can be repeated",
    )
    data.add_argument("--split", choices=("test", "validation"), default="test", help="(test)")
    data.add_argument("--most", type=int, metavar="N", help="images to classify (all)")
    data.add_argument(
        "--images", type=int, default=256, metavar="N", help="to attack, certify, bound (256)"
    )
    asked = parser.add_argument_group("how the model is asked")
    asked.add_argument(
        "--ensemble", type=int, default=0, metavar="N", help="also average over N draws of noise"
    )
    asked.add_argument(
        "--purify", type=int, default=0, metavar="T", help="also clean images from level T first"
    )
    drawing = parser.add_argument_group("generation")
    drawing.add_argument("--samples", type=int, default=1000, metavar="N", help="to draw (1000)")
    drawing.add_argument(
        "--features",
        choices=("auto", "inception", "judge"),
        default="auto",
        help="what distances are measured in; auto: the judge for small or grey images (auto)",
    )
    drawing.add_argument("--steps", type=int, metavar="N", help="sampling steps")
    drawing.add_argument("--sampler", metavar="NAME", help="ddpm, ddim, dpm++, unipc")
    drawing.add_argument("--guidance", type=float, metavar="W", help="how strongly to insist")
    drawing.add_argument("--cfg", type=float, metavar="S", help="classifier-free guidance")
    drawing.add_argument("--keep", metavar="DIR", help="keep the samples, and go on from them")
    attack = parser.add_argument_group("robustness")
    attack.add_argument(
        "--attacks", nargs="+", default=["fgsm", "pgd"], metavar="NAME",
        help="fgsm, pgd, autoattack, random (fgsm pgd)",
    )  # fmt: skip
    attack.add_argument("--norm", choices=("linf", "l2"), default="linf", help="(linf)")
    attack.add_argument(
        "--epsilons", nargs="+", type=float, default=[2, 4, 8], metavar="E",
        help="parts of 1/255 for linf, lengths for l2 (2 4 8)",
    )  # fmt: skip
    attack.add_argument("--attack-steps", type=int, default=20, metavar="N", help="of PGD (20)")
    attack.add_argument("--restarts", type=int, default=1, metavar="N", help="of PGD (1)")
    proof = parser.add_argument_group("certified")
    proof.add_argument(
        "--certify", type=float, default=0.25, metavar="S", help="noise, in pixels of 0..1 (0.25)"
    )
    proof.add_argument("--draws", type=int, default=1000, metavar="N", help="an image (1000)")
    novelty = parser.add_argument_group("novelty")
    novelty.add_argument(
        "--others", nargs="+", metavar="SOURCE",
        help="sources, or: noise, gaussian-noise, constant, upside-down, shuffled "
        "(noise upside-down shuffled)",
    )  # fmt: skip
    novelty.add_argument(
        "--store", action="store_true",
        help="store a novelty threshold with the model, for classify --flag-novel",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(0)")
    parser.add_argument(
        "--out", default="evaluation.html", metavar="PATH", help="the page (evaluation.html)"
    )


def _plan(args: argparse.Namespace) -> Plan:
    from egc.metrics.out_of_distribution import DEFAULT_OTHERS
    from egc.metrics.evaluate import Plan

    unit = 255 if args.norm == "linf" else 1
    return Plan(
        seed=args.seed,
        most=args.most,
        ensemble=args.ensemble,
        samples=args.samples,
        features=args.features,
        steps=args.steps,
        sampler=args.sampler,
        guidance=args.guidance,
        cfg=args.cfg,
        images=args.images,
        attacks=tuple(args.attacks),
        norm=args.norm,
        epsilons=tuple(sorted({epsilon / unit for epsilon in args.epsilons})),
        attack_steps=args.attack_steps,
        restarts=args.restarts,
        purify=args.purify,
        certify=args.certify,
        draws=args.draws,
        others=tuple(args.others) if args.others else DEFAULT_OTHERS,
    )


def _changes(settings: list[str]) -> dict[str, Any]:
    """`data.key=value` settings as keys of the data's configuration."""
    from egc.errors import ConfigError
    from egc.config.parse import set_key

    tree: dict[str, Any] = {}
    for setting in settings:
        set_key(tree, setting)
    if extra := tree.keys() - {"data"}:
        raise ConfigError(f"Only data.KEY=VALUE can be set here; got {min(extra)}.")
    return dict(tree.get("data", {}))


def _evaluate(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.errors import ConfigError
    from egc.metrics.out_of_distribution import novelty_threshold, store_threshold
    from egc.metrics.evaluate import data_for, evaluate, measured_on
    from egc.distributed import is_main
    from egc.metrics.report_evaluation import as_text, evaluation_page
    from egc.report.page import write_page

    out = Path(args.out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"The page is written as .html; got {args.out!r}.")
    model = load(args.model)
    splits = data_for(model, args.data, _changes(args.settings))
    keep = Path(args.keep) if args.keep else None
    found = evaluate(model, measured_on(splits, args.split), args.metrics, _plan(args), keep=keep)
    data: dict[str, Any] = {
        "model": args.model,
        "data": splits.test.name,
        "split": args.split,
        "seed": args.seed,
        **{name: result.summary() for name, result in found.items()},
    }
    lines = [as_text(found)]
    if args.store:
        data["threshold"] = novelty_threshold(model, splits.validation)
        if is_main():
            place = store_threshold(args.model, data["threshold"])
            lines.append(f"novelty threshold stored in {place}")
    if is_main():
        write_page(out, evaluation_page(f"Evaluation of {args.model}", found, model.classes))
        data["out"] = str(out)
    following = f"egc attack {args.model}" if model.classes else f"egc sample {args.model}"
    return Result(_jsonable(data), "\n\n".join([*lines, str(out)]), following)


def _jsonable(value: Any) -> Any:
    """JSON knows no infinities: they become null."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- compare -------------------------------------------------------------------------------------


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "comparison",
        metavar="NAME|FILE.toml",
        help="ablation-digits, hybrids-fashion, hybrids-cifar10, or a file of your own",
    )
    parser.add_argument("--out", metavar="DIR", help="where all is kept (comparisons/NAME)")
    parser.add_argument("--budget", type=float, metavar="TFLOP", help="of training, each")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="of training")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be trained, and stop"
    )


def _compare(args: argparse.Namespace) -> Result:
    from egc.baselines.compare import compare, read_comparison
    from egc.distributed import is_main
    from egc.baselines.tables import comparison_table, scatter_figure
    from egc.report.figures import png

    settings = {"budget": args.budget, "seeds": args.seeds}
    given = {name: value for name, value in settings.items() if value is not None}
    comparison = read_comparison(args.comparison, given)
    out = Path(args.out or f"comparisons/{comparison.name}")
    if args.dry_run:
        steps = {entry.name: entry.config.train.steps for entry in comparison.entries}
        lines = [f"{name}: {count:,} steps" for name, count in steps.items()]
        data = {"comparison": comparison.name, "steps": steps, "seeds": list(comparison.seeds)}
        return Result(data, "\n".join(lines), f"egc compare {args.comparison} --out {out}")
    rows = compare(comparison, out)
    table = comparison_table(rows, comparison)
    data = {"comparison": comparison.name, "title": comparison.title, "rows": rows}
    data |= {"out": str(out), "seeds": list(comparison.seeds)}
    if is_main():
        (out / "table.md").write_text(f"# {comparison.title}\n\n{table}\n")
        (out / "results.json").write_text(json.dumps(data, indent=2) + "\n")
        (out / "scatter.png").write_bytes(png(scatter_figure(rows)))
    first = out / "runs"
    return Result(data, f"{table}\n\n{out / 'table.md'}", f"egc plot {first}/*")


VERBS = [
    Verb(
        "evaluate",
        "measure a model: accuracy, calibration, samples, robustness, novelty, likelihood",
        [
            "egc evaluate digits",
            "egc evaluate digits --metrics classification --ensemble 16",
            "egc evaluate runs/mine --metrics generation --samples 5000 --keep drawn/ --json",
            "egc evaluate runs/mine --metrics robustness --attacks pgd autoattack --purify 100",
            "egc evaluate runs/mine --metrics novelty --others fashion-mnist noise --store",
        ],
        _evaluate_arguments,
        _evaluate,
    ),
    Verb(
        "compare",
        "train rivals with equal budgets, measure all, and make one table; again resumes",
        [
            "egc compare ablation-digits",
            "egc compare hybrids-fashion --dry-run",
            "egc compare mine.toml --out comparisons/mine --seeds 0 1 2",
        ],
        _compare_arguments,
        _compare,
    ),
]
