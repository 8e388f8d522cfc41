"""The small frozen records that rooms exchange.

It imports only the standard library, so every room may import it. A record holds values and properties
derived from them, and makes no decisions. The docstring of a record says who creates it and who reads it.
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
    "TopLogprobs",
    "Verdict",
]

MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_CHOICES = 1024
MIN_TEMPERATURE = 1e-6
"""Scores that are divided by less than this are no longer numbers that can be told apart."""
MAX_MARK = 64
MAX_FIXED = 1024
GRAMMAR_KINDS = ("json_schema", "regex", "lark")
_SEED_BITS = 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's judgement of one row's tree; accept creates it, and commit, emit and learn read it."""

    accepted: tuple[int, ...]
    """The accepted guesses, in order."""
    path: tuple[int, ...]
    """Node indices of the accepted guesses in the tree."""
    target_token: int
    """The bonus token: the target's own choice after the last accepted guess."""
    num_drafted: int
    """Number of nodes that were verified."""
    first_rejection: int | None = None
    """0-based depth of the first rejected guess, or None if the accepted path ends at a leaf."""

    @property
    def num_accepted(self) -> int:
        return len(self.accepted)

    @property
    def emitted(self) -> tuple[int, ...]:
        """The accepted guesses and the bonus token."""
        return (*self.accepted, self.target_token)


class CloseKind(StrEnum):
    """How a thinking span ended."""

    NATURAL = "natural"
    """The model wrote the closing mark itself."""
    HARD = "hard"
    """The thinking budget was spent."""
    SOFT = "soft"
    """The closing mark was probable enough compared with the chosen token."""
    NONE = "none"
    """The span was not closed: the model did not think, or the text ended first."""


class CloseReport(NamedTuple):
    """How the thinking of a request ended; the sequence creates it for callers."""

    kind: CloseKind
    """How the last span was closed."""
    thinking_tokens: int
    """Number of thinking tokens, without the opening and closing marks."""
    content_tokens: int
    """Number of answer tokens, without the token that ended the answer."""


class TokenDetail(NamedTuple):
    """The origin of one emitted token; the engine creates it for requests that set `token_details`."""

    origin: str
    """`target`, `guess` or `forced`."""
    bet: int
    """Number of nodes that the row verified in this step."""
    depth: int
    """Depth of the token in the tree; 0 for the target's own tokens and for forced tokens."""
    confidence: float | None
    """The drafter's probability of the guess; None if the token was not guessed."""
    drafter: str | None = None
    """The name of the drafter that made the guess; None if the token was not guessed."""


