"""`egc evaluate`: measure models; every metric brings its flags, rows and figures."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
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
            copy = f"egc.load({name!r}).save('my-{name}')"
            raise ModelError(
                f"{name!r} ships with the package, which --store does not write to; save a copy "
                f"first (in Python: {copy}), and name that."
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
    for option, metrics in owners.items():
        if len(metrics) > 1 and option not in taken:
            others = {f for metric in metrics for f in _fields(every[metric])} - {option}
            default = _defaults(option, {metric: every[metric] for metric in metrics})
            add_options(shared, every[metrics[0]].Options, default=default, skip=others)
    alone = {option for option, metrics in owners.items() if len(metrics) == 1} - taken
    for name, metric in every.items():
        skip = set(_fields(metric)) - alone
        add_options(parser, metric.Options, title=f"{name}: {metric.title}", skip=skip)


def _fields(metric: Any) -> dict[str, Any]:
    return dict(metric.Options.__dataclass_fields__)


def _owners(every: dict[str, Any]) -> dict[str, list[str]]:
    """option -> the metrics that have it."""
    owners: dict[str, list[str]] = {}
    for name, metric in every.items():
        for option in _fields(metric):
            owners.setdefault(option, []).append(name)
    return owners


def _defaults(option: str, metrics: dict[str, Any]) -> str:
    """The default of an option, metric by metric where they differ."""
    shown: dict[str, list[str]] = {}
    for name, metric in metrics.items():
        known = _fields(metric)[option]
        text = known.metadata.get("none") if known.default is None else str(known.default)
        shown.setdefault(text or "none", []).append(name)
    if len(shown) == 1:
        return next(iter(shown))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in shown.items())


def _run(args: argparse.Namespace) -> Result:
    out = check_suffix(args.out, *SUFFIXES)
    _check_models(args.models, args.store)
    sampling = sampling_options(args)

    from egc.config.parse import plain
    from egc.data.sources import open_for
    from egc.distributed import is_main
    from egc.metrics.evaluate import (
        all_metrics,
        as_text,
        choose,
        evaluate,
        evaluation_page,
        measured_on,
        read_options,
    )
    from egc.metrics.threshold import ood_threshold, store_threshold
    from egc.report.page import write_page

    named = {option: getattr(args, option) for option in _owners(all_metrics())}
    given = {option: value for option, value in named.items() if value is not None}
    read_options(given)  # before any data is opened
    models = {name: opened(args, name) for name in args.models}
    source = args.data or models[args.models[0]].config.data.source
    splits = {}
    for name, model in models.items():
        model.config = model.config.replace(sample=plain(model.sampling(**sampling)))
        data = open_for(model.config.data, source, args.settings)
        splits[name] = measured_on(data, args.split)
        choose(model, splits[name], args.metrics)  # before any model is worked on
    thresholds = {}
    if args.store:
        thresholds = {n: ood_threshold(m, splits[n].validation) for n, m in models.items()}
    found = {
        name: evaluate(model, splits[name], args.metrics, given) for name, model in models.items()
    }
    lines = [as_text(found)]
    if is_main():
        for name, threshold in thresholds.items():
            place = store_threshold(name, threshold)
            lines.append(f"out-of-distribution threshold stored in {place}")
        write_page(out, evaluation_page(found))
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
