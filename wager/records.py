"""The small frozen records that rooms hand to one another.

Standard library only, so that every room may import it. Records carry values and read-outs of those values;
they decide nothing. Who makes a record and who reads it is said in its own docstring.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from wager.errors import RequestError

__all__ = [
    "CloseKind",
    "CloseReport",
    "GrammarSpec",
    "SamplingParams",
    "ThinkingLimit",
    "TokenDetail",
    "Verdict",
]

MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_MARK = 64
MAX_FIXED = 1024
GRAMMAR_KINDS = ("json_schema", "regex", "lark")
_SEED_BITS = 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target said about one row's tree: made by accept, read by commit, emit and learn."""

    accepted: tuple[int, ...]
    """The guessed tokens that stand, in order."""
    path: tuple[int, ...]
    """Their node indices in the tree."""
    target_token: int
    """The bonus: the target's own token after the last accepted guess."""
    num_drafted: int
    """Nodes that were verified."""
    first_rejection: int | None = None
    """0-based depth of the first refused guess; None where the path ended at a leaf: nothing was refused."""

    @property
    def num_accepted(self) -> int:
        return len(self.accepted)

    @property
    def emitted(self) -> tuple[int, ...]:
        """Accepted guesses and the bonus."""
        return (*self.accepted, self.target_token)


class CloseKind(StrEnum):
    """How a thinking span ended."""

    NATURAL = "natural"
    """The model wrote the close itself."""
    HARD = "hard"
    """Its budget was spent."""
    SOFT = "soft"
    """The close was likely enough beside what the model chose."""
    NONE = "none"
    """It did not: nothing was thought, or the text ended first."""


class CloseReport(NamedTuple):
    """What became of a request's thinking: made by the sequence, read by callers."""

    kind: CloseKind
    """Of the span closed last."""
    thinking_tokens: int
    """Tokens of thinking text, without open and close marks."""
    content_tokens: int
    """Tokens of the answer; the token that ended it is not part of it."""


class TokenDetail(NamedTuple):
    """Where one emitted token came from: made by the engine for requests that ask, read by callers."""

    origin: str
    """target, guess or forced."""
    bet: int
    """Nodes its row verified in that step."""
    depth: int
    """How deep in the tree it stood; 0 for the target's own and for forced tokens."""
    confidence: float | None
    """The drafter's probability of a guess; None where there was none."""


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """How one request's thinking is told from its answer, and when it is closed: made by callers.

    Raises RequestError. A request without one is never closed from outside.
    """

    budget: int | None
    """Tokens of thinking text allowed, marks not counted; None: as many as it takes."""
    open_ids: tuple[int, ...]
    """The tokens that open a span; empty: the text has none of its own to open one."""
    close_ids: tuple[int, ...]
    """The tokens that close it, all of which are forced."""
    starts_open: bool = False
    """The prompt already ends inside the span."""
    natural_ids: tuple[int, ...] = ()
    """The tokens by which the model itself closes, where what is forced says more; empty: close_ids."""
    soft_ratio: float | None = None
    """Close once P(close) is at least this times P(of the token chosen); None: never."""
    soft_after: int = 0
    """Thinking tokens before which there is no soft close."""
    stop_repeats: bool = True
    """After a close, end an answer that does nothing but repeat itself."""

    def __post_init__(self) -> None:
        if self.budget is not None:
            _whole("thinking", self.budget, 0)
        _whole("thinking", self.soft_after, 0)
        for name in ("open_ids", "close_ids", "natural_ids"):
            ids = _token_ids("thinking", getattr(self, name))
            if len(ids) > MAX_MARK:
                raise RequestError(f"{name} has {len(ids)} tokens; at most {MAX_MARK}", "thinking")
            object.__setattr__(self, name, ids)
        if not self.close_ids:
            raise RequestError("close_ids is empty: there is nothing to close with", "thinking")
        object.__setattr__(self, "natural_ids", self.natural_ids or self.close_ids)
        if self.open_ids == self.natural_ids:
            raise RequestError("the same tokens open and close the span", "thinking")
        if self.soft_ratio is not None:
            object.__setattr__(self, "soft_ratio", _number("thinking", self.soft_ratio, 0.0, 1e6))
        for flag in (self.starts_open, self.stop_repeats):
            _switch("thinking", flag)

    @property
    def mark_ids(self) -> tuple[int, ...]:
        """Every token of every mark."""
        return (*self.open_ids, *self.close_ids, *self.natural_ids)


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar that the text must follow, not yet compiled: made by callers. Raises RequestError."""

    kind: str
    """json_schema, regex or lark."""
    text: str

    def __post_init__(self) -> None:
        if self.kind not in GRAMMAR_KINDS:
            raise RequestError(f"kind {self.kind!r} is none of {', '.join(GRAMMAR_KINDS)}", "grammar")
        if not isinstance(self.text, str) or not self.text:
            raise RequestError("the grammar has no text", "grammar")


def _said(help: str, *, flag: bool) -> dict[str, object]:
    """What flags and schemas are generated from; `flag`: whether it can be said in a word."""
    return {"help": help, "flag": flag}


def _param(default: Any, help: str) -> Any:
    """A field with its help, and a flag."""
    return field(default=default, metadata=_said(help, flag=True))


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends: made by callers, read by engine and sampler.

    Raises RequestError naming the field. Lists become tuples, one stop string a tuple of one, and whole
    numbers floats where floats are meant, so that readers need no checks of their own.
    """

    max_tokens: int = _param(256, "Most tokens to write.")
    temperature: float = _param(0.0, "How freely tokens are drawn; 0: greedy.")
    top_k: int = _param(0, "Only the k likeliest tokens; 0: off.")
    top_p: float = _param(1.0, "Only the likeliest tokens that together reach this probability; 1: off.")
    min_p: float = _param(0.0, "Only tokens at least this likely against the likeliest; 0: off.")
    seed: int | None = _param(
        None, "The same seed gives the same text; None: the engine takes one for each request."
    )
    stop: tuple[str, ...] = _param((), "Texts that end the output and are not part of it.")
    stop_token_ids: tuple[int, ...] = _param((), "Token ids that end the output.")
    min_tokens: int = _param(0, "No end before this many tokens.")
    ignore_eos: bool = _param(False, "Go on behind the model's own end.")
    logprobs: int | None = _param(
        None, "Log-probabilities of each token and of this many likeliest ones; None: none at all."
    )
    repetition_penalty: float = _param(1.0, "Above 1: tokens seen before are less likely; 1: off.")
    presence_penalty: float = _param(0.0, "Taken off the score of every token already written.")
    frequency_penalty: float = _param(0.0, "The same, for each time it was written.")
    logit_bias: Mapping[int, float] | None = _param(None, "Added to the scores of these tokens.")
    priority: int = _param(0, "Under the order `priority`: larger goes first.")
    speculation: str | None = _param(
        None, "How this request is guessed: auto (as the policy says), off, or fixed:K, a chain of K."
    )
    token_details: bool = field(
        default=False,
        metadata=_said("Say of every token where it came from and how sure its guess was.", flag=False),
    )
    thinking: ThinkingLimit | None = field(
        default=None, metadata=_said("How its thinking is told from its answer and limited.", flag=False)
    )
    shown_ids: tuple[int, ...] = field(
        default=(), metadata=_said("Special tokens that the text shows; the others are left out.", flag=False)
    )
    grammar: GrammarSpec | None = field(
        default=None, metadata=_said("A grammar that the text must follow.", flag=False)
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "shown_ids", _token_ids("shown_ids", self.shown_ids))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        object.__setattr__(self, "speculation", _speculation(self.speculation))
        self._check_numbers()
        _switch("ignore_eos", self.ignore_eos)
        _switch("token_details", self.token_details)
        _instance("thinking", self.thinking, ThinkingLimit)
        _instance("grammar", self.grammar, GrammarSpec)
        if self.min_tokens > self.max_tokens:
            raise RequestError(f"{self.min_tokens} is more than max_tokens = {self.max_tokens}", "min_tokens")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def _check_numbers(self) -> None:
        _whole("max_tokens", self.max_tokens, 1)
        _whole("min_tokens", self.min_tokens, 0)
        _whole("top_k", self.top_k, 0)
        _whole("priority", self.priority, -(1 << 31), 1 << 31)
        if self.seed is not None:
            _whole("seed", self.seed, -(1 << (_SEED_BITS - 1)), (1 << _SEED_BITS) - 1)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        for name, low, high in _FLOAT_RANGES:
            object.__setattr__(self, name, _number(name, getattr(self, name), low, high))
        if self.top_p == 0.0:
            raise RequestError("0 leaves no token to choose; 1 is off", "top_p")
        if self.repetition_penalty == 0.0:
            raise RequestError("expected a number above 0; 1 is off", "repetition_penalty")


