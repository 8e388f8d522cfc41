"""The properties of a model, each from the first source that has it.

The sources are flags, the model's generation_config.json, its own card, its family's card, and the fallback.

A card may leave any value to its family. Cards are found like drafters (wager/pairs.py), by the longest model
name contained in the given name; a model without a card finds its family by the model_type in its config.
Every value has its source. This module knows text, not tokens: wager/text/thinking.py encodes the marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from wager.cards.generation_config import FILE, generation_layer
from wager.errors import ConfigError
from wager.pairs import DEMO, Pair, find_pair, shipped_folder

Value = TypeVar("Value")

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Sourced(Generic[Value]):
    """A value and its source: flag, generation_config.json, card NAME, family NAME or fallback."""

    value: Value
    source: str


class ThinkingText(NamedTuple):
    """The marks around thinking, as text."""

    open: str
    close: str
    """Text with which the model itself closes its thinking."""
    terminator: str
    """Text that is forced when a budget is spent: the closing mark, often with a sentence before it."""


@dataclass(frozen=True)
class ModelCard:
    """The properties of one model."""

    max_tokens: Sourced[int]
    """Largest number of output tokens if the request has no limit."""
    reply_tokens: Sourced[int]
    """Number of output tokens that are reserved for the answer."""
    thinking: Sourced[ThinkingText | None]
    """The marks around thinking; None if the model does not think."""
    sampling: Sourced[Mapping[str, float]]
    """Fields of SamplingParams that the authors of the model recommend."""
    efforts: Sourced[Mapping[str, int]]
    """Thinking budgets by effort."""

    def rows(self) -> Iterator[tuple[str, object, str]]:
        """Yields name, value and source of each property, for doctor and /props."""
        for one in fields(self):
            found: Sourced[object] = getattr(self, one.name)
            yield one.name, _shown(found.value), found.source


def card_for(
    name: str,
    model_type: str = "",
    flags: Mapping[str, object] | None = None,
    folder: Path | None = None,
) -> ModelCard:
    """Returns the card of the model with this name or folder. Raises ConfigError on a flag of the wrong type.

    `flags` are values of the fields above that the user set; `thinking` may be the terminator alone. `folder`
    has the model's own generation_config.json.
    """
    own, given = _find(name), {k: v for k, v in (flags or {}).items() if v is not None}
    family = _family(own, model_type)
    layers: list[tuple[str, Mapping[str, Any]]] = [("fallback", _fallback())]
    if family is not None:
        layers.insert(0, (f"family {family['family']}", family))
    if own is not None:
        layers.insert(0, (f"card {own['model']}", own))
    if folder is not None:
        layers.insert(0, (FILE, generation_layer(folder)))
    marks = _first("thinking", layers)
    thinking = Sourced(None if marks.value is None else ThinkingText(**marks.value), marks.source)
    return ModelCard(
        _flag("max_tokens", given) or _first("max_tokens", layers),
        _flag("reply_tokens", given) or _first("hard_limit_reply_budget", layers),
        _with_terminator(thinking, given.get("thinking")),
        _frozen(_first("sampling", layers)),
        _frozen(_first("efforts", layers)),
    )


def _flag(name: str, given: Mapping[str, object]) -> Sourced[int] | None:
    if name not in given:
        return None
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(name, value, "a whole number from 0")
    return Sourced(value, "flag")


def _with_terminator(
    thinking: Sourced[ThinkingText | None], terminator: object
) -> Sourced[ThinkingText | None]:
    if terminator is None or thinking.value is None:
        return thinking
    if not isinstance(terminator, str) or not terminator:
        raise ConfigError("thinking", terminator, "a text with at least one character")
    return Sourced(thinking.value._replace(terminator=terminator), "flag")


def _first(name: str, layers: list[tuple[str, Mapping[str, Any]]]) -> Sourced[Any]:
    return next(Sourced(values[name], source) for source, values in layers if name in values)


def _frozen(found: Sourced[Any]) -> Sourced[Mapping[str, Any]]:
    return Sourced(MappingProxyType(dict(found.value)), found.source)


def _find(name: str) -> Mapping[str, Any] | None:
    """Returns the card with the longest model name contained in this name, or None."""
    demo = shipped_folder(DEMO)
    if name == DEMO or (name and demo is not None and Path(name).absolute() == demo.absolute()):
        return _cards()[DEMO]
    match = find_pair(name, [Pair(model, "-") for model in _cards() if model != DEMO]) if name else None
    return None if match is None else _cards().get(match.pair.target)


def _family(own: Mapping[str, Any] | None, model_type: str) -> Mapping[str, Any] | None:
    if own is not None:
        return _families()[own["family"]]
    return next((one for one in _families().values() if model_type in one["model_types"]), None)


@cache
def _cards() -> dict[str, Mapping[str, Any]]:
    found = [_read(path) for path in sorted(FOLDER.glob("*.json")) if path.stem != "fallback"]
    return {card["model"]: card for card in found}


@cache
def _families() -> dict[str, Mapping[str, Any]]:
    found = [_read(path) for path in sorted((FOLDER / "families").glob("*.json"))]
    return {family["family"]: family for family in found}


@cache
def _fallback() -> Mapping[str, Any]:
    return _read(FOLDER / "fallback.json")


def _read(path: Path) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _shown(value: object) -> object:
    if isinstance(value, ThinkingText):
        return value._asdict()
    return dict(value) if isinstance(value, Mapping) else value
