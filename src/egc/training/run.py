"""A run directory: `config.toml, metrics.jsonl, samples/, checkpoints/, model/, report.html`."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from egc.config import Config
from egc.errors import ConfigError, RunError
from egc.training.schedule import obstacle_to_longer

# Keys that change what is written down or how a step is computed, but not what is learned.
FREE_KEYS = {
    "train.accumulate",
    "train.activation_checkpointing",
    "train.log_every",
    "train.preview_every",
    "train.checkpoint_every",
    "train.keep",
    "train.trackers",
    "sample.sampler",
    "sample.steps",
    "sample.guidance",
    "sample.cfg",
}


class Run:
    """The files of one training run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.metrics = self.path / "metrics.jsonl"
        self.samples = self.path / "samples"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.report = self.path / "report.html"
        self.lock_file = self.path / ".lock"

    def saved_config(self) -> Config | None:
        """The configuration this directory was made by, if it is a run."""
        if not self.config.exists():
            return None
        try:
            return Config.from_dict(tomllib.loads(self.config.read_text()))
        except (tomllib.TOMLDecodeError, ConfigError) as error:
            raise RunError(f"{self.config} cannot be read: {error}") from None

    def check(self, config: Config) -> None:
        """Refuse a directory that holds something else, before anything is written."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; a run needs a directory of its own.")
        before = self.saved_config()
        if before is None:
            if self.path.is_dir() and any(p.name != ".lock" for p in self.path.iterdir()):
                raise RunError(
                    f"{self.path} is neither empty nor a run of EGC; choose another directory."
                )
            return
        differ = {k: v for k, v in config.differences(before).items() if k not in FREE_KEYS}
        if differ.keys() == {"train.steps"}:
            why = obstacle_to_longer(before.train, config.train)
            if why is None:
                return  # a longer run is the same run, continued
            raise RunError(
                f"{self.path} cannot be given another length (train.steps was "
                f"{before.train.steps}, now {config.train.steps}): {why}. Begin another run with "
                f"its weights: --from {shlex.quote(str(self.path))}."
            )
        if differ:
            changes = "; ".join(f"{k} was {old}, now {new}" for k, (new, old) in differ.items())
            raise RunError(
                f"{self.path} was made by another configuration ({changes}). "
                "Use another directory, or the same configuration to resume."
            )

    def start(self, config: Config) -> None:
        """Create the directory and write down the configuration."""
        for folder in (self.samples, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        temporary = self.config.with_suffix(".tmp")
        temporary.write_text(config.to_toml())
        temporary.replace(self.config)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory: a second trainer is refused. A killed one lets go by itself."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.lock_file.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise RunError(
                    f"{self.path} is being trained by process {file.read().strip() or '?'}; "
                    "wait for it, or use another directory."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def clear(self) -> None:
        """Remove a former run, and nothing that a run does not write."""
        for folder in (self.samples, self.checkpoints, self.model):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.config, self.metrics, self.report):
            file.unlink(missing_ok=True)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records so far; a line cut short by a crash is left out."""
        records = []
        if self.metrics.exists():
            for line in self.metrics.read_text().splitlines():
                try:
                    records.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return records

    def log(self, record: dict[str, Any]) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def rewind(self, step: int) -> None:
        """Forget metrics from after `step`, which training is about to write again."""
        kept = [record for record in self.read_metrics() if record["step"] <= step]
        temporary = self.metrics.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        temporary.replace(self.metrics)
