"""A request's wishes about thinking against the server's limits: whether it thinks, and for how long at most.

A request may tighten every limit and loosen none; what was tightened is told in the answer. Which marks stand
around thinking, and which efforts mean how much, is the model card's. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wager.errors import RequestError
from wager.records import ThinkingLimit
from wager.text.reasoning import ReasoningMarks
from wager.text.tokenizer import Tokenizer

TIERS = {"minimal": 128, "low": 512, "medium": 2048, "high": 8192, "xhigh": 32768}


@dataclass(frozen=True)
class Wish:
    """What a request says about thinking; None where it says nothing."""

    enabled: bool | None = None
    budget: int | None = None
    effort: str | None = None

    @property
    def is_on(self) -> bool | None:
        """Whether it wants to think. Raises RequestError where it says both."""
        wants = [word for word in (self.enabled, self._by_effort, self._by_budget) if word is not None]
        if len(set(wants)) > 1:
            raise RequestError("thinking is both asked for and ruled out", "thinking")
        return wants[0] if wants else None

    @property
    def _by_effort(self) -> bool | None:
        return None if self.effort is None else self.effort != "none"

    @property
    def _by_budget(self) -> bool | None:
        return None if self.budget is None or self.budget == 0 else True


@dataclass(frozen=True)
class Thinker:
    """How one model thinks, and how much it may."""

    marks: ReasoningMarks
    tokenizer: Tokenizer
    tiers: Mapping[str, int]
    """Tokens by effort."""
    most: int | None = None
    """The server's own limit."""
    reply_tokens: int = 0
    """Tokens that are kept free for the answer."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def limit(self, wish: Wish, prompt: str, max_tokens: int, follows_grammar: bool) -> Decided:
        """What holds for a request whose prompt ends like this. Raises RequestError.

        A text that follows a grammar and may not think cannot even open the span.
        """
        if wish.budget is not None and wish.budget < 0:
            raise RequestError(f"{wish.budget} is not a whole number from 0", "thinking.budget_tokens")
        asked = self._asked(wish)
        caps = [cap for cap in (asked, self.most, self._room(max_tokens)) if cap is not None]
        budget = 0 if wish.is_on is False else min(caps, default=None)
        opens = () if budget == 0 and follows_grammar else self._ids(self.marks.open)
        limit = ThinkingLimit(
            budget,
            opens,
            self._ids(self.marks.close),
            starts_open=self.is_open(prompt),
        )
        note = {"budget": budget, "asked": asked, "clamped": asked is not None and budget != asked}
        return Decided(limit, note)

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends inside thinking: nothing stands behind its open mark but blanks."""
        return prompt.rstrip().endswith(self.marks.open)

    def _asked(self, wish: Wish) -> int | None:
        by_effort = self.tiers.get(wish.effort) if wish.effort is not None else None
        asked = [one for one in (wish.budget, by_effort) if one is not None]
        return min(asked, default=None)

    def _room(self, max_tokens: int) -> int | None:
        """What the answer leaves free; None where nobody asks for any."""
        return max_tokens - min(self.reply_tokens, max_tokens // 2) if self.reply_tokens else None

    def _ids(self, mark: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(mark, add_special=False))


@dataclass(frozen=True)
class Decided:
    """A limit, and what the answer says about it."""

    limit: ThinkingLimit
    note: dict[str, Any]
