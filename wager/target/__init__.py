"""WHAT DOES THE BIG MODEL SAY? One packed pass over all rows, its own choice at every node, the verdict.

Read runner.py first, then sampler.py (how a token is chosen) and verify.py (which path stands). May import
levels 0 to 2; never `draft`.
"""

from wager.target.inputs import UnseenRow
from wager.target.runner import Laid, RunResult, RunRow, TargetRunner
from wager.target.sampler import ChoiceRow, Choices, Sampler, is_bare
from wager.target.verify import judge

__all__ = [
    "ChoiceRow",
    "Choices",
    "Laid",
    "RunResult",
    "RunRow",
    "Sampler",
    "TargetRunner",
    "UnseenRow",
    "is_bare",
    "judge",
]
