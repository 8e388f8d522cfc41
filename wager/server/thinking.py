"""Decides whether a request may think and for how long: the request's options against the server's limits.

A request can lower a limit but never raise it; the answer reports the limit that was applied. The model card
says which marks surround thinking, what each effort means and how many tokens the answer needs. It knows
nothing of HTTP; request_builder.py calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wager.cards import ModelCard, card_for, decide_budget
from wager.engine.engine import Engine
from wager.records import MAX_MARK, ThinkingLimit
from wager.server.generation_request import ThinkingOptions
from wager.server_config import ServeConfig
from wager.text.reasoning import ReasoningMarks
from wager.text.thinking import ThinkingMarks, ends_inside, thinking_marks
from wager.text.tokenizer import Tokenizer

log = logging.getLogger("wager.server")

_PROMPT_TAIL = 256  # the last open mark is searched for in this many tokens at the end of the prompt


class ThinkingDecision(NamedTuple):
    """The limit of a request, and what `metrics.thinking` of the answer says about it."""

    limit: ThinkingLimit
    statistics: dict[str, Any]


@dataclass(frozen=True)
class ThinkingRules:
    """How one model thinks, and how much it may."""

    card: ModelCard
    tokenizer: Tokenizer
    texts: ReasoningMarks
    marks: ThinkingMarks
    max_tokens: int | None
    """The server's limit; None means no limit."""

    @property
    def shown_ids(self) -> tuple[int, ...]:
        """The special tokens among the marks. The text must contain them so that they can be parsed."""
        return self.texts.shown_ids(self.tokenizer)

    def decide(
        self, options: ThinkingOptions, prompt_ids: Sequence[int], max_tokens: int, has_grammar: bool
    ) -> ThinkingDecision:
        """The limit for a request with this prompt. Raises RequestError.

        If thinking is off and the text has to follow a grammar, the model cannot open a thinking span at all.
        """
        is_off = options.is_on is False
        limit = 0 if is_off else self.max_tokens
        decided = decide_budget(self.card, max_tokens, options.budget, options.effort, limit)
        marks = self.marks._replace(open_ids=()) if is_off and has_grammar else self.marks
        statistics = {
            "budget": decided.budget,
            "asked": decided.asked,
            "clamped": decided.clamped,
            "source": "ruled out" if is_off else decided.source,
        }
        starts_open = ends_inside(self.tokenizer, prompt_ids[-_PROMPT_TAIL:], self.marks)
        return ThinkingDecision(marks.limit(decided.budget, starts_open=starts_open), statistics)


def read_card(engine: Engine, config: ServeConfig) -> ModelCard:
    """The model card: settings first, then the model's own card, its family's card and the fallback.

    Raises ConfigError.
    """
    reply = config.server.reply_tokens
    flags = {
        "thinking": config.server.thinking_close or None,
        "reply_tokens": None if reply == "card" else reply,
    }
    model_type = str(engine.parts.notes.get("model_type", ""))
    return card_for(config.model.model, model_type, flags, engine.parts.folder)


def make_thinking_rules(engine: Engine, config: ServeConfig, card: ModelCard) -> ThinkingRules | None:
    """How the model thinks; None if its card or its tokenizer has no thinking."""
    tokenizer, found = engine.parts.tokenizer, card.thinking
    if tokenizer is None or found.value is None:
        return None
    marks = thinking_marks(tokenizer, found.value, known_only=found.source == "fallback")
    if marks is None:
        return None
    if len(marks.close_ids) > MAX_MARK:
        message = "the text that closes thinking has %d tokens; the model's own close mark is used instead"
        log.warning(message, len(marks.close_ids))
        marks = marks._replace(close_ids=marks.natural_ids)
    texts = ReasoningMarks(found.value.open, found.value.close)
    return ThinkingRules(card, tokenizer, texts, marks, config.server.max_thinking_tokens or None)
