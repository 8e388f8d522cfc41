"""One request, whatever its dialect: handed to the engine, read as it comes, counted at the end.

A dialect makes an `Ask` out of its body and writes its own events out of the pieces that come back. The
choices of a request share one inbox; leaving it early, for whatever reason, ends them in the engine. Knows
neither HTTP nor the form of any answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from wager.policy import SpeculationStats
from wager.records import SamplingParams
from wager.server.bridge import Asked, Bridge
from wager.server.inbox import Delivery, End, Inbox, Running
from wager.server.problems import Problem
from wager.server.reading import Call, Reader, Reading
from wager.tree import derive_seed


@dataclass(frozen=True)
class Ask:
    """What the engine is to write, and how it is to be read."""

    model: str
    prompts: Sequence[Sequence[int]]
    """Usually one; /v1/completions takes several. Each is answered `n` times."""
    params: SamplingParams
    reading: Reading
    n: int = 1
    client: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    """What was decided for the client and should be told, such as a limit that was tightened."""

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    def asked(self, index: int) -> Asked:
        """The request of one choice: the i-th of n has a seed of its own, derived from the request's."""
        prompt, choice = self.prompts[index // self.n], index % self.n
        params = self.params
        if choice and params.seed is not None:
            params = replace(params, seed=derive_seed(params.seed, choice))
        return Asked(prompt, params, self.client)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of one choice."""

    index: int
    reasoning: str = ""
    content: str = ""
    calls: Sequence[Call] = ()
    logprobs: Sequence[Any] = ()
    """Of the tokens of this piece, thinking included."""
    tokens: Sequence[dict[str, Any]] = ()
    step_ms: float = 0.0
    finish: str | None = None
    """stop, length or tool_calls, on the last piece of a choice."""


@dataclass
class Choice:
    """One answer, as far as it has come."""

    reader: Reader
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish: str | None = None
    end: End | None = None

    @property
    def calls(self) -> list[Call]:
        return self.reader.calls

    @property
    def text(self) -> str:
        return "".join(self.content)

    @property
    def thought(self) -> str:
        return "".join(self.reasoning)


class Answer:
    """The choices of one request while they are written."""

    def __init__(self, bridge: Bridge, ask: Ask, patience_s: float, keepalive_s: float) -> None:
        self.ask = ask
        self._bridge = bridge
        self._patience_s = patience_s
        self._deadline_s = time.monotonic() + patience_s
        self._keepalive_s = keepalive_s
        self._inbox = Inbox()
        self._running: list[Running] = []
        self.choices = [Choice(Reader(ask.reading, ask.prompts[i // ask.n])) for i in range(ask.num_choices)]

    async def begin(self) -> Answer:
        """Hand the request over. Raises what the bridge raises; nothing runs then."""
        asked = [self.ask.asked(i) for i in range(self.ask.num_choices)]
        self._running = await self._bridge.submit(asked, self._inbox)
        return self

    def leave(self) -> None:
        """Whatever still runs is ended."""
        self._bridge.abort(self._running)

    async def pieces(self) -> AsyncGenerator[Piece | None, None]:
        """Everything as it comes; None where nothing came for a while. Raises Problem when it fails."""
        left = set(range(self.ask.num_choices))
        try:
            while left:
                news = await self._inbox.take(min(self._keepalive_s, self._left_s()))
                if not news:
                    yield None
                for index, delivery in news.items():
                    piece = self._read(index, delivery)
                    if piece.finish is not None:
                        left.discard(index)
                    yield piece
        finally:
            self.leave()

    async def whole(self) -> list[Choice]:
        """Wait for all of it."""
        async with aclosing(self.pieces()) as pieces:
            async for _ in pieces:
                pass
        return self.choices

    def _left_s(self) -> float:
        """Time that is left for the answer. Raises Problem when there is none."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0.0:
            raise Problem(504, f"the answer took longer than {self._patience_s:g} s", code="timeout")
        return left_s

    def _read(self, index: int, delivery: Delivery) -> Piece:
        choice = self.choices[index]
        end = delivery.end
        if end is not None and end.finish not in ("stop", "length"):
            raise _failure(end)
        found = choice.reader.feed(delivery)
        choice.reasoning.append(found.reasoning)
        choice.content.append(found.content)
        choice.logprobs += found.logprobs
        if end is not None:
            choice.end = end
            choice.finish = "tool_calls" if choice.calls and end.finish == "stop" else end.finish
        return Piece(
            index,
            found.reasoning,
            found.content,
            found.calls,
            found.logprobs,
            found.tokens,
            delivery.step_ms,
            choice.finish,
        )

    # -- when it is over

    @property
    def usage(self) -> Usage:
        """Tokens read and written. Precondition: every choice has ended."""
        ends = [choice.end.sequence for choice in self.choices if choice.end is not None]
        sequences = [one for one in ends if one is not None]
        closes = [one.close for one in sequences if one.close is not None]
        firsts = sequences[:: self.ask.n]
        return Usage(
            sum(map(len, self.ask.prompts)),
            sum(one.num_output for one in sequences),
            sum(close.thinking_tokens for close in closes),
            sum(min(one.num_reused, one.num_prompt) for one in firsts),
        )

    def statistics(self) -> dict[str, Any]:
        """`metrics` of an answer: what speculation did, over all choices."""
        stats, ledger_ms = SpeculationStats(), 0.0
        for choice in self.choices:
            if choice.end is not None and choice.end.sequence is not None:
                stats.merge(choice.end.sequence.stats)
                ledger_ms += choice.end.account.balance_ms if choice.end.account else 0.0
        return {"speculative_decoding": _speculation(self.ask.params, stats, ledger_ms), **self.ask.notes}


class Usage(NamedTuple):
    """Tokens of one request."""

    prompt: int
    written: int
    reasoning: int
    cached: int
    """Prompt tokens taken from shared pages."""


def _failure(end: End) -> Problem:
    if end.finish == "abort":
        return Problem(503, "the server is being stopped", code="not_ready", headers={"Retry-After": "2"})
    return Problem(500, end.error or "the request failed", code="engine")


def _speculation(params: SamplingParams, stats: SpeculationStats, ledger_ms: float) -> dict[str, Any]:
    steps = stats.drafted_steps
    return {
        "mode": params.speculation or "auto",
        "mean_acceptance_length": round(1 + stats.accepted / steps, 4) if steps else None,
        "draft_acceptance_rate": round(stats.acceptance, 4) if stats.drafted else None,
        "acceptance_histogram": list(stats.acceptance_histogram),
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
        "num_steps": stats.steps,
        "tokens_per_step": round(stats.tokens_per_step, 4),
        "ledger_ms": round(ledger_ms, 3),
        "speedup": None if stats.speedup is None else round(stats.speedup, 4),
    }
