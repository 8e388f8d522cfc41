"""Where values come from: defaults, a profile, a file, the environment, flags, in rising precedence.

`resolve` answers with the configuration and, for every field, its source. A contradiction inside one source
is refused; between two, the higher one wins: `--bod-enabled` puts a file's `policy = "fixed:3"` aside. It
knows no flag parser and reads no environment of its own; command line and server hand theirs in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from wager.config import (
    EngineConfig,
    PolicyParts,
    Setting,
    join_policy,
    settings_of,
    split_policy,
    unknown_key,
    with_values,
)
from wager.errors import ConfigError, InputError
from wager.server_config import ServeConfig

__all__ = ["PROFILES", "Effective", "Resolved", "resolve", "stated"]

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
# Variables that begin like a setting's and are none: the log level, and where settings are read from.
OTHER_VARIABLES = frozenset({"WAGER_LOG", "WAGER_CONFIG", "WAGER_PROFILE"})
# What any verb knows: a file made for the server is no mistake where its own part does nothing.
_ANYWHERE = {setting.key: setting for setting in settings_of(ServeConfig)}
_BOD_FIELDS = ("bod_mode", "bod_min_bet", "bod_max_bet", "bod_default_scale_cost", "bod_default_fixed_cost")


class Effective(NamedTuple):
    """One value as it holds, and its source."""

    setting: Setting
    value: object
    source: str


@dataclass(frozen=True)
class Resolved(Generic[C]):
    """A configuration, and for each `section.field` where its value came from."""

    config: C
    sources: Mapping[str, str]

    def choose(self, name: str, value: object, reason: str) -> Resolved[C]:
        """A copy in which an "auto" has been decided; `reason` becomes its source."""
        config = with_values(self.config, **{name: value})
        key = next(one.key for one in settings_of(type(self.config)) if one.name == name)
        return Resolved(config, {**self.sources, key: reason})

    def rows(self) -> Iterator[Effective]:
        """Every field with its value and source, in order."""
        for setting in settings_of(type(self.config)):
            holder = getattr(self.config, setting.section) if setting.section else self.config
            yield Effective(setting, getattr(holder, setting.name), self.sources[setting.key])

    def value(self, name: str) -> object:
        return next(row.value for row in self.rows() if row.setting.name == name)


class _Layer(NamedTuple):
    """One source: field names and values, and for each field the words that name it."""

    values: dict[str, object]
    labels: dict[str, str]


def resolve(
    file: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    profile: str | None = None,
    root: type[Any] = EngineConfig,
) -> Resolved[Any]:
    """The configuration out of all sources. A flag given as None is not given; texts are read as their type.

    The file and the profile are the arguments' own, else those of WAGER_CONFIG and WAGER_PROFILE, else, for
    the profile, the file's. Raises ConfigError (a value, a contradiction, an unknown name) or InputError (the
    file).
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
        _refuse_contradiction(layer)
        for name, value in {**_set_aside(layer.values, values), **layer.values}.items():
            values[name] = value
            sources[known[name].key] = _label(layer, name)
    config = with_values(root(), **values)
    _refuse_idle(config, layers[-1])
    return Resolved(config, sources)


def stated(config: C) -> Resolved[C]:
    """A configuration made by hand: what differs from the default was given."""
    resolved = Resolved(config, {setting.key: "default" for setting in settings_of(type(config))})
    given = {row.setting.key: "given" for row in resolved.rows() if row.value != row.setting.default}
    return Resolved(config, {**resolved.sources, **given})


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
    places = {**_ANYWHERE, **{one.key: one for one in known.values()}}
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
    anywhere = {setting.variable for setting in _ANYWHERE.values()}
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


def _label(layer: _Layer, name: str) -> str:
    """A field that was set aside rather than set has its source from the layer's policy fields."""
    if name in layer.labels:
        return layer.labels[name]
    cause = next(one for one in ("policy", "bod_enabled", "gate", "bod_mode") if one in layer.labels)
    return layer.labels[cause]


def _refuse_contradiction(layer: _Layer) -> None:
    """Two values of one source that cannot both be meant; what the dataclass refuses itself is left to it."""
    values = layer.values
    if "policy" not in values:
        return
    policy = str(values["policy"])
    gates, kind, argument = split_policy(policy)
    enabled, mode = values.get("bod_enabled"), values.get("bod_mode")
    if enabled is not None and enabled != (kind == "bod"):
        says = "true" if kind == "bod" else "false"
        raise ConfigError("bod_enabled", enabled, f"{says}, since policy is {policy}")
    if kind == "bod" and argument and mode is not None and mode != argument:
        raise ConfigError("bod_mode", mode, f"{argument}, since policy is {policy}")
    if gates and "gate" in values:
        raise ConfigError("gate", values["gate"], f"not given, since policy {policy} has a gate of its own")


def _set_aside(new: Mapping[str, object], below: Mapping[str, object]) -> dict[str, object]:
    """What a layer's policy fields change among the others' values below, which would contradict them."""
    changed: dict[str, object] = {}
    if "policy" in new:
        gates, kind, argument = split_policy(str(new["policy"]))
        changed["bod_enabled"] = kind == "bod"
        if gates:
            changed["gate"] = "none"
        if kind == "bod" and argument:
            changed["bod_mode"] = argument
    else:
        gates, kind, argument = split_policy(str(below.get("policy", "auto")))
        enabled = new.get("bod_enabled")
        if enabled is not None and enabled != (kind == "bod"):
            kind, argument = ("auto", "") if enabled or kind == "bod" else (kind, argument)
        elif kind == "bod" and "bod_mode" in new:
            argument = ""
        changed["policy"] = join_policy(PolicyParts(() if "gate" in new else gates, kind, argument))
    return {name: value for name, value in changed.items() if name in below and below[name] != value}


def _refuse_idle(config: object, flags: _Layer) -> None:
    """A flag that would do nothing is a mistake; in a file it may wait for its day."""
    policy = getattr(config, "policy", None)
    if policy is None:
        return
    gates, kind, _ = policy.parts
    for name in flags.values:
        if name in _BOD_FIELDS and kind != "bod":
            raise ConfigError(name, flags.values[name], "not given unless the policy is bod (--bod-enabled)")
        gate = name.partition("_")[0]
        if gate in ("ema", "entropy") and gate not in gates:
            raise ConfigError(name, flags.values[name], f"not given without that gate (--gate {gate})")
