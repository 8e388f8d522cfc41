"""The order of answers: for every prompt, plain decoding around each small group, which runs forward and
backward.

    ar X X ar            one contender: A B B A
    ar X Y Z Z Y X ar W W ar      more: groups of three between two answers of plain decoding

So a drift of the machine affects both sides equally. The order of the contenders rotates by one with every
prompt and round. `RunOptions` has the settings of all answers. This module has pure lists; it knows neither
clocks nor models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wager.errors import ConfigError
from wager.records import SamplingParams

__all__ = [
    "BASELINE",
    "ORDERS",
    "PEERS",
    "PromptSet",
    "RunOptions",
    "check_peers",
    "prompt_order",
    "sets",
    "turns",
]

BASELINE = "ar"
PEERS = ("transformers", "assisted", "prompt-lookup")
"""Other decoders that may take part (peers.py)."""
ORDERS = ("mixed", "by-kind")
_GROUP = 3  # contenders between two plain answers; with more, the machine would drift in between


@dataclass(frozen=True)
class RunOptions:
    """How prompts are answered and how often; checked when created."""

    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    rounds: int = 1
    prompt_order: str = "mixed"
    warmup_tokens: int = 32

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 2), ("rounds", 1), ("warmup_tokens", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(name, value, f"a whole number from {least}")
        if self.prompt_order not in ORDERS:
            raise ConfigError("prompt_order", self.prompt_order, f"one of {', '.join(ORDERS)}")
        self.params(0)

    def params(self, prompt: int, max_tokens: int | None = None) -> SamplingParams:
        """Returns the request for a prompt; the seed and the length are the same for every contender."""
        return SamplingParams(
            max_tokens=max_tokens or self.max_tokens,
            temperature=self.temperature,
            seed=self.seed + prompt,
            ignore_eos=True,
        )


class PromptSet(NamedTuple):
    """One prompt in one round, and the order of its contenders."""

    round: int
    prompt: int
    turns: tuple[str, ...]


def turns(contenders: Sequence[str], shift: int = 0) -> tuple[str, ...]:
    """Returns the order of answers to one prompt; `contenders` does not include plain decoding, which is
    added.
    """
    if not contenders:
        return (BASELINE, BASELINE)
    cut = shift % len(contenders)
    rotated = [*contenders[cut:], *contenders[:cut]]
    order = [BASELINE]
    for start in range(0, len(rotated), _GROUP):
        group = rotated[start : start + _GROUP]
        order += [*group, *reversed(group), BASELINE]
    return tuple(order)


def prompt_order(kinds: Sequence[str], order: str = "mixed") -> list[int]:
    """Returns the indices of the prompts: alternating kinds, as in mixed traffic, or kind after kind."""
    places: dict[str, list[int]] = {}
    for index, kind in enumerate(kinds):
        places.setdefault(kind, []).append(index)
    if order == "by-kind":
        return [index for own in places.values() for index in own]
    longest = max(map(len, places.values()), default=0)
    return [own[i] for i in range(longest) for own in places.values() if i < len(own)]


def sets(
    kinds: Sequence[str], contenders: Sequence[str], rounds: int = 1, order: str = "mixed"
) -> list[PromptSet]:
    """Returns the whole plan: every prompt once in every round."""
    found: list[PromptSet] = []
    for number in range(rounds):
        for index in prompt_order(kinds, order):
            found.append(PromptSet(number, index, turns(contenders, len(found))))
    return found


def check_peers(names: Sequence[str]) -> None:
    """Raises ConfigError that names the known peers."""
    for name in names:
        if name not in PEERS:
            raise ConfigError("peers", name, f"all, or some of {', '.join(PEERS)} with commas between")
