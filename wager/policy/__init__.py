"""HOW MUCH TO BET? Pure mathematics: numpy and scipy.special at most, no torch, no tokens.

Read base.py first (the interface), then auto.py (the default policy), then what it stands on: worth.py,
known.py, calibration.py, cost.py with cost_table.py, gain.py, reach.py, ledger.py, stake.py, allocation.py;
rest.py and overrun.py for crowds. bod.py is the closed-form policy. names.py turns names into policies, told
what settings.py holds; controller.py is what engines talk to. May import level 0 and `wager.tree`.
"""

from wager.policy.base import (
    MANY,
    PLAIN,
    Blind,
    Coming,
    Draft,
    Evidence,
    Offer,
    Policy,
    Prediction,
    Row,
    RowOutcome,
    StepOutcome,
)
from wager.policy.controller import Controller
from wager.policy.cost import CostCurve, CostModel, DraftTime, PassTime
from wager.policy.experience import Experience
from wager.policy.ledger import Account, Ledger
from wager.policy.names import check_policy, make_policy, needs_target_p1
from wager.policy.settings import PolicySettings, settings_from
from wager.policy.stats import ExponentialMovingAverage, SpeculationStats

__all__ = [
    "MANY",
    "PLAIN",
    "Account",
    "Blind",
    "Coming",
    "Controller",
    "CostCurve",
    "CostModel",
    "Draft",
    "DraftTime",
    "Evidence",
    "Experience",
    "ExponentialMovingAverage",
    "Ledger",
    "Offer",
    "PassTime",
    "Policy",
    "PolicySettings",
    "Prediction",
    "Row",
    "RowOutcome",
    "SpeculationStats",
    "StepOutcome",
    "check_policy",
    "make_policy",
    "needs_target_p1",
    "settings_from",
]
