"""The one check of everything that a drafter returns: a faulty answer costs its rows their bets, nothing
more.

A drafter may be wrong in any way. A token outside the vocabulary would make the target's pass fail, and a
score that is not a number would spoil a policy's ranking, so neither gets past this file. Pure functions;
engine/ calls them wherever guesses come in, and counts the faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wager.draft.base import DraftRow, Proposal

__all__ = ["Checked", "checked", "continuation_fault"]

MAX_LOGPROB = 0.01
"""Largest log-probability that rounding explains; a larger one is not a probability."""


class Checked(NamedTuple):
    """The proposals that can be used, one for each row."""

    proposals: list[Proposal | None]
    """None where a row has no guess or its proposal is faulty."""
    faults: dict[int, str]
    """The reason by the index of the row."""


def checked(proposals: object, rows: Sequence[DraftRow], vocab_size: int) -> Checked:
    """Takes what `Drafter.propose` returned for these rows, and keeps what the engine can use.

    If there is not exactly one answer for each row, it is not known which answer belongs to which row, so
    none of them is used.
    """
    if not isinstance(proposals, (list, tuple)):
        return _all_faulty(rows, f"its proposals are of type {type(proposals).__name__}, not a list")
    if len(proposals) != len(rows):
        return _all_faulty(rows, f"it returned {len(proposals)} proposals for {len(rows)} rows")
    found: list[Proposal | None] = list(proposals)
    faults: dict[int, str] = {}
    for index, one in enumerate(found):
        if one is not None and (fault := _shape_fault(one)):
            faults[index], found[index] = fault, None
    if not _all_values_are_good(found, vocab_size):
        for index, one in enumerate(found):
            if one is not None and (fault := _value_fault(one, vocab_size)):
                faults[index], found[index] = fault, None
    return Checked(found, faults)


def continuation_fault(tokens: object, vocab_size: int) -> str:
    """Returns why `Drafter.continuation` returned something that cannot be used, or an empty string."""
    if not isinstance(tokens, Sequence) or not len(tokens):
        return "its continuation is not a sequence of tokens"
    for token in tokens:
        if not isinstance(token, int | np.integer) or not 0 <= token < vocab_size:
            return f"its continuation has the token {token!r}, outside 0..{vocab_size - 1}"
    return ""


def _all_faulty(rows: Sequence[DraftRow], fault: str) -> Checked:
    return Checked([None] * len(rows), dict.fromkeys(range(len(rows)), fault))


def _shape_fault(one: object) -> str:
    """Returns what is wrong with the type or the shape of a proposal, or an empty string."""
    if not isinstance(one, Proposal):
        return f"a proposal is of type {type(one).__name__}"
    token_ids, logprobs, _ = one
    if not isinstance(token_ids, np.ndarray) or token_ids.dtype != np.int64:
        return "its token ids are not an int64 array"
    if token_ids.ndim != 2 or not token_ids.size:
        return f"its token ids have the shape {token_ids.shape}, not [depths, ranks]"
    if logprobs is None:
        return ""
    if not isinstance(logprobs, np.ndarray) or logprobs.dtype.kind != "f":
        return "its log-probabilities are not an array of floats"
    if logprobs.shape != token_ids.shape:
        return f"its log-probabilities have the shape {logprobs.shape}, its token ids {token_ids.shape}"
    return ""


def _value_fault(one: Proposal, vocab_size: int) -> str:
    """Returns which value of a proposal of the right shape is wrong, or an empty string."""
    outside = one.token_ids[(one.token_ids < 0) | (one.token_ids >= vocab_size)]
    if outside.size:
        return f"it guessed the token {outside[0]}, outside 0..{vocab_size - 1}"
    if one.logprobs is not None:
        if np.isnan(one.logprobs).any():
            return "its scores are not numbers"
        if one.logprobs.max() > MAX_LOGPROB:
            return f"a log-probability is {one.logprobs.max():g}"
    return ""


def _all_values_are_good(found: Sequence[Proposal | None], vocab_size: int) -> bool:
    """Looks at all proposals at once, because in nearly every step nothing is wrong."""
    token_ids = [one.token_ids.ravel() for one in found if one is not None]
    if not token_ids:
        return True
    # As unsigned numbers the negative ids are beyond every vocabulary.
    every = token_ids[0] if len(token_ids) == 1 else np.concatenate(token_ids)
    if np.maximum.reduce(every.view(np.uint64)) >= vocab_size:
        return False
    scores = [one.logprobs.ravel() for one in found if one is not None and one.logprobs is not None]
    if not scores:
        return True
    joined = scores[0] if len(scores) == 1 else np.concatenate(scores)
    return bool(np.maximum.reduce(joined) <= MAX_LOGPROB)  # false for NaN as well
