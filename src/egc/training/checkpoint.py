"""Checkpoints: a folder each, of tensors and a small JSON file. Nothing is pickled.

A checkpoint is written under a temporary name, flushed to disk, and only then renamed, so one
that bears its final name is whole. Each records the hash of its tensors: a damaged one is
detected, reported and passed over for the one before.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from egc.errors import TrainingError

log = logging.getLogger("egc")

TENSORS_FILE, ABOUT_FILE = "state.safetensors", "state.json"


class Checkpoint(NamedTuple):
    step: int
    tensors: dict[str, Tensor]
    quality: float | None = None
    """higher is better; the best one is kept"""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint into `folder`; keep the newest `keep` and the best, delete the rest."""
    final = folder / f"step-{checkpoint.step:08d}"
    temporary = folder / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _write(temporary, checkpoint)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise TrainingError(_why(error, folder, checkpoint.step)) from None
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    _flush(folder)
    _clean(folder, keep)
    return final


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest one that is whole, going by what the checkpoints say and not by their names."""
    for about, path in _found(folder):
        tensors = path / TENSORS_FILE
        if tensors.is_file() and _hash(tensors) == about["sha256"]:
            return Checkpoint(about["step"], load_file(tensors), about["quality"])
        log.warning("The checkpoint %s is damaged; going back to the one before.", path)
    return None


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir(parents=True)
    save_file(checkpoint.tensors, folder / TENSORS_FILE)
    about = {
        "step": checkpoint.step,
        "quality": checkpoint.quality,
        "sha256": _hash(folder / TENSORS_FILE),
    }
    (folder / ABOUT_FILE).write_text(json.dumps(about))
    for path in (folder / TENSORS_FILE, folder / ABOUT_FILE, folder):
        _flush(path)


def _clean(folder: Path, keep: int) -> None:
    found = _found(folder)
    rated = [(about["quality"], path) for about, path in found if about["quality"] is not None]
    # Of equals the newest stays, which comes first.
    best = max(rated, key=lambda pair: pair[0])[1] if rated else None
    for _, path in found[keep:]:
        if path != best:
            shutil.rmtree(path)
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def _found(folder: Path) -> list[tuple[dict[str, Any], Path]]:
    """What the checkpoints in a folder say of themselves, newest first."""
    found = []
    for path in folder.glob("step-*"):
        try:
            about = json.loads((path / ABOUT_FILE).read_text())
            wanted = {"step": int(about["step"]), "sha256": str(about["sha256"])}
            found.append(({**wanted, "quality": about.get("quality")}, path))
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s is not a readable checkpoint; ignoring it.", path)
    return sorted(found, key=lambda item: item[0]["step"], reverse=True)


def _why(error: Exception, folder: Path, step: int) -> str:
    full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
    reason = "the disk is full" if full else str(error)
    steps = [about["step"] for about, _ in _found(folder)]
    state = f"the checkpoint of step {steps[0]} is whole" if steps else "there is none before it"
    return f"The checkpoint of step {step} could not be written to {folder}: {reason}; {state}."


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
