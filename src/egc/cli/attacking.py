"""The verb that attacks models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from egc.cli.base import Result, Verb, seed_and_out, write_figure

if TYPE_CHECKING:
    from egc.api import EGC
    from egc.data import ImageSet
    from egc.metrics.robustness import Robustness

UNIT = {"linf": 255, "l2": 1}
"""epsilons are given and shown in parts of 1/255 for the one norm, as they are for the other"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="shipped names, model or run directories, or hub ids; all on the same axes",
    )
    parser.add_argument(
        "--epsilons",
        nargs="+",
        type=float,
        default=[1, 2, 4, 8],
        metavar="E",
        help="how far the attack may go: parts of 1/255 for linf, lengths for l2 (1 2 4 8)",
    )
    parser.add_argument("--norm", choices=tuple(UNIT), default="linf", help="(linf)")
    parser.add_argument(
        "--attacks",
        nargs="+",
        default=["fgsm", "pgd"],
        metavar="NAME",
        help="fgsm, pgd, autoattack, random (fgsm pgd)",
    )
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="of PGD (20)")
    parser.add_argument("--restarts", type=int, default=1, metavar="N", help="of PGD (1)")
    parser.add_argument("--count", type=int, default=256, metavar="N", help="images (256)")
    parser.add_argument(
        "--ensemble", type=int, default=0, metavar="N", help="average over draws of noise (0)"
    )
    parser.add_argument(
        "--purify", type=int, default=0, metavar="T", help="clean images from noise level T first"
    )
    parser.add_argument(
        "--draws", type=int, default=4, metavar="N",
        help="of noise an attack averages over at each step, with --ensemble or --purify (4)",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="SOURCE", help="labelled images; default: the first model's own data"
    )
    parser.add_argument("--split", choices=("test", "validation"), default="test", help="(test)")
    parser.add_argument("--examples", metavar="PATH", help="draw some attacked images too, .png")
    seed_and_out(parser, "attack.png", "the figure")


def _attack(args: argparse.Namespace) -> Result:
    from egc.api import load
    from egc.errors import ConfigError
    from egc.metrics.attack_examples import attack_examples
    from egc.metrics.fitting import fitting
    from egc.metrics.robustness import evaluate_robustness
    from egc.distributed import is_main
    from egc.metrics.figures_robustness import examples_figure, robustness_figure

    if len(set(args.models)) < len(args.models):
        raise ConfigError("Each model can be named only once.")
    for path in (args.out, args.examples or args.out):  # before hours of work
        if not path.lower().endswith(".png"):
            raise ConfigError(f"Figures are written as .png; got {path!r}.")
    models = {name: load(name) for name in args.models}
    data = _opened(next(iter(models.values())), args.data, args.split)
    for model in models.values():  # before the first of them is worked on
        fitting(model, data)
    epsilons = sorted({epsilon / UNIT[args.norm] for epsilon in args.epsilons})
    asked: Any = {"ensemble": args.ensemble, "purify": args.purify, "seed": args.seed}
    results = {
        name: evaluate_robustness(
            model, data, epsilons=epsilons, norm=args.norm, attacks=args.attacks,
            steps=args.steps, restarts=args.restarts, draws=args.draws, count=args.count, **asked,
        )
        for name, model in models.items()
    }  # fmt: skip
    found: dict[str, Any] = {
        "data": f"{data.name}, {args.split}",
        "models": {name: result.summary() for name, result in results.items()},
    }
    if is_main():
        found["out"] = write_figure(robustness_figure(results), args.out)
        if args.examples:
            name, model = next(iter(models.items()))
            examples = attack_examples(
                model,
                data,
                epsilon=epsilons[-1],
                strength=results[name].strength,
                attack=args.attacks[-1],
                **asked,
            )
            found["examples"] = write_figure(examples_figure(examples), args.examples)
    text = "\n\n".join(_table(name, result) for name, result in results.items())
    further = [found[key] for key in ("out", "examples") if key in found]
    following = f"egc attack {args.models[0]} --attacks autoattack"
    return Result(found, "\n".join([text, *further]), following)


def _opened(model: EGC, source: str | None, split: str) -> ImageSet:
    """Images of the size and colours that the model takes, if the source can be had so."""
    from egc.data import open_source

    config = model.config if source is None else model.config.replace(data={"source": source})
    splits = open_source(config.data)
    return splits.test if split == "test" else splits.validation


def _table(name: str, result: Robustness) -> str:
    """Accuracy by attack and epsilon, and what the checks say."""
    from egc.metrics.figures_robustness import WORDS

    unit = UNIT[result.strength.norm]
    lines = [f"{name}: {result.clean:.1%} of {result.images} images without attack"]
    head = f"epsilon, {result.strength.norm}" + (" x 255" if unit == 255 else "")
    lines.append(f"{head:<38}" + "".join(f"{unit * e:>8g}" for e in result.epsilons))
    for attack in result.accuracy:
        for kind, words in {**WORDS, "worst": "purified, the worse of both"}.items():
            if attack in (curves := getattr(result, kind)):
                title = f"{attack}, {words}" if result.purify else attack
                lines.append(f"{title:<38}" + "".join(f"{a:>8.1%}" for a in curves[attack]))
    for title, check in result.checks.items():
        figures = ", ".join(f"{key} {value:.3g}" for key, value in check.numbers.items())
        verdict = "holds" if check.passed else "FAILS"
        lines.append(f"{title.replace('_', ' '):<38}   {verdict}: {figures}")
    return "\n".join([*lines, *result.warnings])


VERBS = [
    Verb(
        "attack",
        "change images by as little as it takes to be named wrongly, and count",
        [
            "egc attack digits --epsilons 8 16 32 64",
            "egc attack digits runs/classifier --attacks pgd --out both.png",
            "egc attack digits --epsilons 32 --purify 150 --count 64",
            "egc attack digits --norm l2 --epsilons 0.5 1 --attacks autoattack",
        ],
        _arguments,
        _attack,
    )
]
