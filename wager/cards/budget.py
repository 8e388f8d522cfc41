"""Determines the thinking budget of a request, which may tighten every limit and loosen none.

A request sets a budget, an effort or neither. The limit of the operator and the room for the answer apply
too; the tightest of them wins and is named. This module knows no HTTP and no tokens; the command line and the
server use it.
"""

from __future__ import annotations

from typing import NamedTuple

from wager.cards.card import ModelCard
from wager.errors import RequestError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


class BudgetDecision(NamedTuple):
    """The budget and its source."""

    budget: int | None
    """Largest number of thinking tokens; None: unlimited."""
    asked: int | None
    """The budget that the request itself asked for; None if it did not."""
    source: str
    """Where the budget comes from: the request, its effort, the limit or the room for the answer."""

    @property
    def clamped(self) -> bool:
        """Whether the budget is smaller than the request asked for."""
        return self.asked is not None and self.budget is not None and self.budget < self.asked


def decide_budget(
    card: ModelCard,
    max_tokens: int,
    asked: int | None = None,
    effort: str | None = None,
    most: int | None = None,
) -> BudgetDecision:
    """Returns the tightest of the requested budget, the effort, the limit `most` and the room beside the
    answer.

    Without a request and a limit only the room for the answer applies. Raises RequestError.
    """
    tier = _tier(card, effort)
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 0):
        raise RequestError(f"{asked!r} is not a whole number from 0", "thinking_budget")
    options = [(asked, "request"), (tier, f"effort {effort}"), (most, "limit")]
    options.append((max_tokens - reply_room(card, max_tokens), "room for the answer"))
    known = [(value, source) for value, source in options if value is not None]
    budget, source = min(known, key=lambda one: one[0])
    wishes = [value for value in (asked, tier) if value is not None]
    return BudgetDecision(budget, min(wishes, default=None), source)


def reply_room(card: ModelCard, max_tokens: int) -> int:
    """Returns the number of tokens reserved for the answer: the card's value, at most half of the output."""
    return min(card.reply_tokens.value, max_tokens // 2)


def _tier(card: ModelCard, effort: str | None) -> int | None:
    if effort is None:
        return None
    if effort == "none":
        return 0
    found = card.efforts.value.get(effort)
    if found is None:
        known = ", ".join(["none", *card.efforts.value])
        raise RequestError(f"{effort!r} is not one of the efforts of this model: {known}", "effort")
    return found
