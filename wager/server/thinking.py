"""A request's wishes about thinking against the server's limits: whether it thinks, and for how long at most.

A request may tighten every limit and loosen none; what was tightened is told in the answer. Which marks stand
around thinking, which efforts mean how much and what the answer needs is the model card's. Knows no HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wager.cards import ModelCard, card_for, decide_budget
from wager.engine.engine import Engine
from wager.errors import RequestError
from wager.records import MAX_MARK, ThinkingLimit
from wager.server_config import ServeConfig
from wager.text.reasoning import ReasoningMarks
from wager.text.thinking import ThinkingMarks, ends_inside, thinking_marks
from wager.text.tokenizer import Tokenizer

log = logging.getLogger("wager.server")

_TAIL = 256  # tokens of a prompt in which its last open mark is looked for

__all__ = ["Decided", "Thinker", "Wish", "make_thinker", "read_card"]


@dataclass(frozen=True)
class Wish:
    """What a request says about thinking; None where it says nothing."""

    enabled: bool | None = None
    budget: int | None = None
    effort: str | None = None

    @property
    def is_on(self) -> bool | None:
        """Whether it wants to think; None where it does not say. Raises RequestError where it says both."""
        by_effort = None if self.effort is None else self.effort != "none"
        by_budget = True if self.budget else None
        wants = {word for word in (self.enabled, by_effort, by_budget) if word is not None}
        if len(wants) > 1:
            raise RequestError("thinking is both asked for and ruled out", "thinking")
        return next(iter(wants), None)


class Decided(NamedTuple):
    """A limit, and what the answer says about it."""

    limit: ThinkingLimit
    note: dict[str, Any]


@dataclass(frozen=True)
class Thinker:
    """How one model thinks, and how much it may."""

    card: ModelCard
    tokenizer: Tokenizer
    texts: ReasoningMarks
    marks: ThinkingMarks
    most: int | None
    """The server's own limit."""

    @property
    def shown_ids(self) -> tuple[int, ...]:
        """The special tokens among the marks: the text must show them to be told apart."""
        return self.texts.shown_ids(self.tokenizer)

    def limit(self, wish: Wish, prompt_ids: Sequence[int], max_tokens: int, follows_grammar: bool) -> Decided:
        """What holds for a request with this prompt. Raises RequestError.

        A text that follows a grammar and may not think cannot even open the span.
        """
        is_off = wish.is_on is False
        decided = decide_budget(self.card, max_tokens, wish.budget, wish.effort, 0 if is_off else self.most)
        marks = self.marks._replace(open_ids=()) if is_off and follows_grammar else self.marks
        note = {
            "budget": decided.budget,
            "asked": decided.asked,
            "clamped": decided.clamped,
            "source": "ruled out" if is_off else decided.source,
        }
        starts_open = ends_inside(self.tokenizer, prompt_ids[-_TAIL:], self.marks)
        return Decided(marks.limit(decided.budget, starts_open=starts_open), note)


def read_card(engine: Engine, config: ServeConfig) -> ModelCard:
    """What holds for the model: flags, its card, its family, the fallback. Raises ConfigError."""
    reply = config.server.reply_tokens
    flags = {
        "thinking": config.server.thinking_close or None,
        "reply_tokens": None if reply == "card" else reply,
    }
    return card_for(config.model.model, str(engine.parts.notes.get("model_type", "")), flags)


def make_thinker(engine: Engine, config: ServeConfig, card: ModelCard) -> Thinker | None:
    """How the model thinks; None where it does not, by its card or by its tokenizer."""
    tokenizer, found = engine.parts.tokenizer, card.thinking
    if tokenizer is None or found.value is None:
        return None
    marks = thinking_marks(tokenizer, found.value, known_only=found.source == "fallback")
    if marks is None:
        return None
    if len(marks.close_ids) > MAX_MARK:
        log.warning("what closes thinking is %d tokens to this tokenizer: shortened", len(marks.close_ids))
        marks = marks._replace(close_ids=marks.natural_ids)
    texts = ReasoningMarks(found.value.open, found.value.close)
    return Thinker(card, tokenizer, texts, marks, config.server.max_thinking_tokens or None)
