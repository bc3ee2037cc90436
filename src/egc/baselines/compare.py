"""`egc compare`: train a list of configurations with equal budgets, measure all, make one table.

A comparison is a TOML file, shipped in `egc/baselines/comparisons` or your own:

    title = "..."
    budget = 142.9                      # TFLOP of training, each; without it, the presets' steps
    seeds = [0]                         # every entry is trained once for each

    [evaluate]
    metrics = ["classification"]        # what is measured; default: `COMPARED`

    [evaluate.generation]               # options of a metric, as `egc evaluate` has them
    count = 2000

    [[entry]]
    name = "DDPM"
    preset = "fashion-mnist"
    objective = { kind = "ddpm" }       # any sections of a configuration, over the preset

    seeds = [0]                         # where they are others than those of all

    [[entry]]
    name = "EGC, no guidance"
    of = "EGC"                          # the same trained network, drawn from in another way
    sample = { guidance = 0.0 }

Budgets are counted, not timed, so a comparison is the same on any machine: the FLOP that training
on an image costs (`Objective.cost`). Everything found is kept in files as it
is found; the same command goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from egc.baselines.files import read_file
from egc.baselines.timing import step_seconds
from egc.config import Config, read_preset
from egc.config.parse import build, key, merge, plain
from egc.data.sources import open_for
from egc.distributed import is_main, wait_for_all
from egc.errors import ConfigError
from egc.metrics.base import Column
from egc.metrics.names import check_metric
from egc.model import Model
from egc.registry import metrics
from egc.training.cost import cost_of, estimate
from egc.training.fit import fit
from egc.training.prepare import prepare

COMPARED: dict[str, dict[str, Any]] = {
    "classification": {"levels": 0},
    "generation": {"count": 2000},
    "robustness": {"attacks": ["pgd"], "epsilons": [8.0], "images": 500, "checks": False,
                   "examples": 0},
    "out_of_distribution": {"others": ["noise"]},
}  # fmt: skip
"""what is measured of every entry, where it makes sense for it, and with which options"""
SIZES = [
    Column("parameters", "parameters", lambda n: f"{n / 1e6:.2f} M", ("parameters",)),
    Column("mflop_per_image", "MFLOP", "{:,.0f}".format, ("mflop_per_image",)),
    Column("steps", "steps", "{:,}".format, ("steps",)),
    Column("seconds", "seconds", "{:,.0f}".format, ("seconds",)),
]
"""the columns to the right of those of the metrics"""


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    name: str
    config: Config
    of: str
    """the entry whose training this one shares; its own name, if none"""
    seeds: tuple[int, ...]
    """of training"""


@dataclass(frozen=True)
class Comparison:
    name: str
    title: str
    entries: list[Entry]
    evaluate: dict[str, Any]
    """name of a metric -> its options"""
    seeds: tuple[int, ...]
    budget: float | None
    """TFLOP of training"""

    def columns(self) -> list[Column]:
        """Of the table; one that no entry has a figure for is left out there."""
        return [
            column
            for name, options in self.evaluate.items()
            for column in metrics[name]().columns(options)
        ] + SIZES

    def summary(self) -> dict[str, Any]:
        """All that the figures depend on besides the entries, for JSON."""
        return {
            "comparison": self.name,
            "title": self.title,
            "budget_tflop": self.budget,
            "seeds": list(self.seeds),
            "evaluate": {name: plain(options) for name, options in self.evaluate.items()},
        }


@dataclass(frozen=True)
class _Head:
    """The keys of a file beside its entries."""

    title: str = key("", "of the table")
    budget: float | None = key(None, "TFLOP of training, each", above=0)
    seeds: tuple[int, ...] = key((0,), "of training", low=0)
    evaluate: dict[str, Any] = key(dict, "metrics, and their options")


def read_comparison(source: str | Path, settings: Mapping[str, Any] | None = None) -> Comparison:
    """A shipped name or a TOML file; `settings` are laid over its keys."""
    text, name = read_file(source)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None
    rows = table.pop("entry", None)
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"{source} has no entries: it needs at least one [[entry]].")
    head: _Head = build(_Head, merge(table, dict(settings or {})))
    measured = _options(head.evaluate)
    entries: dict[str, Entry] = {}
    for row in rows:
        entry = _entry(row, entries, head)
        if entry.name in entries:
            raise ConfigError(f"There are two entries named {entry.name!r} in {source}.")
        entries[entry.name] = entry
    title = head.title or name
    return Comparison(name, title, list(entries.values()), measured, head.seeds, head.budget)


def _options(table: Mapping[str, Any]) -> dict[str, Any]:
    """Metric -> its options, of the section [evaluate]."""
    table = dict(table)
    names = table.pop("metrics", [*COMPARED, *(name for name in table if name not in COMPARED)])
    if not isinstance(names, list) or not names:
        raise ConfigError(f"evaluate.metrics is a list of metrics; got {names!r}.")
    for name in (*names, *table):
        check_metric(str(name))
        if name not in names:
            raise ConfigError(f"[evaluate.{name}] is not used: add it to evaluate.metrics.")
    how = merge(COMPARED, table)
    return {
        name: build(metrics[name].Options, how.get(name, {}), f"evaluate.{name}.")
        for name in names
    }


def _entry(row: Mapping[str, Any], known: Mapping[str, Entry], head: _Head) -> Entry:
    row, budget = dict(row), head.budget
    name, of = row.pop("name", None), row.pop("of", None)
    if not isinstance(name, str) or not name:
        raise ConfigError("Every [[entry]] needs a name.")
    if of is not None:
        if of not in known:
            raise ConfigError(f"{name!r} is of {of!r}, which is no entry above it.")
        if extra := row.keys() - {"sample"}:
            raise ConfigError(f"{name!r} is of {of!r}: it may change `sample`, not {min(extra)}.")
        return replace(known[of], name=name, config=known[of].config.replace(**row))
    preset, seeds = row.pop("preset", None), row.pop("seeds", None)
    if preset is None:
        raise ConfigError(f"{name!r} needs a preset, or an entry that it is of.")
    config = Config.from_dict(merge(read_preset(preset), row))
    if budget is not None:
        steps = steps_for(config, budget)
        warmup = min(config.train.warmup, steps // 10)
        config = config.replace(train={"steps": steps, "warmup": warmup})
    alone: _Head = head if seeds is None else build(_Head, {"seeds": seeds}, f"{name}: ")
    return Entry(name, config, name, alone.seeds)


def steps_for(config: Config, budget: float) -> int:
    """Training steps that cost so many TFLOP; the data is opened only where it must be."""
    guess = estimate(config)
    cost = guess.cost
    if guess.assumed:
        config, splits = prepare(None, config)
        cost = cost_of(Model.build(config, splits.train.classes, device="meta"))
    return max(1, round(budget / cost.tflop_per_step))


def compare(
    comparison: Comparison, out: str | Path, *, progress: bool = True
) -> list[dict[str, Any]]:
    """Train, measure and time every entry; gives the rows of the table."""
    out = Path(out)
    found = {
        entry.name: [_measured(entry, comparison, seed, out, progress) for seed in entry.seeds]
        for entry in comparison.entries
    }
    trained = {entry.name: entry.config for entry in comparison.entries if entry.of == entry.name}
    recipe = _hash({name: config.to_dict() for name, config in trained.items()})
    seconds = _kept(path := out / "figures" / "seconds.json", recipe)
    if not seconds:
        seconds = step_seconds(trained)
        _write(path, {"recipe": recipe, "parts": seconds})
    return [
        _row(entry, found[entry.name], seconds[entry.of], comparison)
        for entry in comparison.entries
    ]


def _measured(
    entry: Entry, comparison: Comparison, seed: int, out: Path, progress: bool
) -> dict[str, Any]:
    """The figures of one entry and seed, each part written down as soon as it is known."""
    config = entry.config.replace(train={"seed": seed})
    path = out / "figures" / f"{_slug(entry.name)}-seed{seed}.json"
    model = fit(
        preset=config,
        run=out / "runs" / f"{_slug(entry.of)}-seed{seed}",
        report=False,
        progress=progress,
    )
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    model.config = model.config.replace(sample=config.to_dict()["sample"])
    recipe = _hash({"config": config.to_dict(), "evaluate": comparison.summary()["evaluate"]})
    kept = _kept(path, recipe)
    for name, options in comparison.evaluate.items():
        if name not in kept:
            if getattr(options, "keep", "") is None:  # what is drawn is kept, too
                options = replace(options, keep=str(out / "samples"))
            kept[name] = measure(model, name, options, progress)
            _write(path, {"recipe": recipe, "parts": kept})
    return {**kept, **model.size(), "steps": model.config.train.steps}


def measure(model: Model, name: str, options: Any, progress: bool) -> dict[str, Any] | None:
    """What a metric finds of a model; None if it cannot be measured so."""
    metric = metrics[name]()
    if metric.obstacle(model) is not None:
        return None
    return metric.measure(model, open_for(model.config.data), options, progress).summary()


def _row(
    entry: Entry, found: Sequence[Mapping[str, Any]], seconds: float, comparison: Comparison
) -> dict[str, Any]:
    """An entry's figures: the mean over its seeds (None without one), and each of them."""
    row: dict[str, Any] = {
        "name": entry.name,
        "kind": entry.config.objective.kind,
        "sample": plain(entry.config.sample),
    }
    for name, options in comparison.evaluate.items():
        for column in metrics[name]().columns(options):
            values = [v for each in found if (v := column.of(each[name])) is not None]
            row[column.key] = float(np.mean(values)) if values else None
            row[f"{column.key}_each"] = values
    for name in ("parameters", "mflop_per_image", "steps"):
        row[name] = found[0][name]
    row["seconds"] = round(seconds * row["steps"], 1)
    return row


def _kept(path: Path, recipe: str) -> dict[str, Any]:
    """What an earlier call found in the same way."""
    try:
        stored = json.loads(path.read_text())
        return dict(stored["parts"]) if stored["recipe"] == recipe else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    if is_main():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(path)
    wait_for_all()


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "entry"


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