_FLOAT_RANGES = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


def _whole(name: str, value: object, low: int, high: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        bounds = f"from {low}" if math.isinf(high) else f"from {low} to {int(high)}"
        raise RequestError(f"{value!r} is not a whole number {bounds}", name)


def _number(name: str, value: object, low: float, high: float) -> float:
    # A comparison with NaN is false, so NaN is refused here too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{value!r} is not a number from {low:g} to {high:g}", name)
    return float(value)


def _switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{value!r} is not true or false", name)


def _instance(name: str, value: object, kind: type[object]) -> None:
    if value is not None and not isinstance(value, kind):
        raise RequestError(f"{value!r} is not a {kind.__name__}", name)


def _speculation(value: object) -> str | None:
    """None for the engine's own policy, else the word itself."""
    if value is None or value == "auto":
        return None
    if isinstance(value, str):
        kind, _, count = value.partition(":")
        is_count = count.isascii() and count.isdecimal() and len(count) <= 4
        if value == "off" or (kind == "fixed" and is_count and 1 <= int(count) <= MAX_FIXED):
            return value
    raise RequestError(f"{value!r} is none of auto, off, fixed:K with K from 1 to {MAX_FIXED}", "speculation")


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) else _listed("stop", value)
    if len(found) > MAX_STOPS:
        raise RequestError(f"{len(found)} stop texts; at most {MAX_STOPS}", "stop")
    for one in found:
        if not isinstance(one, str) or not one:
            raise RequestError(f"{one!r} is not a text with at least one character", "stop")
    return found


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    found = () if value is None else _listed(name, value)
    for one in found:
        _whole(name, one, 0, (1 << 31) - 1)
    return found


def _listed(name: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise RequestError(f"{value!r} is not a list", name)
    return tuple(value)


def _bias(value: object) -> Mapping[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError(f"{value!r} does not map token ids to numbers", "logit_bias")
    for token_id in value:
        _whole("logit_bias", token_id, 0, (1 << 31) - 1)
    return {token_id: _number("logit_bias", bias, -100.0, 100.0) for token_id, bias in value.items()} or None
