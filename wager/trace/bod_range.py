"""The bet range of `bod` in a comparison: changes settings of a policy that was created by name.

It finds the BodPolicy behind gates. simulate.py calls it; it replays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wager.errors import ConfigError
from wager.policy import Experience, Policy, make_policy
from wager.policy.bod.policy import BodPolicy

_MODES = ("chain", "tree")


@dataclass(frozen=True)
class BodRange:
    """Settings of `bod` that a comparison may change; None keeps the policy's own value."""

    mode: str | None = None
    """`chain` or `tree` for the policy `bod`; the names `bod:chain` and `bod:tree` already contain a mode."""
    min_bet: int | None = None
    max_bet: int | None = None

    @property
    def is_set(self) -> bool:
        return any(value is not None for value in (self.mode, self.min_bet, self.max_bet))


def policy_in_range(name: str, experience: Experience, bod: BodRange) -> Policy:
    """Returns the policy of this name; if it is `bod`, or a gate before `bod`, the settings apply. Raises
    ConfigError.
    """
    if bod.mode is not None and bod.mode not in _MODES:
        raise ConfigError("bod_mode", bod.mode, " or ".join(_MODES))
    if bod.mode is not None and is_bod(name) and name.endswith("bod"):
        name = f"{name}:{bod.mode}"
    policy = make_policy(name, experience)
    return _refit(policy, experience, bod) if bod.is_set else policy


def is_bod(name: str) -> bool:
    return name.rpartition("+")[2].partition(":")[0] == "bod"


def _refit(policy: Policy, experience: Experience, bod: BodRange) -> Policy:
    if isinstance(policy, BodPolicy):
        return _with_range(policy, experience, bod)
    inner = getattr(policy, "inner", None)
    if inner is not None:
        refitted = _refit(inner, experience, bod)
        policy.inner = refitted  # type: ignore[attr-defined]
        policy.name = policy.name.removesuffix(inner.name) + refitted.name
    return policy


def _with_range(policy: BodPolicy, experience: Experience, bod: BodRange) -> BodPolicy:
    usual = policy.controller.config
    low = usual.min_bet if bod.min_bet is None else bod.min_bet
    high = usual.max_bet if bod.max_bet is None else bod.max_bet
    if low > high:
        option, value = ("bod_max_bet", high) if bod.min_bet is None else ("bod_min_bet", low)
        raise ConfigError(option, value, f"min_bet <= max_bet, not {low}..{high}")
    return BodPolicy(experience, config=replace(usual, min_bet=low, max_bet=high))
