"""Says of each emitted token whether it is thinking, answer or tool call, from marker token ids.

A marker is a sequence of one or more ids. Inside a span only its own close marker counts; outside, any open
marker. It does not know budgets or text formats. The engine keeps learning state per phase by it and counts
thinking tokens; the server splits reasoning and tool calls from the answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from wager.errors import InputError


class Phase(StrEnum):
    THINK = "think"
    ANSWER = "answer"
    TOOL = "tool"


@dataclass(frozen=True)
class Span:
    """A phase between an open and a close marker."""

    phase: Phase
    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.open_ids or not self.close_ids:
            raise InputError(f"the {self.phase} span needs an open and a close marker", "spans")
        if self.phase is Phase.ANSWER:
            raise InputError("the answer is what lies outside all spans; it has no markers", "spans")


class TokenPhase(NamedTuple):
    """A token's phase, and how many tokens the marker has that it completes (0: none)."""

    phase: Phase
    num_marker: int


class SpanText(NamedTuple):
    """A piece of text that belongs to one phase; markers are no part of it."""

    phase: Phase
    text: str


class PhaseTracker:
    """Follows one sequence. An open marker's last token is already in its span, a close marker's still."""

    def __init__(self, spans: Sequence[Span]) -> None:
        opens = [span.open_ids for span in spans]
        if len(set(opens)) < len(opens):
            raise InputError("two spans open with the same marker", "spans")
        self._spans = tuple(spans)
        self._inside: Span | None = None
        self._tail: tuple[int, ...] = ()
        self._num_tokens = dict.fromkeys(Phase, 0)
        self._num_closed = dict.fromkeys(Phase, 0)

    @property
    def phase(self) -> Phase:
        """The phase the next token will be in, as far as is known."""
        return Phase.ANSWER if self._inside is None else self._inside.phase

    @property
    def num_partial(self) -> int:
        """How many of the last tokens may be the beginning of a marker."""
        return len(self._tail)

    def num_tokens(self, phase: Phase) -> int:
        """How many tokens were labelled with `phase` since `reset_counts`."""
        return self._num_tokens[phase]

    def has_closed(self, phase: Phase) -> bool:
        """Whether a span of this phase has ended, in the prompt or after it, since `reset_counts`."""
        return self._num_closed[phase] > 0

    def reset_counts(self) -> None:
        """Begin counting anew and keep the place: for use between the prompt and what is generated."""
        self._num_tokens = dict.fromkeys(Phase, 0)
        self._num_closed = dict.fromkeys(Phase, 0)

    def copy(self) -> "PhaseTracker":
        """A tracker at the same place that goes its own way, for walking a path that may not stand."""
        other = PhaseTracker(self._spans)
        other._inside, other._tail = self._inside, self._tail
        other._num_tokens, other._num_closed = dict(self._num_tokens), dict(self._num_closed)
        return other

    def feed(self, token_ids: Iterable[int]) -> list[Phase]:
        """Take tokens in; returns the phase of each."""
        return [self.step(token_id).phase for token_id in token_ids]

    def step(self, token_id: int) -> TokenPhase:
        """Take one token in."""
        tail = (*self._tail, token_id)
        before, marker = self.phase, self._complete(tail)
        if marker is None:
            self._tail = self._open_end(tail)
        else:
            self._tail = ()
            self._cross(marker)
        label = before if before is not Phase.ANSWER else self.phase
        self._num_tokens[label] += 1
        return TokenPhase(label, len(marker or ()))

    def _awaited(self) -> list[tuple[int, ...]]:
        return [span.open_ids for span in self._spans] if self._inside is None else [self._inside.close_ids]

    def _complete(self, tail: tuple[int, ...]) -> tuple[int, ...] | None:
        """The longest awaited marker that `tail` ends with."""
        return max((m for m in self._awaited() if tail[-len(m) :] == m), key=len, default=None)

    def _open_end(self, tail: tuple[int, ...]) -> tuple[int, ...]:
        """The longest end of `tail` with which an awaited marker begins."""
        for start in range(len(tail)):
            if any(marker[: len(tail) - start] == tail[start:] for marker in self._awaited()):
                return tail[start:]
        return ()

    def _cross(self, marker: tuple[int, ...]) -> None:
        if self._inside is not None:
            self._num_closed[self._inside.phase] += 1
            self._inside = None
        else:
            self._inside = next(span for span in self._spans if span.open_ids == marker)


class SpanSplitter:
    """Splits the text of one sequence by phase, without the markers; holds back what may become a marker."""

    def __init__(self, tracker: PhaseTracker) -> None:
        self._tracker = tracker
        self._held: list[str] = []

    def feed(self, token_ids: Sequence[int], pieces: Sequence[str]) -> list[SpanText]:
        """Take tokens with the text each of them finished; returns text by phase, equal neighbours joined."""
        texts: list[SpanText] = []
        for token_id, piece in zip(token_ids, pieces, strict=True):
            before = self._tracker.phase
            self._held.append(piece)
            num_marker = self._tracker.step(token_id).num_marker
            num_ready = len(self._held) - (num_marker or self._tracker.num_partial)
            texts.append(SpanText(before, "".join(self._held[:num_ready])))
            self._held = [] if num_marker else self._held[num_ready:]
        return joined(texts)

    def flush(self, rest: str = "") -> list[SpanText]:
        """Give out what is held back, and `rest` (what the detokenizer held back), as the end of the text."""
        held, self._held = "".join(self._held), []
        return joined([SpanText(self._tracker.phase, held + rest)])


def joined(texts: Iterable[SpanText]) -> list[SpanText]:
    """The same text with neighbours of one phase joined and empty pieces left out."""
    result: list[SpanText] = []
    for phase, text in texts:
        if result and result[-1].phase is phase:
            result[-1] = SpanText(phase, result[-1].text + text)
        elif text:
            result.append(SpanText(phase, text))
    return result
