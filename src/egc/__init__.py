"""EGC: one network that classifies by its forward pass and generates by its backward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egc.api import EGC, load
    from egc.config import Config
    from egc.energy import EnergyModel, Joint
    from egc.errors import EGCError
    from egc.hub import list_models

__version__ = "0.1.0"
__all__ = ["EGC", "Config", "EGCError", "EnergyModel", "Joint", "list_models", "load"]

# Imported on first use, so that the command line can answer `--help` without loading PyTorch.
_HOME = {
    "EGC": "egc.api",
    "list_models": "egc.hub",
    "load": "egc.api",
    "Config": "egc.config",
    "EnergyModel": "egc.energy",
    "Joint": "egc.energy",
    "EGCError": "egc.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'egc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