class TopLogprobs(NamedTuple):
    """Log-probabilities of the target's unprocessed scores at one position; the sampler creates it for
    callers.
    """

    chosen: float
    """The log-probability of the token that stands there."""
    token_ids: list[int]
    """The most likely tokens, the best first."""
    logprobs: list[float]
    """Their log-probabilities."""


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """The marks around one request's thinking, and the conditions under which it is closed; callers create
    it.

    Raises RequestError. The thinking of a request without a ThinkingLimit is never closed by the engine.
    """

    budget: int | None
    """Largest number of thinking tokens, marks not counted; None: unlimited."""
    open_ids: tuple[int, ...]
    """The tokens that open a thinking span; empty if no mark opens one."""
    close_ids: tuple[int, ...]
    """The tokens that are forced to close the span."""
    starts_open: bool = False
    """Whether the prompt ends inside a thinking span."""
    natural_ids: tuple[int, ...] = ()
    """The tokens with which the model itself closes the span; empty: the same as `close_ids`."""
    soft_ratio: float | None = None
    """The span is closed when P(close) is at least this ratio times P(chosen token); None: never."""
    soft_after: int = 0
    """Number of thinking tokens before the first possible soft close."""
    stop_repeats: bool = True
    """Whether an answer that only repeats itself after a close is ended."""

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
        """The tokens of all marks."""
        return (*self.open_ids, *self.close_ids, *self.natural_ids)


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar that the text must follow, before compilation; callers create it. Raises RequestError."""

    kind: str
    """`json_schema`, `regex` or `lark`."""
    text: str

    def __post_init__(self) -> None:
        if self.kind not in GRAMMAR_KINDS:
            raise RequestError(f"kind {self.kind!r} is none of {', '.join(GRAMMAR_KINDS)}", "grammar")
        if not isinstance(self.text, str) or not self.text:
            raise RequestError("the grammar has no text", "grammar")


def _metadata(help: str, *, flag: bool) -> dict[str, object]:
    """Returns the field metadata for flags and schemas; `flag` says whether a command-line flag can set the
    field.
    """
    return {"help": help, "flag": flag}


def _param(default: Any, help: str) -> Any:
    """Returns a field that has a help text and a command-line flag."""
    return field(default=default, metadata=_metadata(help, flag=True))


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends; callers create it, engine and sampler read
    it.

    Raises RequestError that names the field. Values are normalized: a list becomes a tuple, a single stop
    string becomes a tuple, and a whole number becomes a float where a float is expected.
    """

    max_tokens: int = _param(256, "Largest number of tokens to generate.")
    temperature: float = _param(0.0, f"Sampling temperature, from {MIN_TEMPERATURE:g}; 0: greedy.")
    top_k: int = _param(0, "Sample from the k most likely tokens only; 0: off.")
    top_p: float = _param(
        1.0, "Sample from the most likely tokens that together reach this probability; 1: off."
    )
    min_p: float = _param(
        0.0, "Sample from tokens with at least this fraction of the highest probability; 0: off."
    )
    seed: int | None = _param(
        None, "The same seed gives the same text; None: the engine chooses a seed for each request."
    )
    stop: tuple[str, ...] = _param((), "Texts that end the output; they are not part of it.")
    stop_token_ids: tuple[int, ...] = _param((), "Token ids that end the output.")
    min_tokens: int = _param(0, "Smallest number of tokens before the output may end.")
    ignore_eos: bool = _param(False, "Continue after the end-of-sequence token of the model.")
    logprobs: int | None = _param(
        None, "Log-probabilities of each token and of this many most likely tokens; None: none."
    )
    prompt_logprobs: int | None = field(
        default=None,
        metadata=_metadata(
            "The same for each token of the prompt, behind the tokens before it; None: none.", flag=False
        ),
    )
    n: int = field(
        default=1,
        metadata=_metadata(
            "Number of answers to one prompt; the i-th has a seed that is derived from the seed and i.",
            flag=False,
        ),
    )
    repetition_penalty: float = _param(
        1.0, "Values above 1 make tokens that occurred before less likely; 1: off."
    )
    presence_penalty: float = _param(
        0.0, "Subtracted from the score of every token that was already generated."
    )
    frequency_penalty: float = _param(
        0.0, "Subtracted from the score of a token once per time it was generated."
    )
    logit_bias: Mapping[int, float] | None = _param(
        None, "Numbers that are added to the scores of these tokens."
    )
    priority: int = _param(0, "Requests with a larger value start first if the order is `priority`.")
    speculation: str | None = _param(
        None,
        "Speculation for this request: auto (the policy decides), off (plain decoding, for which no drafter "
        "keeps anything), or fixed:K (a chain of K).",
    )
    token_details: bool = field(
        default=False,
        metadata=_metadata("Report the origin of every token and the confidence of its guess.", flag=False),
    )
    thinking: ThinkingLimit | None = field(
        default=None, metadata=_metadata("The marks around thinking, and its limit.", flag=False)
    )
    shown_ids: tuple[int, ...] = field(
        default=(),
        metadata=_metadata(
            "Special tokens that the text contains; other special tokens are omitted.", flag=False
        ),
    )
    grammar: GrammarSpec | None = field(
        default=None, metadata=_metadata("A grammar that the text must follow.", flag=False)
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
        _whole("n", self.n, 1, MAX_CHOICES)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name, low, high in _FLOAT_RANGES:
            object.__setattr__(self, name, _number(name, getattr(self, name), low, high))
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            message = (
                f"{self.temperature!r} is too small; expected 0 (greedy) or {MIN_TEMPERATURE:g} and more"
            )
            raise RequestError(message, "temperature")
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
    # A comparison with NaN is false, so NaN is refused as well.
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
    """Returns None for the engine's own policy, else the checked value."""
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
