"""Flags generated from fields: those of a configuration, and those of a request's sampling parameters.

A verb names the groups it takes with `@flagged(...)` and receives them as keyword arguments; `taken` sorts
out which were given. Names, help and defaults come from the fields, so a new field is a new flag. It knows no
verb.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from wager.config import Allowed, Setting, settings_of
from wager.errors import ConfigError, RequestError
from wager.records import SamplingParams
from wager.resolve import PROFILES, Resolved, resolve

Function = TypeVar("Function", bound=Callable[..., object])

# How a field of a request is typed on the command line.
_TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "int | None": int,
    "str | None": str,
    "tuple[str, ...]": list[str],
    "tuple[int, ...]": list[int],
    "Mapping[int, float] | None": list[str],
}
_METAVARS = {int: "N", float: "X", bool: None, str: "TEXT", list[str]: "TEXT", list[int]: "ID"}


def config_flags(root: type[Any]) -> list[inspect.Parameter]:
    """One flag for every field of a configuration."""
    return [_config_flag(setting) for setting in settings_of(root)]


def source_flags() -> list[inspect.Parameter]:
    """Where the configuration is read from: a profile and a file."""
    profile = typer.Option(metavar="NAME", help=f"Set several at once: {', '.join(PROFILES)}.")
    config = typer.Option(metavar="FILE.toml", help="Read settings from this file.")
    return [parameter("profile", str, profile), parameter("config", Path, config)]


def sampling_flags() -> list[inspect.Parameter]:
    """One flag for every field of a request that can be said in a word."""
    return [_sampling_flag(one) for one in fields(SamplingParams) if one.metadata["flag"]]


def flagged(*groups: list[inspect.Parameter]) -> Callable[[Function], Function]:
    """Give a verb the generated flags behind its own; it takes them as `**values`, None where not given."""

    def extend(function: Function) -> Function:
        own = inspect.signature(function, eval_str=True).parameters.values()
        named = [one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
        generated = [one for group in groups for one in group]
        function.__signature__ = inspect.Signature([*named, *generated])  # type: ignore[attr-defined]
        return function

    return extend


def resolved(values: Mapping[str, object], root: type[Any], model: str | None = None) -> Resolved[Any]:
    """The configuration out of a verb's flags, this process's environment and the file they name.

    `model` is the verb's own argument, which says the same as `--model`.
    """
    given = taken(values, config_flags(root))
    if model is not None and given.setdefault("model", model) != model:
        raise ConfigError("model", given["model"], f"named once, not also as {model}")
    profile, file = values.get("profile"), values.get("config")
    return resolve(
        file if isinstance(file, Path) else None,
        os.environ,
        given,
        profile if isinstance(profile, str) else None,
        root,
    )


def say_default_model(settings: Resolved[Any]) -> None:
    """One line on stderr where nobody named a model, for verbs that run one."""
    if settings.sources["model.model"] == "default":
        name = settings.value("model")
        print(
            f"wager: no model was named: {name} answers, the toy pair that ships with Wager", file=sys.stderr
        )


def taken(values: Mapping[str, object], group: list[inspect.Parameter]) -> dict[str, object]:
    """Those of a verb's values that belong to this group and were given."""
    names = [one.name for one in group]
    return {name: values[name] for name in names if values.get(name) not in (None, [])}


def sampling_params(values: Mapping[str, object]) -> SamplingParams:
    """The request that the flags describe. Raises RequestError naming the field."""
    given: dict[str, Any] = taken(values, sampling_flags())
    if "logit_bias" in given:
        given["logit_bias"] = dict(_bias(text) for text in given["logit_bias"])
    return SamplingParams(**given)


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise RequestError(f"{text!r} is not ID=NUMBER", "logit_bias") from error


def parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    """A flag that is None where it was not given."""
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _config_flag(setting: Setting) -> inspect.Parameter:
    """Everything but a switch is taken as text: the field itself reads it and says what it allows."""
    help = setting.help if setting.default == "" else f"{setting.help} [default: {_shown(setting.default)}]"
    if setting.allowed.type is bool:
        switch = f"{setting.flag}/--no-{setting.flag[2:]}"
        return parameter(setting.name, bool, typer.Option(switch, help=help))
    option = typer.Option(setting.flag, metavar=_metavar(setting.allowed), help=help)
    return parameter(setting.name, str, option)


def _sampling_flag(one: Field[Any]) -> inspect.Parameter:
    kind = _TYPES[str(one.type)]
    metavar = "ID=X" if one.name == "logit_bias" else _METAVARS[kind]
    flag = "--" + one.name.replace("_", "-")
    help = one.metadata["help"]
    if one.default not in (None, ()):
        help += f" [default: {_shown(one.default)}]"
    elif kind in (list[str], list[int]):
        help += " May be repeated."
    return parameter(one.name, kind, typer.Option(flag, metavar=metavar, help=help))


def _metavar(allowed: Allowed) -> str:
    if allowed.type is str:
        return "|".join(allowed.words) if allowed.words else "TEXT"
    return "N" if allowed.type is int else "X"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
