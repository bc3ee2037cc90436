"""Checkpoints: a folder each, of tensors and a small JSON file. Nothing is pickled.

A checkpoint is written under a temporary name, flushed to disk, and only then renamed, so one
that bears its final name is whole. Each records the hash of its tensors: a damaged one is
detected, reported and passed over for the one before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file, save_file
from torch import Tensor

log = logging.getLogger("egc")

TENSORS_FILE, ABOUT_FILE = "state.safetensors", "state.json"


class Checkpoint(NamedTuple):
    step: int
    tensors: dict[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint into `folder` and delete all but the newest `keep`."""
    final = folder / f"step-{checkpoint.step:08d}"
    temporary = folder / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(checkpoint.tensors, temporary / TENSORS_FILE)
    about = {"step": checkpoint.step, "sha256": _hash(temporary / TENSORS_FILE)}
    (temporary / ABOUT_FILE).write_text(json.dumps(about))
    for path in (temporary / TENSORS_FILE, temporary / ABOUT_FILE, temporary):
        _flush(path)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    _flush(folder)
    for _, old in _found(folder)[keep:]:
        shutil.rmtree(old)
    return final


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest one that is whole, going by what the checkpoints say and not by their names."""
    for step, path in _found(folder):
        about = json.loads((path / ABOUT_FILE).read_text())
        if (path / TENSORS_FILE).is_file() and _hash(path / TENSORS_FILE) == about["sha256"]:
            return Checkpoint(step, load_file(path / TENSORS_FILE))
        log.warning("The checkpoint %s is damaged; going back to the one before.", path)
    return None


def _found(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the checkpoints in a folder, newest first."""
    found = []
    for path in folder.glob("step-*"):
        try:
            about = json.loads((path / ABOUT_FILE).read_text())
            found.append((int(about["step"]), path))
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s is not a readable checkpoint; ignoring it.", path)
    return sorted(found, reverse=True)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
