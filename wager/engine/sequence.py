"""A request while it runs: its tokens, its place in memory, and when it ends.

A sequence owns its tokens (prompt and output), how many of them are in the target's cache, its pages, and the
texts derived from its output. Pending tokens are known but not cached. It knows no tensors and no other
sequence; the scheduler moves it about, the step's emit stage appends to it.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import StrEnum

from wager.policy.stats import SpeculationStats
from wager.records import SamplingParams
from wager.text.detokenize import Detokenizer
from wager.text.stops import StopFinder


class Finish(StrEnum):
    """How a request ended: exactly one of these."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Origin(StrEnum):
    """Where an emitted token came from."""

    TARGET = "target"
    GUESS = "guess"
    FORCED = "forced"


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for, checked and tokenised."""

    request_id: Hashable
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    client: str = ""
    """Whose share it counts against under the `fair` order."""
    end_ids: tuple[int, ...] = ()
    """Tokens that end the text: the model's own, unless ignored, and the request's."""


@dataclass(eq=False, slots=True)
class Sequence:
    """The running state of a request."""

    request: Request
    max_len: int
    """Most tokens it may have, prompt included."""
    arrival: int
    """Its number in the order of arrival."""
    detokenizer: Detokenizer | None = None
    stops: StopFinder | None = None
    tokens: list[int] = field(default_factory=list)
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    error: str | None = None
    matched_stop: str | int | None = None
    logprobs: list[object] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    target_p1: float | None = None
    phase: str = ""
    queued_at: int = 0
    """The scheduler's clock when it arrived."""
    num_preemptions: int = 0
    num_reused: int = 0
    """Prompt tokens taken over from shared pages at the last admission."""
    drafting_failed: bool = False
    in_index: int = 0
    """Full pages already given to the prefix index."""

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)

    @property
    def request_id(self) -> Hashable:
        return self.request.request_id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.num_cached

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def num_left(self) -> int:
        """Tokens it may still emit."""
        return min(self.max_len - len(self.tokens), self.params.max_tokens - self.num_output)

    def append(self, accepted: Tokens[int], bonus: int) -> int:
        """Take in a step's tokens up to the first that ends it; returns how many were taken.

        Sets `finish` where the text ends. A stop string may end inside the accepted path: what lies behind
        the token that completed it is dropped.
        """
        taken = 0
        for token, origin in [*((t, Origin.GUESS) for t in accepted), (bonus, Origin.TARGET)]:
            self.tokens.append(token)
            self.origins.append(origin)
            taken += 1
            self._settle_end(token)
            if self.finish is not None:
                break
        if self.finish is not None:
            self._flush()
        return taken

    def _settle_end(self, token: int) -> None:
        if token in self.request.end_ids and self.num_output > self.params.min_tokens:
            self.finish, self.matched_stop = Finish.STOP, token
            return
        if self.detokenizer is not None:
            self._extend_text(self.detokenizer.feed([token]))
        if self.finish is None and self.num_left <= 0:
            self.finish = Finish.LENGTH

    def _extend_text(self, piece: str) -> None:
        # A stop string before min_tokens is text like any other: a finder that hit would swallow the rest.
        if self.stops is None or self.num_output <= self.params.min_tokens:
            self.text += piece
            return
        found = self.stops.feed([piece])
        self.text += found.text
        if found.hit is not None:
            self.finish, self.matched_stop = Finish.STOP, found.hit.stop

    def _flush(self) -> None:
        """The end: whatever was held back belongs to the text, unless a stop string cut it."""
        if self.detokenizer is None or isinstance(self.matched_stop, str):
            return
        rest = self.detokenizer.flush()
        if self.stops is None:
            self.text += rest
        else:
            self.text += self.stops.flush(rest).text

    def end(self, finish: Finish, error: str | None = None) -> None:
        """End it from outside: an abort or a failure."""
        if self.finish is None:
            self.finish, self.error = finish, error
            self._flush()
