"""Reading what a choice writes: thinking, answer and calls apart, log-probabilities and origins of tokens.

`Reading` says how a request is to be read, `Reader` reads one choice. Text comes from the engine, cut at stop
strings and never inside a character; spans are told apart by wager.text. Knows neither HTTP nor dialects.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wager.server.inbox import Delivery
from wager.text.answer import AnswerReader
from wager.text.detokenize import Detokenizer
from wager.text.reasoning import ReasoningMarks
from wager.text.token_bytes import TokenBytes
from wager.text.tokenizer import Tokenizer
from wager.text.tools import Tool, ToolCall, ToolFormat


@dataclass(frozen=True)
class Reading:
    """How the text of a request is read."""

    tokenizer: Tokenizer | None
    token_bytes: TokenBytes | None = None
    """Given where log-probabilities are wanted."""
    report_tokens: bool = False
    shown_ids: tuple[int, ...] = ()
    """Special tokens that the text shows."""
    marks: ReasoningMarks | None = None
    """Around thinking; None where none is told apart."""
    starts_open: bool = False
    """The prompt already ends inside thinking."""
    form: ToolFormat | None = None
    """How calls are written; None where none are read."""
    tools: Sequence[Tool] = ()
    parallel_calls: bool = True
    """False: only the first call counts."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call."""

    index: int
    call_id: str
    name: str
    arguments: str


class Found(NamedTuple):
    """What is new."""

    reasoning: str = ""
    content: str = ""
    calls: Sequence[Call] = ()
    logprobs: Sequence[Any] = ()
    tokens: Sequence[dict[str, Any]] = ()


class Reader:
    """Reads one choice."""

    def __init__(self, reading: Reading, prompt_ids: Sequence[int]) -> None:
        self._reading = reading
        self._answer = AnswerReader(reading.marks, reading.starts_open, reading.form, reading.tools)
        self._pieces = None
        if reading.report_tokens and reading.tokenizer is not None:
            self._pieces = Detokenizer(reading.tokenizer, after=prompt_ids, shown_ids=reading.shown_ids)
        self.calls: list[Call] = []

    def feed(self, delivery: Delivery) -> Found:
        reasoning, content, calls = self._answer.feed(delivery.text)
        if delivery.end is not None:
            rest = self._answer.flush()
            reasoning, content = reasoning + rest.reasoning, content + rest.content
            calls = (*calls, *rest.calls)
        return Found(
            reasoning, content, self._numbered(calls), self._logprobs(delivery), self._tokens(delivery)
        )

    def _numbered(self, found: Sequence[ToolCall]) -> list[Call]:
        calls = []
        for call in found:
            if self._reading.parallel_calls or not self.calls:
                calls.append(
                    Call(len(self.calls), f"call_{uuid.uuid4().hex[:24]}", call.name, call.arguments)
                )
                self.calls += calls[-1:]
        return calls

    def _tokens(self, delivery: Delivery) -> list[dict[str, Any]]:
        """Every token with its text and where it came from."""
        if self._pieces is None:
            return []
        texts = self._pieces.feed_each(delivery.token_ids)
        if delivery.end is not None and texts:
            texts[-1] += self._pieces.flush()
        return [
            {"text": text, **detail._asdict()} for text, detail in zip(texts, delivery.details, strict=False)
        ]

    def _logprobs(self, delivery: Delivery) -> list[dict[str, Any]]:
        """Log-probabilities in the form of chat completions; None of the forced tokens has any."""
        known = self._reading.token_bytes
        if known is None:
            return []
        found = []
        for token_id, top in zip(delivery.token_ids, delivery.logprobs, strict=False):
            if top is not None:
                likeliest = zip(top.token_ids, top.logprobs, strict=True)
                others = [_logprob(known, *one) for one in likeliest]
                found.append({**_logprob(known, token_id, top.chosen), "top_logprobs": others})
        return found


def _logprob(known: TokenBytes, token_id: int, logprob: float) -> dict[str, Any]:
    # JSON has no infinity: a token that cannot come has the least number that clients expect.
    return {
        "token": known.text(token_id),
        "logprob": max(logprob, -9999.0),
        "bytes": list(known.bytes(token_id)),
    }
