"""Resolves settings from their sources: defaults, a profile, a file, the environment and flags.

A later source overrides the earlier ones. `resolve` returns the configuration and the source of every field.
This module neither parses flags nor reads the process environment: callers pass both in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from wager.config import (
    EngineConfig,
    Setting,
    settings_of,
    unknown_key,
    with_values,
)
from wager.errors import ConfigError, InputError
from wager.server_config import ServeConfig

__all__ = ["PROFILES", "Effective", "Resolved", "resolve"]

C = TypeVar("C")

PROFILES: dict[str, dict[str, object]] = {
    "latency": {"max_rows": 8, "prefill_chunk": 1024, "max_nodes": 128, "max_batch_nodes": 256},
    "throughput": {
        "max_rows": 128,
        "max_step_tokens": 8192,
        "prefill_chunk": 1024,
        "max_nodes": 16,
        "row_floor": 0,
        "bod_max_bet": 8,
        "memory_threshold": 0.95,
    },
    "low-memory": {
        "page_size": 16,
        "memory_gib": 1.0,
        "max_rows": 4,
        "max_step_tokens": 512,
        "prefill_chunk": 256,
        "max_nodes": 16,
        "max_batch_nodes": 64,
    },
    "long-context": {
        "page_size": 64,
        "max_rows": 4,
        "max_step_tokens": 4096,
        "prefill_chunk": 2048,
        "memory_threshold": 0.95,
    },
}
# Variables with the prefix of settings that are not settings.
OTHER_VARIABLES = frozenset({"WAGER_LOG", "WAGER_CONFIG", "WAGER_PROFILE", "WAGER_MODELS"})
# Every command accepts these settings, so that one file can serve all commands.
_ALL_SETTINGS = {setting.key: setting for setting in settings_of(ServeConfig)}
_BOD_FIELDS = ("bod_min_bet", "bod_max_bet", "bod_default_scale_cost", "bod_default_fixed_cost")


class Effective(NamedTuple):
    """An effective value and its source."""

    setting: Setting
    value: object
    source: str


@dataclass(frozen=True)
class Resolved(Generic[C]):
    """A configuration, with the source of each value by `section.field`."""

    config: C
    sources: Mapping[str, str]

    def choose(self, name: str, value: object, reason: str) -> Resolved[C]:
        """Returns a copy with a decided value for an "auto"; `reason` becomes its source."""
        config = with_values(self.config, **{name: value})
        key = next(one.key for one in settings_of(type(self.config)) if one.name == name)
        return Resolved(config, {**self.sources, key: reason})

    def rows(self) -> Iterator[Effective]:
        """Yields every field with its value and source, in order."""
        for setting in settings_of(type(self.config)):
            holder = getattr(self.config, setting.section) if setting.section else self.config
            yield Effective(setting, getattr(holder, setting.name), self.sources[setting.key])

    def value(self, name: str) -> object:
        return next(row.value for row in self.rows() if row.setting.name == name)


class _Layer(NamedTuple):
    """The values of one source by field name, and for each field a label that names the source."""

    values: dict[str, object]
    labels: dict[str, str]


def resolve(
    file: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    profile: str | None = None,
    root: type[Any] = EngineConfig,
) -> Resolved[Any]:
    """Returns the configuration from all sources. Flags with the value None are ignored; texts are converted.

    The file is the argument, else WAGER_CONFIG. The profile is the argument, else WAGER_PROFILE, else the one
    that the file names. Raises ConfigError for a wrong value, a contradiction or an unknown name, and
    InputError for the file.
    """
    env = env or {}
    known = {setting.name: setting for setting in settings_of(root)}
    from_file = _file_layer(file or env.get("WAGER_CONFIG"), known)
    of_file = from_file.values.pop("profile", None)
    wanted = profile or env.get("WAGER_PROFILE") or of_file
    layers = [_profile_layer(wanted), from_file, _env_layer(env, known), _flag_layer(flags or {}, known)]
    values: dict[str, object] = {}
    sources = {setting.key: "default" for setting in known.values()}
    for layer in layers:
        for name, value in layer.values.items():
            values[name] = value
            sources[known[name].key] = layer.labels[name]
    config = with_values(root(), **values)
    _refuse_ineffective_flags(config, layers[-1])
    return Resolved(config, sources)


def _profile_layer(name: object) -> _Layer:
    if not name:
        return _Layer({}, {})
    if not isinstance(name, str) or name not in PROFILES:
        raise ConfigError("profile", name, f"one of {', '.join(PROFILES)}")
    values = PROFILES[name]
    return _Layer(dict(values), dict.fromkeys(values, f"profile {name}"))


def _file_layer(path: str | Path | None, known: Mapping[str, Setting]) -> _Layer:
    if not path:
        return _Layer({}, {})
    found: dict[str, object] = {}
    places = {**_ALL_SETTINGS, **{one.key: one for one in known.values()}}
    for key, value in _flat(_read_toml(Path(path)), {one.section for one in places.values()}):
        if key == "profile":
            found[key] = value
            continue
        if key not in places:
            raise unknown_key(key, list(places), f"file {path}")
        places[key].check(value)
        if places[key].name in known:
            found[places[key].name] = value
    return _Layer(found, dict.fromkeys(found, f"file {path}"))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", "config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}", "config") from error


def _flat(table: Mapping[str, Any], sections: set[str]) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict) and key in sections:
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def _env_layer(env: Mapping[str, str], known: Mapping[str, Setting]) -> _Layer:
    by_variable = {setting.variable: setting for setting in known.values()}
    anywhere = {setting.variable for setting in _ALL_SETTINGS.values()}
    layer = _Layer({}, {})
    for variable in sorted(env):
        if not variable.startswith("WAGER_") or variable in OTHER_VARIABLES:
            continue
        if variable in by_variable:
            _add(layer, by_variable[variable], env[variable], f"env {variable}")
        elif variable not in anywhere:
            raise unknown_key(variable, list(by_variable), "environment")
    return layer


def _flag_layer(flags: Mapping[str, object], known: Mapping[str, Setting]) -> _Layer:
    layer = _Layer({}, {})
    for name, value in flags.items():
        if name not in known:
            raise unknown_key(name, list(known), "flag")
        if value is not None:
            _add(layer, known[name], value, f"flag {known[name].flag}")
    return layer


def _add(layer: _Layer, setting: Setting, value: object, label: str) -> None:
    value = setting.allowed.read(value) if isinstance(value, str) else value
    setting.check(value)
    layer.values[setting.name] = value
    layer.labels[setting.name] = label


def _refuse_ineffective_flags(config: object, flags: _Layer) -> None:
    """Refuses flags without effect under this policy. A file or the environment may have such values."""
    policy = getattr(config, "policy", None)
    if policy is None:
        return
    gates, kind, _ = policy.parts
    for name in flags.values:
        if name in _BOD_FIELDS and kind != "bod":
            raise ConfigError(name, flags.values[name], "not given unless the policy is bod (--policy bod)")
        gate = name.partition("_")[0]
        if gate in ("ema", "entropy") and gate not in gates:
            raise ConfigError(name, flags.values[name], f"not given without that gate (--policy {gate}+NAME)")
