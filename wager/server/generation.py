"""The answer to one request, in one form for all APIs: submitted, read as it arrives, summarised at the end.

`Generation` holds the choices of a request. Each `Choice` splits the engine's text into thinking, answer and
tool calls, and keeps them as content blocks. API routes write their own output from the `Piece`s that arrive.
If the reader leaves early, the choices are aborted in the engine. It knows neither HTTP nor any API.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from wager.records import SamplingParams
from wager.server.api_errors import ApiError, not_ready
from wager.server.bridge import Bridge
from wager.server.generation_request import GenerationRequest
from wager.server.response_queue import EngineUpdate, ResponseQueue, RunningChoice
from wager.stats import SpeculationStats
from wager.text.answer import AnswerReader
from wager.text.detokenize import Detokenizer
from wager.text.token_bytes import TokenBytes
from wager.text.tools import ToolCall as ParsedCall

_LOWEST_LOGPROB = -9999.0  # JSON has no infinity; clients expect this value for impossible tokens


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an answer."""

    index: int
    call_id: str
    name: str
    arguments: str


class BlockKind(StrEnum):
    THINKING = "thinking"
    TEXT = "text"
    TOOL_CALL = "tool_call"


class BlockChange(StrEnum):
    OPEN = "open"
    DELTA = "delta"
    CLOSE = "close"


