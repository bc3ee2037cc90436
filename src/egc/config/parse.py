"""Nested dataclasses from plain tables (of TOML or JSON) and back, checked key by key.

A field's annotation says what type its value has; its metadata, made by `key`, says what it means
and may bound it (`low`, `high`, `above`, `below`), list its `choices`, or name the registry that
knows it. Whatever does not fit is refused with the key's full name. The command line makes its
flags from the same fields.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, Literal, NamedTuple

from egc.errors import ConfigError, suggest

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a table of keys",
}


def key(default: Any, doc: str, **limits: Any) -> Any:
    """A field of a configuration: its default, what it means, and what it may be.

    Limits: `above`, `low`, `below`, `high`, `choices`, `filled` (a list that may not be empty),
    and `registry`, whose names it takes.
    """
    metadata = {"doc": doc, **limits}
    if isinstance(default, type):  # a section of its own, or an empty table
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


class Key(NamedTuple):
    """One key of a configuration, for those who list them."""

    name: str
    """with its sections, such as train.steps"""
    hint: Any
    """its annotation"""
    limits: Mapping[str, Any]
    default: Any
    doc: str

    @property
    def type(self) -> str:
        """What a value may be, in words; a registry's names are looked up for it."""
        return type_words(self.hint, self.limits)


def keys(cls: type, prefix: str = "") -> Iterator[Key]:
    """All keys of a configuration, section by section."""
    hints = typing.get_type_hints(cls)
    for f in fields(cls):
        name = f"{prefix}{f.name}"
        if is_dataclass(hints[f.name]):
            yield from keys(typing.cast(type, hints[f.name]), f"{name}.")
        else:
            default = {} if f.default is dataclasses.MISSING else f.default
            yield Key(name, hints[f.name], f.metadata, default, f.metadata["doc"])


def type_words(kind: Any, limits: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if "registry" in limits:
        return "one of " + ", ".join(limits["registry"].names())
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if origin is types.UnionType:
        return type_words(arguments[0], limits)
    if origin is tuple:
        return f"a list: each {type_words(arguments[0], limits)}"
    return WORDS[origin or kind]


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over` laid on top, section by section."""
    merged = dict(base)
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def set_key(table: dict[str, Any], setting: str) -> None:
    """Apply one `section.key=value`; the value is TOML, or else taken as a string."""
    path, separator, text = setting.partition("=")
    names = path.strip().split(".")
    if not separator or len(names) < 2:
        raise ConfigError(
            f"A setting is section.key=value, such as train.steps=500; got {setting!r}."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path} is not a key: {name} holds a value, not a section.")
    table[names[-1]] = value


def build(cls: type, table: Mapping[str, Any], prefix: str = "") -> Any:
    """The dataclass `cls` from a table; `prefix` is where in the whole it stands."""
    check_keys(cls, table, prefix)
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        kind, place = hints[name], f"{prefix}{name}"
        if is_dataclass(kind):
            values[name] = build(typing.cast(type, kind), value, f"{place}.")
        else:
            values[name] = _value(value, kind, place)
            _check_limits(values[name], known[name], place)
    return cls(**values)


def check_keys(cls: type, table: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse unknown keys, in all sections, before any value is looked at."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{prefix[:-1]} is a section of keys; got {table!r}.")
    hints = typing.get_type_hints(cls)
    for name, value in table.items():
        if name not in hints:
            hint = suggest(f"{prefix}{name}", [f"{prefix}{known}" for known in hints], most=12)
            raise ConfigError(f"Unknown configuration key '{prefix}{name}'. {hint}")
        if is_dataclass(hints[name]):
            check_keys(typing.cast(type, hints[name]), value, f"{prefix}{name}.")


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
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {WORDS[dict]}; got {value!r}.")
        return dict(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # a number of numpy or torch
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} is {WORDS[kind]}; got {value!r}.")
    if kind is float and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number; got {value}.")
    return value


def _check_limits(value: Any, known: dataclasses.Field[Any], name: str) -> None:
    limits = known.metadata
    if limits.get("filled") and not value:
        raise ConfigError(f"{name} needs at least one value.")
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
        # The default is known without importing what the registry's names stand for.
        if "registry" in limits and item != known.default:
            limits["registry"].check(item)


def plain(config: Any) -> dict[str, Any]:
    """A dataclass as a table, without the keys that are None."""
    table: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            table[f.name] = plain(value)
        elif value is not None:
            table[f.name] = list(value) if isinstance(value, tuple) else value
    return table


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
