"""HOW MUCH TO BET? Pure mathematics: numpy at most, no torch, no tokens.

Read base.py first (the interface), then auto.py (the default policy and its objective), then what it stands
on: options.py (the objective as numbers), yields.py (what drafts give), `wager.costs` (what steps take),
ledger.py (what may be lost) and exploration.py (what may be spent to learn). names.py turns names into
policies, controller.py is what engines talk to. bod/ is the closed-form policy; simple.py and gates.py hold
the others. May import level 0, `wager.costs` and `wager.tree`.
"""

from wager.policy.base import (
    PLAIN,
    Blind,
    Coming,
    Declined,
    Draft,
    Evidence,
    Inquiry,
    LogOddsMap,
    MultiStep,
    NodeRule,
    Offer,
    Plan,
    Policy,
    Prediction,
    Reason,
    Row,
    RowOutcome,
    StepOutcome,
)
from wager.policy.controller import Controller
from wager.policy.experience import Experience
from wager.policy.ledger import Account, Ledger
from wager.policy.names import PolicySettings, check_policy, make_policy, needs_target_p1, settings_from

__all__ = [
    "PLAIN",
    "Account",
    "Blind",
    "Coming",
    "Controller",
    "Declined",
    "Draft",
    "Evidence",
    "Experience",
    "Inquiry",
    "Ledger",
    "LogOddsMap",
    "MultiStep",
    "NodeRule",
    "Offer",
    "Plan",
    "Policy",
    "PolicySettings",
    "Prediction",
    "Reason",
    "Row",
    "RowOutcome",
    "StepOutcome",
    "check_policy",
    "make_policy",
    "needs_target_p1",
    "settings_from",
]
