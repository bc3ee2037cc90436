"""Where models are found: those that ship with the package, directories, and the hub."""

from __future__ import annotations

import logging
import re
from importlib import resources
from pathlib import Path

from egc.errors import ModelError, suggest

log = logging.getLogger("egc")

SHIPPED = Path(str(resources.files("egc"))) / "models"


def find_model(name: str | Path) -> Path:
    """The directory of a model."""
    text = str(name)
    path = Path(name)
    if text in list_models():
        return SHIPPED / text
    if path.is_dir():
        exported = path / "model"
        return exported if exported.is_dir() else path
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text):
        return _download(text)
    raise ModelError(
        f"There is no model {text!r}: no shipped one and no directory. "
        f"{suggest(text, list_models())}"
    )


def list_models() -> list[str]:
    """The names of the models that ship with the package."""
    if not SHIPPED.is_dir():
        return []
    return sorted(path.name for path in SHIPPED.iterdir() if (path / "config.json").is_file())


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    log.warning("Fetching the model %s from the hub, unless it is here already.", hub_id)
    try:
        files = ["config.json", "model.safetensors", "README.md", "autoencoder/*"]
        return Path(snapshot_download(hub_id, allow_patterns=files))
    except Exception as error:  # the hub's client fails in many ways; all mean the same here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"There is no directory {hub_id!r}, and no model of that name could be fetched from "
            f"the hub: {reason}"
        ) from None
