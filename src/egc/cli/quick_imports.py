"""Import diffusers without the compiler it would load.

`diffusers.utils.torch_utils` imports `torch._dynamo`, two seconds, for a decorator that only
matters to those who compile the transformers of diffusers, and does without where that fails. The
command line never compiles those, so for the time of this one import there is no `torch._dynamo`;
afterwards it can be imported as ever. A library must not do this to its users: the command line
has its process for itself.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

IMPORTER, SPARED = "diffusers.utils.torch_utils", "torch._dynamo"


class _SparingLoader(Loader):
    def __init__(self, loader: Any):
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if SPARED in sys.modules:
            self.loader.exec_module(module)
            return
        sys.modules[SPARED] = None  # type: ignore[assignment]  # "cannot be imported"
        try:
            self.loader.exec_module(module)
        finally:
            del sys.modules[SPARED]


class _SparingFinder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != IMPORTER:
            return None
        sys.meta_path.remove(self)  # once, and so that the ordinary finders are asked
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _SparingLoader(spec.loader)
        return spec


def spare_the_compiler() -> None:
    """From now on, diffusers is imported without `torch._dynamo`."""
    if IMPORTER not in sys.modules:
        sys.meta_path.insert(0, _SparingFinder())
