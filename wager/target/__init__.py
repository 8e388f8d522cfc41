"""WHAT DOES THE BIG MODEL SAY? One packed pass over all rows, its own choice at every node, the verdict.

Read runner.py first, then sampler.py (how a token is chosen) and verify.py (which path is accepted). May
import levels 0 to 2; never `draft`.
"""

from wager.target.inputs import BlindRow
from wager.target.runner import PreparedPass, RunResult, RunRow, TargetRunner
from wager.target.sampler import (
    NO_CHOICES,
    ChoiceRow,
    Choices,
    PendingChoices,
    Sampler,
    is_bare,
    top_logprobs,
)
from wager.target.verify import judge

__all__ = [
    "NO_CHOICES",
    "BlindRow",
    "ChoiceRow",
    "Choices",
    "PendingChoices",
    "PreparedPass",
    "RunResult",
    "RunRow",
    "Sampler",
    "TargetRunner",
    "is_bare",
    "judge",
    "top_logprobs",
]
