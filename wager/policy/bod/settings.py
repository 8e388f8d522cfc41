"""Settings of the policies `bod` and `bod:tree`: the range of bets, and costs until they were measured."""

from __future__ import annotations

from typing import NamedTuple

from wager.errors import ConfigError
from wager.policy.bod.controller import BODConfig

_USUAL_RANGES = {"chain": (2, 16), "tree": (1, 64)}
"""Narrower than the controller's: a tree of 1,024 guesses is no everyday bet."""


class BodSettings(NamedTuple):
    """Settings of `bod` that hold in both modes; a bet of None follows the mode."""

    min_bet: int | None = None
    max_bet: int | None = None
    scale_cost_ms: float = 8.0
    fixed_cost_ms: float = 47.0

    def config(self, mode: str) -> BODConfig:
        """The controller's configuration. Raises ConfigError where the range is empty in this mode."""
        usual_low, usual_high = _USUAL_RANGES[mode]
        low = usual_low if self.min_bet is None else self.min_bet
        high = usual_high if self.max_bet is None else self.max_bet
        if low > high:
            name, value = ("bod_max_bet", high) if self.min_bet is None else ("bod_min_bet", low)
            raise ConfigError(name, value, f"bod_min_bet <= bod_max_bet, not {low}..{high} ({mode})")
        return BODConfig(
            mode=mode,
            min_bet=low,
            max_bet=high,
            default_scale_cost=self.scale_cost_ms,
            default_fixed_cost=self.fixed_cost_ms,
        )
