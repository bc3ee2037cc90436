"""Registries: the names that configurations and commands use, and what each stands for.

To add a backbone, readout, objective, sampler, data source or metric is to write one file that
registers it, in the package or in a module of your own:

    from egc.registry import samplers

    @samplers.register("heun")
    def heun(betas, steps):
        ...

The package's own entries are found by importing the modules of a registry's `homes`, when a name
is first looked up. Your own module is known once it is imported: by Python, or by
`egc VERB ... --import my_module`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from egc.errors import ConfigError, suggest

Entry = TypeVar("Entry")


class Registry:
    """Names of one kind of thing.

    Args:
        what: the kind, for messages, such as "sampler".
        homes: modules, or packages of modules, that register the package's own entries.
        own: names of those that are known without importing PyTorch, for a quick answer.
    """

    def __init__(self, what: str, *homes: str, own: tuple[str, ...] = ()):
        self.what = what
        self.homes = homes
        self.own = own
        self._entries: dict[str, Any] = {}
        self._complete = False

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """A decorator that gives a class or function this name; yours replaces the package's."""

        def add(entry: Entry) -> Entry:
            if name not in self._entries or not entry.__module__.startswith("egc."):
                self._entries[name] = entry
            return entry

        return add

    def names(self) -> list[str]:
        self._find_own()
        return list(self._entries)

    def imported(self) -> dict[str, Any]:
        """The entries whose modules have been imported so far."""
        return dict(self._entries)

    def __contains__(self, name: object) -> bool:
        if name in self.own or name in self._entries:
            return True
        self._find_own()
        return name in self._entries

    def check(self, name: str) -> None:
        """Refuse a name that nothing has, with the nearest ones that something has."""
        if name not in self:
            known = self.names()
            raise ConfigError(
                f"There is no {self.what} {name!r}. {suggest(str(name), known, most=len(known))} "
                "One of your own is known once its module is imported (--import MODULE)."
            )

    def __getitem__(self, name: str) -> Any:
        """The entry of a name; a ConfigError with the nearest ones if there is none."""
        self.check(name)
        if name not in self._entries:
            self._find_own()
        return self._entries[name]

    def _find_own(self) -> None:
        if self._complete:
            return
        self._complete = True
        for home in self.homes:
            module = import_module(home)
            for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
                import_module(f"{home}.{found.name}")


backbones = Registry("network.kind", "egc.nn", own=("unet", "resnet", "pyramid"))
readouts = Registry("network.readout", "egc.nn")
objectives = Registry("objective.kind", "egc.objectives", "egc.baselines.objectives")
samplers = Registry("sampler", "egc.samplers")
sources = Registry("data source", "egc.data.sets")
metrics = Registry("metric", "egc.metrics")
