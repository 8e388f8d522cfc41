"""An answer as a row of blocks: thinking, text and calls, each opened, filled and closed in turn.

The dialects of /v1/messages and /v1/responses are written that way; chat completions are not. It turns pieces
into openings, deltas and closings and keeps the blocks for whole answers. Knows the form of neither dialect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from wager.server.answers import Piece
from wager.server.reading import Call


class Kind(StrEnum):
    THINKING = "thinking"
    TEXT = "text"
    CALL = "call"


class Change(StrEnum):
    OPEN = "open"
    DELTA = "delta"
    CLOSE = "close"


@dataclass
class Block:
    """A part of an answer, and its place among them."""

    index: int
    kind: Kind
    call: Call | None = None
    text: str = ""
    """So far; the arguments of a call."""
    logprobs: list[Any] = field(default_factory=list)


class Step(NamedTuple):
    """One thing that happened to a block."""

    change: Change
    block: Block
    text: str = ""
    """What a delta adds."""
    logprobs: tuple[Any, ...] = ()


class Blocks:
    """The blocks of one choice."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None

    def take(self, piece: Piece) -> list[Step]:
        """What a piece changes."""
        steps: list[Step] = []
        if piece.reasoning:
            steps += self._add(Kind.THINKING, piece.reasoning, ())
        if piece.content:
            # The log-probabilities of a piece are those of all its tokens: they belong to what is answered.
            steps += self._add(Kind.TEXT, piece.content, tuple(piece.logprobs))
        for call in piece.calls:
            steps += [*self.close(), *self._begin(Kind.CALL, call), *self._extend(call.arguments, ())]
        return steps

    def close(self) -> list[Step]:
        """The open block ends."""
        block, self._open = self._open, None
        return [] if block is None else [Step(Change.CLOSE, block)]

    def _add(self, kind: Kind, text: str, logprobs: tuple[Any, ...]) -> list[Step]:
        steps: list[Step] = []
        if self._open is None or self._open.kind is not kind:
            steps += [*self.close(), *self._begin(kind, None)]
        return [*steps, *self._extend(text, logprobs)]

    def _begin(self, kind: Kind, call: Call | None) -> list[Step]:
        self._open = Block(len(self.all), kind, call)
        self.all.append(self._open)
        return [Step(Change.OPEN, self._open)]

    def _extend(self, text: str, logprobs: tuple[Any, ...]) -> list[Step]:
        assert self._open is not None
        self._open.text += text
        self._open.logprobs += logprobs
        return [Step(Change.DELTA, self._open, text, logprobs)]
