"""The small frozen records that rooms hand to one another.

Standard library only, so that every room may import it. Records carry values and read-outs of those values;
they decide nothing. Who makes a record and who reads it is said in its own docstring.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wager.errors import RequestError

__all__ = ["SamplingParams", "Verdict"]

MAX_STOPS = 16
MAX_LOGPROBS = 20
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


def _param(default: Any, help: str) -> Any:
    """A field with its help: flags and schemas are generated from these."""
    return field(default=default, metadata={"help": help})


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        self._check_numbers()
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"{self.ignore_eos!r} is not true or false", "ignore_eos")
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
