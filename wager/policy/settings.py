"""What policies can be told beside their name: limits of `auto`, range and costs of `bod`, gate thresholds.

One record for all of them, so that a policy changed in mid-run keeps its settings. `settings_from` turns the
configuration's policy section into it; names.py hands each policy its part.
"""

from __future__ import annotations

from typing import NamedTuple

from wager.config import PolicyConfig
from wager.errors import ConfigError
from wager.policy.auto import AutoConfig
from wager.policy.bod import BODConfig
from wager.policy.gates import EmaSettings, EntropySettings

# A tree of 1,024 guesses is no everyday bet: the policy's own range is narrower than the controller's.
_USUAL_RANGES = {"chain": (2, 16), "tree": (1, 64)}


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


class PolicySettings(NamedTuple):
    """Everything a policy can be told; each reads its own part."""

    auto: AutoConfig = AutoConfig()
    bod: BodSettings = BodSettings()
    ema: EmaSettings = EmaSettings()
    entropy: EntropySettings = EntropySettings()


def settings_from(config: PolicyConfig) -> PolicySettings:
    """The settings that a configuration's policy section states."""
    return PolicySettings(
        AutoConfig(config.max_nodes, config.max_batch_nodes),
        BodSettings(
            config.bod_min_bet or None,
            config.bod_max_bet or None,
            config.bod_default_scale_cost,
            config.bod_default_fixed_cost,
        ),
        EmaSettings(config.ema_margin, config.ema_patience),
        EntropySettings(config.entropy_unsure, config.entropy_sagging, config.entropy_patience),
    )
