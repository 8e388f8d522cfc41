"""WHAT DOES A STEP TAKE? Times of passes and drafts on this machine, learned online. Numpy only.

model.py is what others read: a table of pass times for each shape (table.py), and a linear model for each
drafter (drafts.py). It knows no policy, no rows and no tokens. May import level 0.
"""

from wager.costs.drafts import DraftShape
from wager.costs.model import CostModel, DraftTime, PassTime, context_range, octave_of
from wager.costs.table import MAX_TOKENS, SHIFT_STRIKES

__all__ = [
    "MAX_TOKENS",
    "SHIFT_STRIKES",
    "CostModel",
    "DraftShape",
    "DraftTime",
    "PassTime",
    "context_range",
    "octave_of",
]
