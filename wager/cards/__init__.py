"""WHAT DOES A MODEL WANT? Cards: its lengths, the marks around its thinking, its sampling and its efforts.

One JSON file per model here, one per family in families/, and fallback.json for all others. Read card.py
first: which card holds for a name, and where each value came from. budget.py turns a request's wishes into
a thinking budget. Standard library only; no tokens, no tensors.
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
