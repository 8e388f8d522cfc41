"""WHAT DOES A MODEL WANT? Model cards: token limits, marks around thinking, sampling and efforts.

There is one JSON file per model here, one per family in families/, and fallback.json for all others. Read
card.py first: it finds the card of a name and records the source of each value. budget.py turns the fields of
a request into a thinking budget. Standard library only; no tokens, no tensors.
"""

from wager.cards.budget import EFFORTS, BudgetDecision, decide_budget
from wager.cards.card import ModelCard, Sourced, ThinkingText, card_for

__all__ = [
    "EFFORTS",
    "BudgetDecision",
    "ModelCard",
    "Sourced",
    "ThinkingText",
    "card_for",
    "decide_budget",
]
