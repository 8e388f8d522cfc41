"""The state of one text in its grammar: what may follow the text, and any path of guesses after it.

For a tree of guesses, a `Constraint` determines which nodes the grammar permits and which tokens may follow
each node on its path. It also adapts a draft to the grammar. It knows neither models nor text. grammar.py
creates it, the engine uses it, and the sampler applies the masks.
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

__all__ = ["ConstrainedDraft", "Constraint", "Mask", "short_reason"]

Mask = npt.NDArray[np.uint8]
"""One bit per token of the vocabulary, lowest bit of a byte first."""

_MAX_MESSAGE = 200
_GO_BACK = -2


class ConstrainedDraft(NamedTuple):
    """The candidates of a draft, [depths, ranks], with log-probability -inf for tokens that the grammar
    forbids.
    """

    token_ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32] | None


class _Mode(Enum):
    OPENING = "thinking may open: the text is a part of the opening mark"
    THINKING = "unrestricted until the closing mark"
    GRAMMAR = "the grammar decides"
    ENDED = "an end token was generated"


class _State(NamedTuple):
    """The state after a path."""

    mode: _Mode
    tail: tuple[int, ...] = ()
    """OPENING: the written part of the mark. THINKING: the last tokens, which may begin the closing mark."""
    num_consumed: int = 0
    """Number of tokens that the matcher consumed between the previous state and this one."""


class Constraint:
    """The state of one sequence in its grammar. Methods do not raise; `problem` names what went wrong.

    With thinking, the grammar begins after its closing mark, whether the model wrote it or it was forced.
    Unless the prompt ends inside the span, the text may begin with the opening mark, else it begins in the
    grammar. End tokens are forbidden until the grammar may end.
    """

    # NOTE: the matcher never consumes end tokens: rolling one back would also lose the token before it.

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, end_ids: tuple[int, ...], thinking: ThinkingLimit | None
    ) -> None:
        self._matcher = matcher
        self._num_bytes = (vocab_size + 7) // 8
        self._end_ids = frozenset(end_ids)
        self._open_ids = () if thinking is None else thinking.open_ids
        self._close_ids = () if thinking is None else thinking.natural_ids
        self._free = _mask_without(end_ids, vocab_size)
        self._state = _State(_first_mode(thinking))
        self._num_followed = 0
        self.problem: str | None = None
        """Why the text cannot continue in this grammar; None while it can."""

    def follow(self, output_ids: Sequence[int], origins: Sequence[str]) -> None:
        """Consumes the tokens that are new since the last call; `origins` has the origin of each token.

        A forced token is part of a thinking close. It is not part of the grammar, which begins after it.
        """
        start, self._num_followed = self._num_followed, len(output_ids)
        for token, origin in zip(output_ids[start:], origins[start:], strict=True):
            is_forced = origin == "forced"
            place = _State(_Mode.GRAMMAR) if is_forced else self._enter(self._state, token)
            if place is None:
                self._fail(f"the grammar does not allow token {token} here")
                return
            self._state = place

    def permitted(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """Returns which nodes of a tree the grammar permits after the text; `parents` are as in
        tree/tree.py.
        """
        found = [False] * len(token_ids)
        for node, _ in self._walk(token_ids, parents):
            if node >= 0:
                found[node] = True
        return found

    def masks(self, token_ids: Sequence[int], parents: Sequence[int]) -> Mask:
        """Returns [1 + nodes, bytes]: what may follow the text, then what may follow each node on its path.

        A node that is not permitted also gets a row; no accepted path uses it.
        """
        found = np.tile(self._free, (1 + len(token_ids), 1))
        for node, place in self._walk(token_ids, parents):
            found[node + 1] = self._mask(place)
        return found

    def steer(
        self, token_ids: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float32] | None
    ) -> ConstrainedDraft:
        """Returns a draft that agrees with the grammar, because the target chooses among permitted tokens
        only.

        Along the best permitted path, forbidden candidates move behind the others, and their probability is
        distributed to the others. If the grammar permits one token only, this token becomes certain. The
        draft ends where no candidate is permitted.
        """
        tokens = token_ids.copy()
        scores = None if logprobs is None else logprobs.copy()
        place: _State | None = self._state
        moved = depth = 0
        while place is not None and place.mode is not _Mode.ENDED and depth < len(tokens):
            if not _constrain_candidates(
                self._mask(place), tokens[depth], None if scores is None else scores[depth]
            ):
                break
            place = self._enter(place, int(tokens[depth, 0]))
            moved += 0 if place is None else place.num_consumed
            depth += 1
        self._matcher.rollback(moved)
        # One depth always remains, so that the policy compares the cost of this draft with its value.
        kept = slice(0, max(depth, 1))
        return ConstrainedDraft(tokens[kept], None if scores is None else scores[kept])

    def _walk(self, token_ids: Sequence[int], parents: Sequence[int]) -> Iterator[tuple[int, _State]]:
        """Yields the root (-1) and every permitted node, depth first, with the matcher at the yielded node.

        NOTE: The caller must exhaust this iterator, or the matcher does not return to the state of the text.
        """
        children: list[list[int]] = [[] for _ in range(len(token_ids) + 1)]
        for node, parent in enumerate(parents):
            children[parent + 1].append(node)
        root = self._state._replace(num_consumed=0)
        todo: list[tuple[int, _State]] = [(-1, root)]
        while todo:
            node, place = todo.pop()
            if node == _GO_BACK:
                self._matcher.rollback(place.num_consumed)
                continue
            entered = root if node < 0 else self._enter(place, token_ids[node])
            if entered is None:
                continue
            yield node, entered
            todo.append((_GO_BACK, entered))
            todo += [(child, entered) for child in reversed(children[node + 1])]

    def _enter(self, place: _State, token: int) -> _State | None:
        """Moves the matcher over one more token and returns the state; None if the token is not permitted."""
        if place.mode is _Mode.GRAMMAR:
            return self._consume((token,))
        if place.mode is _Mode.THINKING:
            tail = (*place.tail, token)[-len(self._close_ids) :]
            if tail == self._close_ids:
                return _State(_Mode.GRAMMAR)
            return None if token in self._end_ids else _State(_Mode.THINKING, tail)
        if place.mode is _Mode.OPENING:
            written = (*place.tail, token)
            if written == self._open_ids:
                return _State(_Mode.THINKING)
            if written == self._open_ids[: len(written)]:
                return _State(_Mode.OPENING, written)
            return self._consume(written)
        return None

    def _consume(self, tokens: tuple[int, ...]) -> _State | None:
        """Moves the matcher over all of these tokens, or over none and returns None."""
        is_end = tokens[-1] in self._end_ids
        wanted = tokens[:-1] if is_end else tokens
        num_consumed = self._take(wanted)
        if num_consumed is None:
            return None
        if not is_end:
            return _State(_Mode.GRAMMAR, num_consumed=num_consumed)
        may_end = self._matcher.is_accepting()
        self._matcher.rollback(num_consumed)
        return _State(_Mode.ENDED) if may_end else None

    def _take(self, tokens: tuple[int, ...]) -> int | None:
        num_consumed = self._matcher.try_consume_tokens(list(tokens)) if tokens else 0
        if num_consumed == len(tokens):
            return num_consumed
        self._matcher.rollback(num_consumed)
        return None

    def _mask(self, place: _State) -> Mask:
        if place.mode is _Mode.GRAMMAR:
            return self._grammar_mask()
        if place.mode is not _Mode.OPENING:
            return self._free
        num_consumed = self._take(place.tail)
        mask = np.zeros_like(self._free) if num_consumed is None else self._grammar_mask()
        self._matcher.rollback(num_consumed or 0)
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


def _constrain_candidates(
    mask: Mask, tokens: npt.NDArray[np.int64], scores: npt.NDArray[np.float32] | None
) -> bool:
    """Adapts one depth's candidates in place and returns whether the first one is permitted now."""
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
    # Tokens outside the candidates are unknown, so they count as permitted.
    forbidden = min(float(probs[~permitted].sum()), 1.0 - 1e-6)
    scores -= np.float32(np.log1p(-forbidden))
    scores[~permitted] = -np.inf
    np.minimum(scores, 0.0, out=scores)
    tokens[:], scores[:] = tokens[order], scores[order]
    return True


def _only_token(mask: Mask) -> int | None:
    """Returns the only token that a mask permits; None if there are more."""
    places = np.flatnonzero(mask)
    if len(places) != 1:
        return None
    byte = int(mask[places[0]])
    return None if byte & (byte - 1) else int(places[0]) * 8 + byte.bit_length() - 1


def _set_bit(mask: Mask, token: int) -> None:
    mask[token // 8] |= 1 << token % 8


def short_reason(message: str) -> str:
    """Returns the line of a library's message that names the fault; the other lines show its
    internal state.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = next(
        (line for line in lines if line.startswith("error:")), lines[0] if lines else "no reason given"
    )
    reason = reason.removeprefix("error:").strip()
    if reason.startswith("NoExtension"):
        reason = "no text matches it"
    return reason if len(reason) <= _MAX_MESSAGE else reason[: _MAX_MESSAGE - 3] + "..."