@dataclass
class Block:
    """A contiguous part of one kind in an answer."""

    index: int
    kind: BlockKind
    call: ToolCall | None = None
    parts: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far; for a tool call its arguments."""
        return "".join(self.parts)


class BlockEvent(NamedTuple):
    """One change of a block."""

    change: BlockChange
    block: Block
    text: str = ""
    """The text that a delta adds."""
    logprobs: Sequence[Any] = ()


class ContentBlocks:
    """The blocks of one choice: at most one is open, and a block of another kind closes it."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None

    def add(self, kind: BlockKind, text: str, logprobs: Sequence[Any] = ()) -> list[BlockEvent]:
        """Append text to the open block of this kind, or to a new one."""
        events = [] if self._open is not None and self._open.kind is kind else self._start(kind)
        return [*events, self._extend(text, logprobs)]

    def add_call(self, call: ToolCall) -> list[BlockEvent]:
        """Append a complete tool call as a new block."""
        return [*self._start(BlockKind.TOOL_CALL, call), self._extend(call.arguments)]

    def close(self) -> list[BlockEvent]:
        block, self._open = self._open, None
        return [] if block is None else [BlockEvent(BlockChange.CLOSE, block)]

    def text(self, kind: BlockKind) -> str:
        return "".join(block.text for block in self.all if block.kind is kind)

    def _start(self, kind: BlockKind, call: ToolCall | None = None) -> list[BlockEvent]:
        closed = self.close()
        self._open = Block(len(self.all), kind, call)
        self.all.append(self._open)
        return [*closed, BlockEvent(BlockChange.OPEN, self._open)]

    def _extend(self, text: str, logprobs: Sequence[Any] = ()) -> BlockEvent:
        assert self._open is not None
        self._open.parts.append(text)
        self._open.logprobs += logprobs
        return BlockEvent(BlockChange.DELTA, self._open, text, logprobs)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in one choice."""

    index: int
    reasoning: str = ""
    content: str = ""
    calls: Sequence[ToolCall] = ()
    events: Sequence[BlockEvent] = ()
    """The same content as changes of blocks."""
    logprobs: Sequence[Any] = ()
    """Log-probabilities of all tokens of this piece, thinking included."""
    tokens: Sequence[dict[str, Any]] = ()
    """The origin of each token, if the request asks for it."""
    step_ms: float = 0.0
    finish: str | None = None
    """`stop`, `length` or `tool_calls` in the last piece of a choice."""


class Choice:
    """One choice of an answer, as far as it has arrived."""

    def __init__(self, request: GenerationRequest, index: int, token_bytes: TokenBytes | None) -> None:
        self.index = index
        self.blocks = ContentBlocks()
        self.calls: list[ToolCall] = []
        self.logprobs: list[Any] = []
        self.tokens: list[dict[str, Any]] = []
        """The origin of each token, if the request asks for it."""
        self.finish: str | None = None
        self.last: EngineUpdate | None = None
        """The update that ended the choice."""
        params = request.params
        starts_open = params.thinking is not None and params.thinking.starts_open
        self._parallel_calls = request.tools.parallel
        self._reader = AnswerReader(
            request.reasoning_marks, starts_open, request.tool_format, request.tools.offered
        )
        self._token_bytes = token_bytes
        self._token_texts = None
        if params.token_details and request.tokenizer is not None:
            self._token_texts = Detokenizer(
                request.tokenizer, after=request.prompt(index), shown_ids=params.shown_ids
            )

    @property
    def content(self) -> str:
        return self.blocks.text(BlockKind.TEXT)

    @property
    def reasoning(self) -> str:
        return self.blocks.text(BlockKind.THINKING)

    def feed(self, update: EngineUpdate) -> Piece:
        """Take in an update. Raises ApiError if the choice has failed or was aborted."""
        if update.finish not in (None, "stop", "length"):
            raise _failure(update)
        reasoning, content, parsed = self._reader.feed(update.text)
        if update.finish is not None:
            tail = self._reader.flush()
            reasoning, content = reasoning + tail.reasoning, content + tail.content
            parsed = (*parsed, *tail.calls)
        calls, logprobs = self._with_ids(parsed), self._logprobs_of(update)
        events = self._block_events(reasoning, content, calls, logprobs)
        self.logprobs += logprobs
        if update.finish is not None:
            events += self.blocks.close()
            self.last = update
            self.finish = "tool_calls" if self.calls and update.finish == "stop" else update.finish
        tokens = self._tokens_of(update)
        self.tokens += tokens
        return Piece(
            self.index, reasoning, content, calls, events, logprobs, tokens, update.step_ms, self.finish
        )

    def _block_events(
        self, reasoning: str, content: str, calls: Sequence[ToolCall], logprobs: Sequence[Any]
    ) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        if reasoning:
            events += self.blocks.add(BlockKind.THINKING, reasoning)
        if content:
            # The log-probabilities of a piece are not split: all of them go with its content.
            events += self.blocks.add(BlockKind.TEXT, content, logprobs)
        for call in calls:
            events += self.blocks.add_call(call)
        return events

    def _with_ids(self, parsed: Sequence[ParsedCall]) -> list[ToolCall]:
        new: list[ToolCall] = []
        for call in parsed:
            if self._parallel_calls or not self.calls:
                call_id = f"call_{uuid.uuid4().hex[:24]}"
                new.append(ToolCall(len(self.calls), call_id, call.name, call.arguments))
                self.calls.append(new[-1])
        return new

    def _tokens_of(self, update: EngineUpdate) -> list[dict[str, Any]]:
        """Each token with its text and its origin."""
        if self._token_texts is None:
            return []
        texts = self._token_texts.feed_each(update.token_ids)
        if update.finish is not None and texts:
            texts[-1] += self._token_texts.flush()
        pairs = zip(texts, update.details, strict=False)
        return [{"text": text, **detail._asdict()} for text, detail in pairs]

    def _logprobs_of(self, update: EngineUpdate) -> list[dict[str, Any]]:
        """Log-probabilities in the form of chat completions. Forced tokens have none."""
        if self._token_bytes is None:
            return []
        found = []
        for token_id, top in zip(update.token_ids, update.logprobs, strict=False):
            if top is not None:
                pairs = zip(top.token_ids, top.logprobs, strict=True)
                others = [_logprob(self._token_bytes, *pair) for pair in pairs]
                found.append({**_logprob(self._token_bytes, token_id, top.chosen), "top_logprobs": others})
        return found


class Usage(NamedTuple):
    """Token counts of one request."""

    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    """Prompt tokens whose pages were reused."""


class Generation:
    """All choices of one request while they are generated."""

    def __init__(
        self, bridge: Bridge, request: GenerationRequest, timeout_s: float, keepalive_s: float
    ) -> None:
        self.request = request
        self._bridge = bridge
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._keepalive_s = keepalive_s
        self._queue = ResponseQueue()
        self._running: list[RunningChoice] = []
        wants_logprobs = request.params.logprobs is not None and request.tokenizer is not None
        token_bytes = TokenBytes(request.tokenizer) if wants_logprobs and request.tokenizer else None
        self.choices = [Choice(request, i, token_bytes) for i in range(request.num_choices)]

    async def start(self) -> Generation:
        """Submit the request. Raises what `Bridge.submit` raises; nothing runs then."""
        self._running = await self._bridge.submit(self.request, self._queue)
        return self

    async def pieces(self) -> AsyncGenerator[Piece | None, None]:
        """Every piece as it arrives; None after `keepalive_s` without one. Raises ApiError if it fails."""
        unfinished = set(range(len(self.choices)))
        try:
            while unfinished:
                updates = await self._queue.take(min(self._keepalive_s, self._remaining_s()))
                if not updates:
                    yield None
                for index, update in updates.items():
                    piece = self.choices[index].feed(update)
                    if piece.finish is not None:
                        unfinished.discard(index)
                    yield piece
        finally:
            self._bridge.abort(self._running)

    async def wait(self) -> None:
        """Wait until all choices have ended."""
        async with aclosing(self.pieces()) as pieces:
            async for _ in pieces:
                pass

    def _remaining_s(self) -> float:
        """Time left for the answer. Raises ApiError if it is used up."""
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0.0:
            raise ApiError(504, f"the answer took longer than {self._timeout_s:g} s", code="timeout")
        return remaining_s

    # -- after the end

    @property
    def usage(self) -> Usage:
        """Token counts. Precondition: every choice has ended."""
        lasts = [choice.last.sequence for choice in self.choices if choice.last is not None]
        sequences = [sequence for sequence in lasts if sequence is not None]
        closes = [sequence.close for sequence in sequences if sequence.close is not None]
        first_of_prompts = sequences[:: self.request.n]
        return Usage(
            self.request.num_prompt_tokens,
            sum(sequence.num_output for sequence in sequences),
            sum(close.thinking_tokens for close in closes),
            sum(min(sequence.num_reused, sequence.num_prompt) for sequence in first_of_prompts),
        )

    def statistics(self) -> dict[str, Any]:
        """`metrics` of an answer: what speculation did, summed over all choices."""
        stats, ledger_ms = SpeculationStats(), 0.0
        for choice in self.choices:
            if choice.last is not None and choice.last.sequence is not None:
                stats.merge(choice.last.sequence.stats)
                ledger_ms += choice.last.account.balance_ms if choice.last.account else 0.0
        speculation = _speculation(self.request.params, stats, ledger_ms)
        return {"speculative_decoding": speculation, **self.request.statistics}


def _failure(update: EngineUpdate) -> ApiError:
    if update.finish == "abort":
        return not_ready("the server is being stopped")
    return ApiError(500, update.error or "the request failed", code="engine")


def _logprob(token_bytes: TokenBytes, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_bytes.text(token_id),
        "logprob": max(logprob, _LOWEST_LOGPROB),
        "bytes": list(token_bytes.bytes(token_id)),
    }


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
