"""Policies by name: `auto`, `ar`, `fixed:K`, `tree:B`, `bod`, `bod:tree`, and gates in front, `ema+NAME`.

The one place that turns a name into a policy, with what it is told beside its name. A new policy is one file
in this room and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wager.config import PolicyConfig
from wager.errors import ConfigError
from wager.policy.auto import Auto, AutoConfig
from wager.policy.base import Policy
from wager.policy.bod.policy import BodPolicy
from wager.policy.bod.settings import BodSettings
from wager.policy.experience import Experience
from wager.policy.gates import EmaGate, EmaSettings, EntropyGate, EntropySettings
from wager.policy.simple import Fixed, Plain

ALLOWED = "auto, ar, fixed:K, tree:B, bod, bod:tree, each also behind a gate: ema+NAME or entropy+NAME"
_MOST_NODES = 1024


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


Maker = Callable[[Experience, PolicySettings, str], Policy]
GateMaker = Callable[[Policy, Experience, PolicySettings], Policy]


def make_policy(name: str, experience: Experience, settings: PolicySettings | None = None) -> Policy:
    """The policy of that name. Raises ConfigError naming what is allowed."""
    settings = settings or PolicySettings()
    gate, plus, rest = name.partition("+")
    if plus and gate in GATES:
        return GATES[gate](make_policy(rest, experience, settings), experience, settings)
    kind, _, argument = name.partition(":")
    if plus or kind not in POLICIES:
        raise ConfigError("policy", name, ALLOWED)
    return POLICIES[kind](experience, settings, argument)


def check_policy(name: str, settings: PolicySettings | None = None) -> str:
    """The policy's own spelling of its name. Raises ConfigError as `make_policy` would."""
    return make_policy(name, Experience(), settings).name


def needs_target_p1(name: str) -> bool:
    """Whether the policy asks for the target's own confidence."""
    return "entropy+" in name


def _auto(experience: Experience, settings: PolicySettings, argument: str) -> Policy:
    _no_argument("auto", argument)
    return Auto(experience, settings.auto)


def _plain(experience: Experience, _settings: PolicySettings, argument: str) -> Policy:
    _no_argument("ar", argument)
    return Plain(experience)


def _fixed(experience: Experience, _settings: PolicySettings, argument: str) -> Policy:
    return Fixed(experience, _count("fixed", argument), chain=True)


def _tree(experience: Experience, _settings: PolicySettings, argument: str) -> Policy:
    return Fixed(experience, _count("tree", argument), chain=False)


def _bod(experience: Experience, settings: PolicySettings, argument: str) -> Policy:
    if argument not in ("", "chain", "tree"):
        raise ConfigError("policy", f"bod:{argument}", "bod, bod:chain or bod:tree")
    return BodPolicy(experience, config=settings.bod.config(argument or "chain"))


def _no_argument(kind: str, argument: str) -> None:
    if argument:
        raise ConfigError("policy", f"{kind}:{argument}", f"{kind} takes no number")


def _count(kind: str, argument: str) -> int:
    if not argument.isdecimal() or len(argument) > 6 or int(argument) > _MOST_NODES:
        allowed = f"{kind}:N with a whole number N from 0 to {_MOST_NODES}"
        raise ConfigError("policy", f"{kind}:{argument}", allowed)
    return int(argument)


POLICIES: dict[str, Maker] = {"auto": _auto, "ar": _plain, "fixed": _fixed, "tree": _tree, "bod": _bod}
GATES: dict[str, GateMaker] = {
    "ema": lambda inner, experience, settings: EmaGate(inner, experience, settings.ema),
    "entropy": lambda inner, experience, settings: EntropyGate(inner, experience, settings.entropy),
}
