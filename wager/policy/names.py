"""Policies by name: `auto`, `ar`, `fixed:K`, `tree:B`, `bod`, `bod:tree`, and gates in front, `ema+NAME`.

The one place that turns a name into a policy. A new policy is one file in this room and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wager.errors import ConfigError
from wager.policy.auto import Auto
from wager.policy.base import Policy
from wager.policy.bod.policy import BodPolicy
from wager.policy.experience import Experience
from wager.policy.gates import EmaGate, EntropyGate
from wager.policy.settings import PolicySettings
from wager.policy.simple import Fixed, Plain


class Told(NamedTuple):
    """What a policy is made from: what has been learned, what it is told, and the words behind its name."""

    experience: Experience
    settings: PolicySettings
    argument: str = ""


Maker = Callable[[Told], Policy]
GateMaker = Callable[[Policy, Told], Policy]

ALLOWED = "auto, ar, fixed:K, tree:B, bod, bod:tree, each also behind a gate: ema+NAME or entropy+NAME"
_MOST_NODES = 1024


def make_policy(name: str, experience: Experience, settings: PolicySettings | None = None) -> Policy:
    """The policy of that name. Raises ConfigError naming what is allowed."""
    told = Told(experience, settings or PolicySettings())
    gate, plus, rest = name.partition("+")
    if plus:
        if gate not in GATES:
            raise ConfigError("policy", name, ALLOWED)
        return GATES[gate](make_policy(rest, experience, settings), told)
    kind, _, argument = name.partition(":")
    if kind not in POLICIES:
        raise ConfigError("policy", name, ALLOWED)
    return POLICIES[kind](told._replace(argument=argument))


def check_policy(name: str, settings: PolicySettings | None = None) -> str:
    """The policy's own spelling of its name. Raises ConfigError as `make_policy` would."""
    return make_policy(name, Experience(), settings).name


def needs_target_p1(name: str) -> bool:
    """Whether the policy asks for the target's own confidence."""
    return "entropy+" in name


def _auto(told: Told) -> Policy:
    _no_argument("auto", told.argument)
    return Auto(told.experience, told.settings.auto)


def _plain(told: Told) -> Policy:
    _no_argument("ar", told.argument)
    return Plain(told.experience)


def _fixed(told: Told) -> Policy:
    return Fixed(told.experience, _count("fixed", told.argument), chain=True)


def _tree(told: Told) -> Policy:
    return Fixed(told.experience, _count("tree", told.argument), chain=False)


def _bod(told: Told) -> Policy:
    if told.argument not in ("", "chain", "tree"):
        raise ConfigError("policy", f"bod:{told.argument}", "bod, bod:chain or bod:tree")
    return BodPolicy(told.experience, config=told.settings.bod.config(told.argument or "chain"))


def _ema(inner: Policy, told: Told) -> Policy:
    return EmaGate(inner, told.experience, told.settings.ema)


def _entropy(inner: Policy, told: Told) -> Policy:
    return EntropyGate(inner, told.experience, told.settings.entropy)


def _no_argument(kind: str, argument: str) -> None:
    if argument:
        raise ConfigError("policy", f"{kind}:{argument}", f"{kind} takes no number")


def _count(kind: str, argument: str) -> int:
    if not argument.isdecimal() or len(argument) > 6 or int(argument) > _MOST_NODES:
        raise ConfigError(
            "policy", f"{kind}:{argument}", f"{kind}:N with a whole number N from 0 to {_MOST_NODES}"
        )
    return int(argument)


POLICIES: dict[str, Maker] = {"auto": _auto, "ar": _plain, "fixed": _fixed, "tree": _tree, "bod": _bod}
GATES: dict[str, GateMaker] = {"ema": _ema, "entropy": _entropy}
