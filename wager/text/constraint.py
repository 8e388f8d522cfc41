"""One text's place in its grammar: what may come next, along the text and along any path of guesses.

For a tree of guesses a `Constraint` says which nodes the grammar permits and which tokens may follow each
node on that node's own path; a draft it bends to the grammar. It knows no models and no text. Made by
grammar.py, asked by the engine; the sampler applies the masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wager.records import ThinkingLimit

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["Constraint", "Mask", "Steered", "short_reason"]

Mask = npt.NDArray[np.uint8]
"""One bit per token of the vocabulary, the lowest bit of a byte first."""

_MAX_MESSAGE = 200
_GO_BACK = -2


class Steered(NamedTuple):
    """A draft's candidates as a grammar leaves them, [depths, ranks]; those it forbids have no chance."""

    token_ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32] | None


class _Mode(Enum):
    OPENING = "thinking may open: nothing but a part of its open mark was written"
    THINKING = "free until the close mark"
    GRAMMAR = "the grammar decides"
    ENDED = "an end token was written"


class _Place(NamedTuple):
    """Where a path stands."""

    mode: _Mode
    tail: tuple[int, ...] = ()
    """OPENING: the part of the mark that is written. THINKING: the last tokens, where the close may begin."""
    took: int = 0
    """By how many tokens the matcher moved to come here from the place before."""


class Constraint:
    """One sequence's place in its grammar. Never raises: what goes wrong on the way is its `problem`.

    With thinking, the grammar begins behind its close, be it the model's own or forced. Where the prompt does
    not already end inside the span, the text may begin with the open mark; else it begins in the grammar.
    End tokens wait until the grammar may end.
    """

    # NOTE: end tokens are not shown to the matcher: taking one back would lose the token before it too.

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, end_ids: tuple[int, ...], thinking: ThinkingLimit | None
    ) -> None:
        self._matcher = matcher
        self._num_bytes = (vocab_size + 7) // 8
        self._end_ids = frozenset(end_ids)
        self._open_ids = () if thinking is None else thinking.open_ids
        self._close_ids = () if thinking is None else thinking.natural_ids
        self._free = _mask_without(end_ids, vocab_size)
        self._place = _Place(_first_mode(thinking))
        self._num_followed = 0
        self.problem: str | None = None
        """Why the text cannot go on in this grammar; None while it can."""

    def follow(self, output_ids: Sequence[int], origins: Sequence[str]) -> None:
        """The text so far, and where each token came from: takes in what is new since the last call.

        A forced token is part of a close of the thinking: no part of the grammar, which begins behind it.
        """
        start, self._num_followed = self._num_followed, len(output_ids)
        for token, origin in zip(output_ids[start:], origins[start:], strict=True):
            is_forced = origin == "forced"
            place = _Place(_Mode.GRAMMAR) if is_forced else self._enter(self._place, token)
            if place is None:
                self._fail(f"token {token} stands where the grammar does not allow it")
                return
            self._place = place

    def permitted(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """Which nodes of a tree the grammar permits behind the text so far; `parents` as in tree/tree.py."""
        found = [False] * len(token_ids)
        for node, _ in self._walk(token_ids, parents):
            if node >= 0:
                found[node] = True
        return found

    def masks(self, token_ids: Sequence[int], parents: Sequence[int]) -> Mask:
        """[1 + nodes, bytes]: what may follow the text so far, then each node on its own path.

        A node that is not permitted gets a row all the same; no path leads there.
        """
        found = np.tile(self._free, (1 + len(token_ids), 1))
        for node, place in self._walk(token_ids, parents):
            found[node + 1] = self._mask(place)
        return found

    def steer(self, token_ids: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float32] | None) -> Steered:
        """A draft bent to the grammar: the target will choose among permitted tokens only.

        Along the best permitted path, forbidden candidates go behind the others and their probability to
        those; where the grammar leaves one token, it is certain. Ends where no candidate is permitted.
        """
        tokens = token_ids.copy()
        scores = None if logprobs is None else logprobs.copy()
        place: _Place | None = self._place
        moved = depth = 0
        while place is not None and place.mode is not _Mode.ENDED and depth < len(tokens):
            if not _bend(self._mask(place), tokens[depth], None if scores is None else scores[depth]):
                break
            place = self._enter(place, int(tokens[depth, 0]))
            moved += 0 if place is None else place.took
            depth += 1
        self._matcher.rollback(moved)
        # One depth stays in any case: a draft was made, and its price is to be set against its worth.
        kept = slice(0, max(depth, 1))
        return Steered(tokens[kept], None if scores is None else scores[kept])

    def _walk(self, token_ids: Sequence[int], parents: Sequence[int]) -> Iterator[tuple[int, _Place]]:
        """The root (-1) and every permitted node, depth first, the matcher standing at the one given out.

        NOTE: to be walked to its end, or the matcher stays away from the text's own place.
        """
        children: list[list[int]] = [[] for _ in range(len(token_ids) + 1)]
        for node, parent in enumerate(parents):
            children[parent + 1].append(node)
        root = self._place._replace(took=0)
        todo: list[tuple[int, _Place]] = [(-1, root)]
        while todo:
            node, place = todo.pop()
            if node == _GO_BACK:
                self._matcher.rollback(place.took)
                continue
            entered = root if node < 0 else self._enter(place, token_ids[node])
            if entered is None:
                continue
            yield node, entered
            todo.append((_GO_BACK, entered))
            todo += [(child, entered) for child in reversed(children[node + 1])]

    def _enter(self, place: _Place, token: int) -> _Place | None:
        """The place behind one more token, the matcher moved there; None where it is not permitted."""
        if place.mode is _Mode.GRAMMAR:
            return self._consume((token,))
        if place.mode is _Mode.THINKING:
            tail = (*place.tail, token)[-len(self._close_ids) :]
            if tail == self._close_ids:
                return _Place(_Mode.GRAMMAR)
            return None if token in self._end_ids else _Place(_Mode.THINKING, tail)
        if place.mode is _Mode.OPENING:
            written = (*place.tail, token)
            if written == self._open_ids:
                return _Place(_Mode.THINKING)
            if written == self._open_ids[: len(written)]:
                return _Place(_Mode.OPENING, written)
            return self._consume(written)
        return None

    def _consume(self, tokens: tuple[int, ...]) -> _Place | None:
        """Move the matcher over all of these, or not at all."""
        is_end = tokens[-1] in self._end_ids
        wanted = tokens[:-1] if is_end else tokens
        took = self._take(wanted)
        if took is None:
            return None
        if not is_end:
            return _Place(_Mode.GRAMMAR, took=took)
        may_end = self._matcher.is_accepting()
        self._matcher.rollback(took)
        return _Place(_Mode.ENDED) if may_end else None

    def _take(self, tokens: tuple[int, ...]) -> int | None:
        took = self._matcher.try_consume_tokens(list(tokens)) if tokens else 0
        if took == len(tokens):
            return took
        self._matcher.rollback(took)
        return None

    def _mask(self, place: _Place) -> Mask:
        if place.mode is _Mode.GRAMMAR:
            return self._grammar_mask()
        if place.mode is not _Mode.OPENING:
            return self._free
        took = self._take(place.tail)
        mask = np.zeros_like(self._free) if took is None else self._grammar_mask()
        self._matcher.rollback(took or 0)
        _set_bit(mask, self._open_ids[len(place.tail)])
        return mask

    def _grammar_mask(self) -> Mask:
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)[: self._num_bytes].copy()
        if self._matcher.is_error():
            self._fail(short_reason(self._matcher.get_error()))
        return mask

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem


