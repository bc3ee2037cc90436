"""Nested dataclasses from plain trees (of TOML or JSON) and back, checked key by key.

A field's annotation says what type its value has; its metadata may bound it (`low`, `high`,
`above`, `below`) or list its `choices`. Whatever does not fit is refused with the key's full name.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from egc.errors import ConfigError, suggest


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over` laid on top, section by section."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def set_key(tree: dict[str, Any], setting: str) -> None:
    """Apply one `section.key=value`; the value is TOML, or else taken as a string."""
    path, separator, text = setting.partition("=")
    keys = path.strip().split(".")
    if not separator or len(keys) < 2:
        raise ConfigError(
            f"A setting is section.key=value, such as train.steps=500; got {setting!r}."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{path} is not a key: {key} holds a value, not a section.")
    tree[keys[-1]] = value


def build(cls: type, tree: Mapping[str, Any], prefix: str) -> Any:
    """The dataclass `cls` from a tree; `prefix` is where in the whole it stands."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{prefix[:-1]} is a section of keys; got {tree!r}.")
    known = {f.name: f for f in fields(cls)}
    for key in tree:
        if key not in known:
            hint = suggest(f"{prefix}{key}", [f"{prefix}{name}" for name in known], most=12)
            raise ConfigError(f"Unknown configuration key '{prefix}{key}'. {hint}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        kind, name = hints[key], f"{prefix}{key}"
        if is_dataclass(kind):
            values[key] = build(typing.cast(type, kind), value, f"{name}.")
        else:
            values[key] = _value(value, kind, name)
            _check_range(values[key], known[key].metadata, name)
    return cls(**values)


def _value(value: Any, kind: Any, name: str) -> Any:
    """`value` as the type a field declares, or a ConfigError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # only ever `X | None`; TOML has no null
        return _value(value, arguments[0], name)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(
                f"{name} = {value!r} is not a choice. {suggest(str(value), arguments)}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} is a list such as [1, 2]; got {value!r}.")
        return tuple(_value(item, arguments[0], name) for item in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ConfigError(f"{name} is {words[kind]}; got {value!r}.")
    return value


def _check_range(value: Any, limits: Mapping[str, Any], name: str) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        for limit, refused, words in (
            ("above", lambda v, edge: v <= edge, "larger than"),
            ("low", lambda v, edge: v < edge, "at least"),
            ("below", lambda v, edge: v >= edge, "smaller than"),
            ("high", lambda v, edge: v > edge, "at most"),
        ):
            if limit in limits and refused(item, limits[limit]):
                raise ConfigError(f"{name} must be {words} {limits[limit]}; got {item}.")
        if "choices" in limits and item not in limits["choices"]:
            allowed = " or ".join(str(choice) for choice in limits["choices"])
            raise ConfigError(f"{name} must be {allowed}; got {item}.")


def plain(config: Any) -> dict[str, Any]:
    """A dataclass as a tree, without the keys that are None."""
    tree: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            tree[f.name] = plain(value)
        elif value is not None:
            tree[f.name] = list(value) if isinstance(value, tuple) else value
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
