"""A request while it runs: its tokens, its place in memory, and when it ends.

A sequence owns its tokens (prompt and output), the number of them that are in the target's cache, its pages,
and the text made from its output. Pending tokens are known but not cached. It knows no tensors and no other
sequence. The scheduler admits and preempts it, and delivery.py appends to it.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import StrEnum

from wager.engine.budget import Thinking
from wager.records import CloseKind, CloseReport, SamplingParams, TopLogprobs
from wager.stats import SpeculationStats
from wager.text.constraint import Constraint
from wager.text.detokenize import Detokenizer
from wager.text.stops import StopFinder


class Finish(StrEnum):
    """How a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Origin(StrEnum):
    """Where an emitted token came from."""

    TARGET = "target"
    GUESS = "guess"
    FORCED = "forced"


_TARGET, _GUESS, _FORCED = Origin.TARGET, Origin.GUESS, Origin.FORCED


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request after checks and tokenisation."""

    request_id: Hashable
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    client: str = ""
    """The client whose share it counts against under the `fair` order."""
    end_ids: tuple[int, ...] = ()
    """Tokens that end the text: the model's own unless the request ignores them, and the request's."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """The running state of a request."""

    request: Request
    max_len: int
    """Most tokens that it may have, prompt included."""
    arrival: int
    """Its number in the order of arrival."""
    detokenizer: Detokenizer | None = None
    stops: StopFinder | None = None
    bare: bool = False
    """Whether every token is the argmax of unprocessed scores (`is_bare`)."""
    tokens: list[int] = field(default_factory=list)
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    error: str | None = None
    matched_stop: str | int | None = None
    logprobs: list[TopLogprobs | None] = field(default_factory=list)
    """One entry per token if the request asked for them; the entry of a forced token is None."""
    prompt_logprobs: list[TopLogprobs | None] = field(default_factory=list)
    """One entry per token of the prompt if the request asked for them; the entry of the first is None."""
    thinking: Thinking | None = None
    """The state of its thinking; None where it is neither limited nor counted."""
    constraint: Constraint | None = None
    """Its state in its grammar; None without a grammar."""
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
    """Number of full pages that have been given to the prefix index."""
    # These repeat the request's values, because every stage of every step reads them.
    request_id: Hashable = field(init=False)
    params: SamplingParams = field(init=False)
    num_prompt: int = field(init=False)
    nodes: int | None = field(init=False)
    """Guesses per step that the request asked for (0: none); None leaves it to the policy."""
    may_draft: bool = field(init=False)
    """Whether it may ever draft; if not, no drafter keeps anything for it."""

    def __post_init__(self) -> None:
        request = self.request
        self.tokens = list(request.prompt_ids)
        self.request_id, self.params = request.request_id, request.params
        self.num_prompt = len(request.prompt_ids)
        self.max_len = min(self.max_len, self.num_prompt + self.params.max_tokens)
        self.nodes = asked_nodes(self.params.speculation)
        self.may_draft = self.nodes != 0
        if self.params.thinking is not None:
            self.thinking = Thinking(self.params.thinking)
        if self.params.grammar is not None:
            self.phase = (
                "grammar"  # drafts are accepted differently there, so the policy learns it separately
            )

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
        return self.max_len - len(self.tokens)

    @property
    def max_depth(self) -> int:
        """Greatest depth of a tree, so that the bonus behind it still fits its text and its thinking."""
        left = self.max_len - len(self.tokens)
        if self.thinking is not None:
            before_close = self.thinking.left
            left = left if before_close is None else min(left, before_close)
        return left - 1

    @property
    def close(self) -> CloseReport | None:
        """How its thinking ended; None where it is neither limited nor counted."""
        return None if self.thinking is None else self.thinking.report

    @property
    def repeat_stopped(self) -> bool:
        """Whether it was ended because its answer only repeated itself."""
        cut = self.finish is Finish.STOP and self.matched_stop is None
        return cut and self.thinking is not None and self.thinking.repeated

    def append(self, tokens: Tokens[int], num_guesses: int = 0) -> int:
        """Append tokens up to the first that ends the text; returns how many were appended.

        The first `num_guesses` are accepted guesses, the others the target's own. Sets `finish` where the
        text ends. A stop string may end between them: tokens behind the one that completes it are dropped.
        """
        if self._is_plain_text(tokens):
            self.tokens += tokens
            self.origins += [_GUESS] * num_guesses + [_TARGET] * (len(tokens) - num_guesses)
            if self.detokenizer is not None:
                self.text += self.detokenizer.feed(tokens)
            return len(tokens)
        for taken, token in enumerate(tokens, 1):
            self.tokens.append(token)
            self.origins.append(_GUESS if taken <= num_guesses else _TARGET)
            self._settle_end(token)
            if self.finish is not None:
                self._flush()
                return taken
        return len(tokens)

    def _is_plain_text(self, tokens: Tokens[int]) -> bool:
        """Whether these tokens neither end the text nor belong to a span that is counted or watched."""
        if (
            self.stops is not None
            or self.thinking is not None
            or len(self.tokens) + len(tokens) >= self.max_len
        ):
            return False
        end_ids = self.request.end_ids
        return not any(token in end_ids for token in tokens)

    def _settle_end(self, token: int) -> None:
        if token in self.request.end_ids and self.num_output > self.params.min_tokens:
            self.finish, self.matched_stop = Finish.STOP, token
            return
        self._settle_text(token)
        if self.thinking is not None:
            self._think(self.thinking, token)

    def _settle_text(self, token: int) -> None:
        if self.detokenizer is not None:
            self._extend_text(self.detokenizer.feed([token]))
        if len(self.tokens) >= self.max_len and self.finish is None:
            self.finish = Finish.LENGTH

    def _think(self, thinking: Thinking, token: int) -> None:
        thinking.feed(token)
        if self.constraint is not None:
            return  # the grammar decides where the text ends, and a list may repeat itself
        if thinking.repeated and self.finish is None and self.num_output > self.params.min_tokens:
            self.finish = Finish.STOP

    def force(self, kind: CloseKind) -> int:
        """Append the forced close of its thinking; returns how many tokens of it the text took."""
        assert self.thinking is not None and self.finish is None
        start = len(self.tokens)
        for token in self.thinking.force(kind):
            self.tokens.append(token)
            self.origins.append(_FORCED)
            self._settle_text(token)
            if self.finish is not None:
                self._flush()
                break
        num_forced = len(self.tokens) - start
        if self.params.logprobs is not None:
            self.logprobs += [None] * num_forced
        return num_forced

    def _extend_text(self, piece: str) -> None:
        # A stop string before min_tokens is ordinary text, so the finder must not see it.
        if self.stops is None or self.num_output <= self.params.min_tokens:
            self.text += piece
            return
        found = self.stops.feed([piece])
        self.text += found.text
        if found.hit is not None:
            self.finish, self.matched_stop = Finish.STOP, found.hit.stop

    def _flush(self) -> None:
        """Append the text that was held back, unless a stop string has cut it."""
        if self.detokenizer is None or isinstance(self.matched_stop, str):
            return
        rest = self.detokenizer.flush()
        if self.stops is None:
            self.text += rest
        else:
            self.text += self.stops.flush(rest).text

    def end(self, finish: Finish, error: str | None = None) -> None:
        """End it for a reason outside its text: an abort or a failure."""
        if self.finish is None:
            self.finish, self.error = finish, error
            self._flush()


def asked_nodes(speculation: str | None) -> int | None:
    """The number of guesses per step that a request's `speculation` names."""
    if speculation is None:
        return None
    return 0 if speculation == "off" else int(speculation.partition(":")[2])
