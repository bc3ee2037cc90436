"""`egc evaluate`: measure models; every metric brings its flags, rows and figures."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import takewhile
from typing import Any

from egc.cli.base import (
    Result,
    Verb,
    add_options,
    check_suffix,
    command,
    model_argument,
    opened,
    out_argument,
    sampling_arguments,
    sampling_options,
    settings_argument,
    settings_words,
)
from egc.errors import ConfigError, ModelError

SUFFIXES = (".html", ".htm")
PAGE = "evaluation.html"


def _check(words: Sequence[str]) -> None:
    """Mistakes that are seen before the metrics, and PyTorch with them, are imported."""
    from egc.metrics.names import check_metric

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--metrics", nargs="+", default=[])
    first.add_argument("--out", default=PAGE)
    first.add_argument("--store", action="store_true")
    try:
        args, _ = first.parse_known_args(words)
    except argparse.ArgumentError:
        return  # said when all flags are read
    for name in args.metrics:
        check_metric(name)
    check_suffix(args.out, *SUFFIXES)
    _check_models([*takewhile(lambda word: not word.startswith("-"), words)], args.store)


def _check_models(names: Sequence[str], store: bool) -> None:
    from egc.hub import find_model, is_shipped

    if len(set(names)) < len(names):
        raise ConfigError("Each model can be named only once.")
    for name in names:
        if is_shipped(find_model(name)) and store:
            raise ModelError(
                f"{name!r} ships with the package, which --store does not write to; save a copy "
                f"first (in Python: egc.load({name!r}).save('my-{name}')), and name that."
            )


def _arguments(parser: argparse.ArgumentParser) -> None:
    from egc.metrics.evaluate import all_metrics

    every = all_metrics()
    model_argument(parser, several=True)
    parser.add_argument(
        "--metrics", nargs="+", metavar="NAME", help=f"{', '.join(every)} (all that the model has)"
    )
    parser.add_argument("--data", metavar="SOURCE", help="images (what the model was trained on)")
    settings_argument(parser, "data.KEY=VALUE")
    parser.add_argument(
        "--split", choices=("test", "validation"), default="test", help="images to use (test)"
    )
    parser.add_argument(
        "--store",
        action="store_true",
        help="store an out-of-distribution threshold with the model, for classify --flag-ood",
    )
    out_argument(parser, PAGE, "the page")
    sampling_arguments(parser)
    owners = _owners(every)
    taken = {action.dest for action in parser._actions}
    shared = parser.add_argument_group("of several metrics")
    for option, defaults in owners.items():
        if len(defaults) > 1 and option not in taken:
            options = every[next(iter(defaults))].Options
            skip = {f.name for f in fields(options)} - {option}
            add_options(shared, options, default=_by_metric(defaults), skip=skip)
            taken.add(option)
    for name, metric in every.items():
        add_options(parser, metric.Options, title=f"{name}: {metric.title}", skip=taken)


def _owners(every: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Option -> the metrics that have it -> its default there, as text."""
    owners: dict[str, dict[str, str]] = {}
    for name, metric in every.items():
        for f in fields(metric.Options):
            default = f.metadata.get("none", "none") if f.default is None else str(f.default)
            owners.setdefault(f.name, {})[name] = default
    return owners


def _by_metric(defaults: dict[str, str]) -> str:
    """The default of an option, metric by metric where they differ."""
    names: dict[str, list[str]] = {}
    for name, text in defaults.items():
        names.setdefault(text, []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{', '.join(which)}: {text}" for text, which in names.items())


def _run(args: argparse.Namespace) -> Result:
    out = check_suffix(args.out, *SUFFIXES)
    _check_models(args.models, args.store)
    sampling = sampling_options(args)

    from egc.config.parse import plain
    from egc.data.sources import open_for
    from egc.distributed import is_main
    from egc.metrics import evaluate
    from egc.metrics.threshold import ood_threshold, store_threshold
    from egc.report.page import write_page

    named = {option: getattr(args, option) for option in _owners(evaluate.all_metrics())}
    given = {option: value for option, value in named.items() if value is not None}
    evaluate.read_options(given)  # before any data is opened
    models = {name: opened(args, name) for name in args.models}
    source = args.data or models[args.models[0]].config.data.source
    splits = {}
    for name, model in models.items():
        model.config = model.config.replace(sample=plain(model.sampling(**sampling)))
        data = open_for(model.config.data, source, args.settings)
        splits[name] = evaluate.measured_on(data, args.split)
        evaluate.choose(model, splits[name], args.metrics)  # before any model is worked on
    stored = models if args.store else {}
    thresholds = {n: ood_threshold(m, splits[n].validation) for n, m in stored.items()}
    found = {
        name: evaluate.evaluate(model, splits[name], args.metrics, given)
        for name, model in models.items()
    }
    lines = [evaluate.as_text(found)]
    if is_main():
        for name, threshold in thresholds.items():
            place = store_threshold(name, threshold)
            lines.append(f"out-of-distribution threshold stored in {place}")
        write_page(out, evaluate.evaluation_page(found))
    figures: dict[str, Any] = {
        "models": {
            name: {metric: result.summary() for metric, result in results.items()}
            for name, results in found.items()
        },
        "data": splits[args.models[0]].test.name,
        "split": args.split,
        "seed": given.get("seed", 0),
        "thresholds": thresholds,
        "out": str(out),
    }
    return Result(_jsonable(figures), "\n\n".join([*lines, str(out)]), _next(args, models))


def _next(args: argparse.Namespace, models: dict[str, Any]) -> str:
    words = ["evaluate", *args.models, *(["--data", args.data] if args.data else [])]
    words += settings_words(args.settings)
    if not all(model.classifies for model in models.values()):
        return command("sample", args.models[0])
    if args.metrics and "robustness" not in args.metrics:
        return command(*words, "--metrics", "robustness")
    return command(*words, "--metrics", "robustness", "--attacks", "autoattack", "--images", 64)


def _jsonable(value: Any) -> Any:
    """JSON knows no infinities: they become null."""
    if isinstance(value, dict):
        return {name: _jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


VERB = Verb(
    "evaluate",
    "measure",
    "measure models: accuracy, samples, robustness, out-of-distribution, likelihood",
    [
        "egc evaluate digits",
        "egc evaluate digits --metrics classification --ensemble 16",
        "egc evaluate runs/mine --metrics generation --count 5000 --keep samples/ --json",
        "egc evaluate runs/mine runs/other --metrics robustness --attacks pgd --epsilons 8 32",
        "egc evaluate runs/mine --metrics out_of_distribution --others fashion-mnist --store",
    ],
    _arguments,
    _run,
    _check,
)
