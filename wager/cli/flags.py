"""Generates command-line flags from the fields of a configuration and of SamplingParams.

A verb names its flag groups with `@with_flags(...)` and receives them as keyword arguments; `given_values`
returns those the user gave. Names, help texts and defaults come from the fields, so a new field becomes a new
flag. This file knows no verb.
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

from wager.cli.help import (
    BY_SETTING,
    MACHINE,
    MEMORY,
    MODEL,
    OTHER_POLICIES,
    SAMPLING,
    SERVER,
    SETTINGS,
    SPECULATION,
    complete_models,
    completing,
)
from wager.config import Allowed, Setting, settings_of
from wager.errors import ConfigError, RequestError
from wager.records import SamplingParams
from wager.resolve import PROFILES, Resolved, resolve

Function = TypeVar("Function", bound=Callable[..., object])

# The type of each sampling field on the command line, by the field's annotation.
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
SHORT_FLAGS = {
    "model": ["-m"],
    "drafter": ["-d"],
    "prompt": ["-p"],
    "max_tokens": ["-n"],
    "temperature": ["-t"],
    "out": ["-o"],
}
"""The short flags. Each means the same in every command."""
# Fields in the order of the help; the others follow in their own order.
_FIRST = ("model", "drafter", "policy", "device", "threads", "native", "dtype")
_GROUP_OF_SECTION = {
    "model": MACHINE,
    "cache": MEMORY,
    "scheduler": MEMORY,
    "policy": SPECULATION,
    "server": SERVER,
    "": MACHINE,
}
_GROUP_OF_FIELD = {"model": MODEL, "drafter": SPECULATION, "weights": MODEL}
_METAVARS = {int: "N", float: "X", bool: None, str: "TEXT", list[str]: "TEXT", list[int]: "ID"}


def config_flags(root: type[Any], groups: Mapping[str, str] | None = None) -> list[inspect.Parameter]:
    """Returns one flag for every field of a configuration, in the order of the help.

    `groups` names the group of a field and of those that follow it; without it a field has the group of its
    section.
    """
    settings, group, found = settings_of(root), "", []
    if groups is None:
        settings = sorted(settings, key=lambda one: _FIRST.index(one.name) if one.name in _FIRST else 99)
    for setting in settings:
        group = _group_of(setting) if groups is None else groups.get(setting.name, group)
        found.append(_config_flag(setting, group))
    return found


def source_flags() -> list[inspect.Parameter]:
    """Returns `--profile` and `--config`, which name where settings are read from."""
    profile = typer.Option(
        metavar="NAME",
        help=f"Use a set of settings: {', '.join(PROFILES)}.",
        rich_help_panel=SETTINGS,
        autocompletion=completing(PROFILES),
    )
    config = typer.Option(metavar="FILE.toml", help="Read settings from this file.", rich_help_panel=SETTINGS)
    return [parameter("profile", str, profile), parameter("config", Path, config)]


def sampling_flags() -> list[inspect.Parameter]:
    """Returns one flag for every sampling field that can be given on a command line."""
    return [_sampling_flag(field) for field in fields(SamplingParams) if field.metadata["flag"]]


def with_flags(*groups: list[inspect.Parameter]) -> Callable[[Function], Function]:
    """Adds generated flags to a verb, which receives them as `**values`; a flag not given is None."""

    def extend(function: Function) -> Function:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        named = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        generated = [flag for group in groups for flag in group]
        function.__signature__ = inspect.Signature([*named, *generated])  # type: ignore[attr-defined]
        return function

    return extend


def resolve_config(values: Mapping[str, object], root: type[Any], model: str | None = None) -> Resolved[Any]:
    """Builds the configuration from a verb's flags, the environment and the file that they name.

    `model` is the verb's positional argument, which means the same as `--model`.
    """
    given = given_values(values, config_flags(root))
    if model is not None and given.setdefault("model", model) != model:
        raise ConfigError("model", given["model"], f"one model, but {model} is named too")
    profile, file = values.get("profile"), values.get("config")
    return resolve(
        file if isinstance(file, Path) else None,
        os.environ,
        given,
        profile if isinstance(profile, str) else None,
        root,
    )


def announce_default_model(settings: Resolved[Any]) -> None:
    """Prints a line on stderr when no model was named and the demo model is used."""
    if settings.sources["model.model"] == "default":
        name = settings.value("model")
        print(f"wager: no model was named: using {name}, a toy model included in Wager", file=sys.stderr)


def given_values(values: Mapping[str, object], group: list[inspect.Parameter]) -> dict[str, object]:
    """Returns the values of the flags in this group that the user gave."""
    names = [flag.name for flag in group]
    return {name: values[name] for name in names if values.get(name) not in (None, [])}


def sampling_params(values: Mapping[str, object]) -> SamplingParams:
    """Builds the sampling parameters from the flags. Raises RequestError naming the field."""
    given: dict[str, Any] = given_values(values, sampling_flags())
    if "logit_bias" in given:
        given["logit_bias"] = dict(_bias(text) for text in given["logit_bias"])
    return SamplingParams(**given)


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise RequestError(f"{text!r} is not ID=NUMBER", "logit_bias") from error


def names_of(name: str) -> list[str]:
    """Returns the spellings of a flag: the same short one in every command, if it has one."""
    return ["--" + name.replace("_", "-"), *SHORT_FLAGS.get(name, ())]


def model_argument() -> Any:
    """Returns the positional argument MODEL, which means the same as `--model`."""
    return typer.Argument(
        metavar="MODEL", help="Target model, the same as --model.", autocompletion=complete_models
    )


def parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    """Returns a flag whose value is None when it was not given."""
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _group_of(setting: Setting) -> str:
    """Returns the help group of a field of an engine or a server."""
    if setting.name.startswith(("bod_", "ema_", "entropy_")):
        return OTHER_POLICIES
    return _GROUP_OF_FIELD.get(setting.name) or _GROUP_OF_SECTION[setting.section]


def _config_flag(setting: Setting, group: str) -> inspect.Parameter:
    """Returns a field's flag. All values but switches arrive as text, which the field itself parses."""
    help = setting.help if setting.default == "" else f"{setting.help} [default: {_shown(setting.default)}]"
    if setting.allowed.type is bool:
        switch = f"{setting.flag}/--no-{setting.flag[2:]}"
        return parameter(setting.name, bool, typer.Option(switch, help=help, rich_help_panel=group))
    words = setting.allowed.words
    option = typer.Option(
        *names_of(setting.name),
        metavar=_metavar(setting.allowed),
        help=help,
        rich_help_panel=group,
        autocompletion=completing(words) if words else BY_SETTING.get(setting.name),
    )
    return parameter(setting.name, str, option)


def _sampling_flag(field: Field[Any]) -> inspect.Parameter:
    kind = _TYPES[str(field.type)]
    metavar = "ID=X" if field.name == "logit_bias" else _METAVARS[kind]
    help = field.metadata["help"]
    if field.default not in (None, ()):
        help += f" [default: {_shown(field.default)}]"
    elif kind in (list[str], list[int]):
        help += " May be repeated."
    group = SPECULATION if field.name == "speculation" else SAMPLING
    option = typer.Option(*names_of(field.name), metavar=metavar, help=help, rich_help_panel=group)
    return parameter(field.name, kind, option)


def _metavar(allowed: Allowed) -> str:
    if allowed.type is str:
        return "|".join(allowed.words) if allowed.words else "TEXT"
    return "N" if allowed.type is int else "X"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
