"""`egc compare`: train a list of configurations with equal budgets, measure all, make one table.

A comparison is a TOML file, shipped in `egc/comparisons` or your own:

    title = "..."
    budget = 142.9                      # TFLOP of training, each; without it, the presets' steps
    seeds = [0]                         # every entry is trained once for each

    [evaluate]                          # see `Measures`
    samples = 2000

    [[entry]]
    name = "DDPM"
    preset = "fashion-mnist"
    objective = { kind = "ddpm" }       # any sections of a configuration, over the preset

    [[entry]]
    name = "EGC, no guidance"
    of = "EGC"                          # the same trained network, drawn from in another way
    sample = { guidance = 0.0 }

Budgets are counted, not timed, so a comparison is the same on any machine: the passes a training
image costs (`Objective.passes`) times the FLOP of a pass. Everything found is kept in files as it
is found; the same command goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from egc.api import EGC, load
from egc.config import Config, read_tree
from egc.errors import ConfigError, suggest
from egc.metrics.evaluate import Plan, data_for, evaluate, obstacle
from egc.model import CONFIG_FILE, Model
from egc.objectives.kinds import make_objective
from egc.training.prepare import open_clean, prepare
from egc.distributed import is_main, wait_for_all
from egc.tasks.out_of_distribution import flagging_score
from egc.training.run import Run
from egc.training.batches import BatchStream
from egc.config.parse import build, merge, plain

TIMED_STEPS = 3
"""steps of each entry that are timed, in turn, for the column of seconds"""


@dataclass(frozen=True)
class Measures:
    """What is measured of every entry, where it makes sense for it."""

    samples: int = field(default=2000, metadata={"low": 2})
    """images to draw"""
    features: Literal["auto", "judge", "inception"] = "auto"
    """what distances are measured in"""
    attacked: int = field(default=500, metadata={"low": 1})
    """test images that are attacked by PGD"""
    epsilon: float = field(default=8.0, metadata={"above": 0})
    """in units of 1/255, L-inf"""
    attack_steps: int = field(default=20, metadata={"above": 0})
    others: tuple[str, ...] = ("noise",)
    """data that should be found strange; the table shows the first"""
    novel: int = field(default=1000, metadata={"low": 2})
    """images of each kind for that"""


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    name: str
    config: Config
    of: str
    """the entry whose training this one shares; its own name, if none"""


@dataclass(frozen=True)
class Comparison:
    name: str
    title: str
    entries: list[Entry]
    measures: Measures
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class _Head:
    """The keys of a file beside its entries."""

    title: str = ""
    budget: float | None = field(default=None, metadata={"above": 0})
    seeds: tuple[int, ...] = field(default=(0,), metadata={"low": 0})
    evaluate: Measures = field(default_factory=Measures)


def list_comparisons() -> list[str]:
    """The names of the comparisons that ship with the package."""
    found = (resources.files("egc") / "comparisons").iterdir()
    return sorted(item.name.removesuffix(".toml") for item in found if item.name.endswith(".toml"))


def read_comparison(source: str | Path, settings: Mapping[str, Any] | None = None) -> Comparison:
    """A shipped name or a TOML file; `settings` are laid over its keys."""
    text, name = _text(source)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None
    rows = tree.pop("entry", None)
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"{source} has no entries: it needs at least one [[entry]].")
    head: _Head = build(_Head, merge(tree, dict(settings or {})), "")
    entries: dict[str, Entry] = {}
    for row in rows:
        entry = _entry(row, entries, head.budget)
        if entry.name in entries:
            raise ConfigError(f"There are two entries named {entry.name!r} in {source}.")
        entries[entry.name] = entry
    return Comparison(name, head.title or name, list(entries.values()), head.evaluate, head.seeds)


def _text(source: str | Path) -> tuple[str, str]:
    if str(source) in list_comparisons():
        shipped = resources.files("egc") / "comparisons" / f"{source}.toml"
        return shipped.read_text(), str(source)
    path = Path(source)
    if path.is_file():
        return path.read_text(), path.stem
    raise ConfigError(
        f"There is no comparison {str(source)!r}. {suggest(str(source), list_comparisons())} "
        "A file of your own ends in .toml."
    )


def _entry(row: Mapping[str, Any], known: Mapping[str, Entry], budget: float | None) -> Entry:
    row = dict(row)
    name, of = row.pop("name", None), row.pop("of", None)
    if not isinstance(name, str) or not name:
        raise ConfigError("Every [[entry]] needs a name.")
    if of is not None:
        if of not in known:
            raise ConfigError(f"{name!r} is of {of!r}, which is no entry above it.")
        if extra := row.keys() - {"sample"}:
            raise ConfigError(f"{name!r} is of {of!r}: it may change `sample`, not {min(extra)}.")
        config = known[of].config.replace(**row)
        return Entry(name, config, known[of].of)
    preset = row.pop("preset", None)
    if preset is None:
        raise ConfigError(f"{name!r} needs a preset, or an entry that it is of.")
    config = Config.from_dict(merge(read_tree(preset), row))
    if budget is not None:
        steps = steps_for(config, budget)
        warmup = min(config.train.warmup, steps // 10)
        config = config.replace(train={"steps": steps, "warmup": warmup})
    return Entry(name, config, name)


def steps_for(config: Config, budget: float) -> int:
    """Training steps that cost so many TFLOP."""
    config, splits = prepare(None, config)
    model = Model.build(config, splits.train.classes)
    an_image = make_objective(model).passes * model.size()["mflop_per_image"]
    return max(1, round(budget * 1e6 / (an_image * config.train.batch_size)))


def compare(
    comparison: Comparison, out: str | Path, *, progress: bool = True
) -> list[dict[str, Any]]:
    """Train, measure and time every entry; gives the rows of the table."""
    out = Path(out)
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in comparison.entries:
        found[entry.name] = [
            _measured(entry, comparison.measures, seed, out, progress) for seed in comparison.seeds
        ]
    seconds = _seconds(comparison, out)
    return [
        _row(entry, found[entry.name], seconds[entry.of], comparison)
        for entry in comparison.entries
    ]


def _measured(
    entry: Entry, measures: Measures, seed: int, out: Path, progress: bool
) -> dict[str, Any]:
    """The figures of one entry and seed, each part written down as soon as it is known."""
    config = entry.config.replace(train={"seed": seed})
    run = out / "runs" / f"{_slug(entry.of)}-seed{seed}"
    path = out / "figures" / f"{_slug(entry.name)}-seed{seed}.json"
    recipe = _hash({"config": config.to_dict(), "measures": plain(measures)})
    kept = _kept(path, recipe)
    model = _trained(config, run, progress)
    model.config = model.config.replace(sample=config.to_dict()["sample"])
    plan = Plan(
        samples=measures.samples,
        features=measures.features,
        images=measures.attacked,
        attacks=("pgd",),
        epsilons=(measures.epsilon / 255,),
        attack_steps=measures.attack_steps,
        others=measures.others,
        novel=measures.novel,
        levels=0,
        checks=False,
    )
    splits = data_for(model)
    for part in ("classification", "generation", "robustness", "novelty"):
        if part in kept:
            continue
        kept[part] = None
        if obstacle(model, part) is None:
            found = evaluate(model, splits, [part], plan, keep=out / "drawn", progress=progress)
            kept[part] = found[part].summary()
        _write(path, {"recipe": recipe, "parts": kept})
    size = model.size()
    flag = flagging_score(model)
    return {**kept, **size, "flag": flag, "steps": model.config.train.steps}


def _trained(config: Config, path: Path, progress: bool) -> EGC:
    """The model of a run, trained if it is not yet."""
    run = Run(path)
    if (run.model / CONFIG_FILE).exists():
        run.check(prepare(None, config, before=run.saved_config())[0])
        return load(run.model)
    return EGC.fit(preset=config, run=path, progress=progress)


def _row(
    entry: Entry, found: Sequence[Mapping[str, Any]], seconds: float, comparison: Comparison
) -> dict[str, Any]:
    """The means of an entry over its seeds; None where it has no such figure."""
    first_other = comparison.measures.others[0] if comparison.measures.others else None
    ways = {
        "accuracy": ("classification", "accuracy"),
        "ece": ("classification", "ece"),
        "robust": ("robustness", "accuracy", "pgd", 0),
        "auroc": ("novelty", "others", first_other, found[0]["flag"], "auroc"),
        "fid": ("generation", "fid"),
        "judge_frechet": ("generation", "judge_frechet"),
        "agreement": ("generation", "agreement"),
    }
    row: dict[str, Any] = {"name": entry.name, "kind": entry.config.objective.kind}
    for name, way in ways.items():
        values = [value for each in found if (value := _at(each, way)) is not None]
        row[name] = float(np.mean(values)) if values else None
        row[f"{name}_each"] = values
    row["flagged_by"] = found[0]["flag"]
    row["auroc_others"] = {
        other: [_at(each, ("novelty", "others", other, each["flag"], "auroc")) for each in found]
        for other in comparison.measures.others
    }
    for name in ("parameters", "mflop_per_image", "steps"):
        row[name] = found[0][name]
    row["seconds"] = round(seconds * row["steps"], 1)
    return row


def _at(tree: Any, way: Sequence[Any]) -> Any:
    """What lies at the end of a way through a tree; None where the way ends early."""
    for key in way:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _seconds(comparison: Comparison, out: Path) -> dict[str, float]:
    """Seconds of a training step of each trained entry, taken in turn, side by side."""
    path = out / "figures" / "seconds.json"
    trained = {entry.name: entry.config for entry in comparison.entries if entry.of == entry.name}
    recipe = _hash({name: config.to_dict() for name, config in trained.items()})
    kept = _kept(path, recipe)
    if kept:
        return kept
    steppers = {name: _Stepper(config) for name, config in trained.items()}
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for round_ in range(TIMED_STEPS + 1):
        for name, stepper in steppers.items():
            started = time.perf_counter()
            stepper.step(round_)
            if round_ > 0:  # the first only warms up
                times[name].append(time.perf_counter() - started)
    medians = {name: float(np.median(each)) for name, each in times.items()}
    _write(path, {"recipe": recipe, "parts": medians})
    return medians


class _Stepper:
    """A training step, without anything around it."""

    def __init__(self, config: Config):
        config, splits = prepare(None, config)
        self.model = Model.build(config, splits.train.classes)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(device)
        self.model.net.train()
        self.objective = make_objective(self.model)
        self.optimizer = torch.optim.Adam(self.model.net.parameters())
        clean = open_clean(config, splits.train)
        net = self.model.net
        self.stream = BatchStream(
            splits.train,
            self.model.codec,
            config,
            device,
            clean_data=clean,
            no_label=net.no_label if net.label_conditioned else None,
        )

    def step(self, number: int) -> None:
        for part in self.objective.plan(self.stream(number)):
            self.objective(part).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()


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