def _first_mode(thinking: ThinkingLimit | None) -> _Mode:
    if thinking is None:
        return _Mode.GRAMMAR
    if thinking.starts_open:
        return _Mode.THINKING
    return _Mode.OPENING if thinking.open_ids else _Mode.GRAMMAR


def _mask_without(token_ids: Iterable[int], vocab_size: int) -> Mask:
    bits = np.ones(vocab_size, np.uint8)
    bits[list(token_ids)] = 0
    return np.packbits(bits, bitorder="little")


def _bend(mask: Mask, tokens: npt.NDArray[np.int64], scores: npt.NDArray[np.float32] | None) -> bool:
    """One depth's candidates, in place; whether the first of them is permitted now."""
    only = _only_token(mask)
    if only is not None:
        tokens[0] = only
        if scores is not None:
            scores[0], scores[1:] = 0.0, -np.inf
        return True
    permitted = (mask[tokens >> 3] >> (tokens & 7) & 1).astype(bool)
    if scores is None or permitted.all() or not permitted.any():
        return bool(permitted[0])
    order = np.argsort(~permitted, kind="stable")
    probs = np.exp(scores)
    # Of what is not among the candidates nothing is known: it may all be permitted.
    forbidden = min(float(probs[~permitted].sum()), 1.0 - 1e-6)
    scores -= np.float32(np.log1p(-forbidden))
    scores[~permitted] = -np.inf
    np.minimum(scores, 0.0, out=scores)
    tokens[:], scores[:] = tokens[order], scores[order]
    return True


def _only_token(mask: Mask) -> int | None:
    """The one token a mask allows; None where there are more."""
    places = np.flatnonzero(mask)
    if len(places) != 1:
        return None
    byte = int(mask[places[0]])
    return None if byte & (byte - 1) else int(places[0]) * 8 + byte.bit_length() - 1


def _set_bit(mask: Mask, token: int) -> None:
    mask[token // 8] |= 1 << token % 8


def short_reason(message: str) -> str:
    """The line of a library's message that says what is wrong; the rest shows its inner state."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = next(
        (line for line in lines if line.startswith("error:")), lines[0] if lines else "no reason given"
    )
    told = told.removeprefix("error:").strip()
    if told.startswith("NoExtension"):
        told = "no text follows it"
    return told if len(told) <= _MAX_MESSAGE else told[: _MAX_MESSAGE - 3] + "..."
