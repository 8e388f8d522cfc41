"""Policies by name: `auto`, `ar`, `fixed:K`, `tree:B`, `bod`, `bod:tree`, and gates in front, `ema+NAME`.

The one place that turns a name into a policy. A new policy is one file in this room and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

from wager.errors import ConfigError
from wager.policy.auto import Auto
from wager.policy.base import Policy
from wager.policy.bod_policy import BodPolicy
from wager.policy.experience import Experience
from wager.policy.gates import EmaGate, EntropyGate
from wager.policy.simple import Fixed, Plain

Maker = Callable[[Experience, str], Policy]

ALLOWED = "auto, ar, fixed:K, tree:B, bod, bod:tree, each also behind a gate: ema+NAME or entropy+NAME"
_MOST_NODES = 1024


def make_policy(name: str, experience: Experience) -> Policy:
    """The policy of that name. Raises ConfigError naming what is allowed."""
    gate, plus, rest = name.partition("+")
    if plus:
        if gate not in GATES:
            raise ConfigError("policy", name, ALLOWED)
        return GATES[gate](make_policy(rest, experience), experience)
    kind, _, argument = name.partition(":")
    if kind not in POLICIES:
        raise ConfigError("policy", name, ALLOWED)
    return POLICIES[kind](experience, argument)


def needs_target_p1(name: str) -> bool:
    """Whether the policy asks for the target's own confidence."""
    return "entropy+" in name


def _auto(experience: Experience, argument: str) -> Policy:
    _no_argument("auto", argument)
    return Auto(experience)


def _plain(experience: Experience, argument: str) -> Policy:
    _no_argument("ar", argument)
    return Plain(experience)


def _fixed(experience: Experience, argument: str) -> Policy:
    return Fixed(experience, _count("fixed", argument), chain=True)


def _tree(experience: Experience, argument: str) -> Policy:
    return Fixed(experience, _count("tree", argument), chain=False)


def _bod(experience: Experience, argument: str) -> Policy:
    if argument not in ("", "chain", "tree"):
        raise ConfigError("policy", f"bod:{argument}", "bod, bod:chain or bod:tree")
    return BodPolicy(experience, mode=argument or "chain")


def _no_argument(kind: str, argument: str) -> None:
    if argument:
        raise ConfigError("policy", f"{kind}:{argument}", f"{kind} takes no number")


def _count(kind: str, argument: str) -> int:
    if not argument.isdecimal() or int(argument) > _MOST_NODES:
        raise ConfigError("policy", f"{kind}:{argument}", f"{kind}:N with a whole number N from 0 to {_MOST_NODES}")
    return int(argument)


POLICIES: dict[str, Maker] = {"auto": _auto, "ar": _plain, "fixed": _fixed, "tree": _tree, "bod": _bod}
GATES: dict[str, Callable[[Policy, Experience], Policy]] = {"ema": EmaGate, "entropy": EntropyGate}
