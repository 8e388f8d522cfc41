"""Measured values: the time of one answer, the counts of its steps, and everything of a whole run.

They are plain values that can be written to JSON and read back; figures.py has the statistics. runs.py and
peers.py create them, and report.py stores them. This module does not import torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Answer", "Counts", "Difference", "Measured", "Profile", "Run", "Timing"]


class Timing(NamedTuple):
    """The clock of one answer; `first_s` is the time until its first tokens, `num_first` of them."""

    wall_s: float
    first_s: float
    num_tokens: int
    num_first: int = 1

    @property
    def decode_s(self) -> float:
        """Time after the first tokens."""
        return self.wall_s - self.first_s

    @property
    def num_decoded(self) -> int:
        return self.num_tokens - self.num_first


@dataclass
class Counts:
    """Sums over the steps of answers; steps that read the prompt are counted separately."""

    answers: int = 0
    steps: int = 0
    emitted: int = 0
    prompt_steps: int = 0
    bets: Counter[int] = field(default_factory=Counter)
    """Number of steps by verified nodes; 0 is plain decoding."""
    accepted: Counter[int] = field(default_factory=Counter)
    """Number of steps with a bet above zero, by accepted guesses."""
    drafters: Counter[str] = field(default_factory=Counter)
    """Number of steps by the drafter that ran; "" stands for none."""
    stage_ms: dict[str, float] = field(default_factory=dict)
    """Time by stage, of the steps after the prompt."""
    prompt_ms: float = 0.0
    """Time of the steps that read the prompt, over all stages."""
    outside_ms: float = 0.0
    """Wall time outside of steps."""
    spent_ms: float = 0.0
    """Time spent on passes, according to the ledger."""
    plain_ms: float = 0.0
    """Time that plain decoding would have spent, according to the ledger."""

    def merge(self, other: Counts) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bets.update(other.bets)
        self.accepted.update(other.accepted)
        self.drafters.update(other.drafters)
        for stage, ms in other.stage_ms.items():
            self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + ms


_SUMS = ("answers", "steps", "emitted", "prompt_steps", "prompt_ms", "outside_ms", "spent_ms", "plain_ms")


@dataclass(frozen=True)
class Profile:
    """Where the time of one policy's steps after the prompt went."""

    steps: int
    tokens_per_step: float
    step_ms: float
    """Median of all stages together."""
    stage_ms: Mapping[str, float]
    """Median by stage."""
    stage_share: Mapping[str, float]
    """Share of the time of all steps by stage."""
    gap_ms: float
    """Median time of a step without a running pass: by the device's clock, else outside of the stages that
    run one.
    """
    gap_share: float
    device_ms: Mapping[str, float] | None = None
    """Median busy time of the device by stage; None without such a clock."""
    pass_bytes: int | None = None
    """Bytes of weights that a pass of the target reads; None if unknown."""
    bandwidth_gb_s: float | None = None
    """`pass_bytes` divided by the median time of a pass."""


@dataclass(frozen=True)
class Answer:
    """One answer of one contender; `counts` is None if its steps cannot be observed."""

    timing: Timing
    token_ids: tuple[int, ...]
    counts: Counts | None = None


class Run(NamedTuple):
    """The position of an answer in the plan, and its clock; `prompt` is an index, `place` the index of its
    turn.
    """

    contender: str
    prompt: int
    round: int
    place: int
    timing: Timing


@dataclass(frozen=True)
class Difference:
    """The first token at which a contender's text differs from plain decoding's.

    `gap` is the distance of plain decoding's two best final scores there; None if it was not determined.
    `excused` says that the gap is smaller than the near-tie rule of the dtype.
    """

    contender: str
    prompt: int
    position: int
    plain_token: int | None
    own_token: int | None
    gap: float | None = None
    excused: bool = False


@dataclass
class Measured:
    """The results of a run. `prompts` are (kind, id) in order; only complete sets are stored."""

    contenders: Sequence[str]
    """Contenders in the requested order, plain decoding first."""
    prompts: Sequence[tuple[str, str]]
    runs: list[Run] = field(default_factory=list)
    counts: dict[tuple[str, str], Counts] = field(default_factory=dict)
    """Counts by contender and kind."""
    compared: Counter[str] = field(default_factory=Counter)
    """Number of answers whose text was compared with plain decoding's."""
    differences: list[Difference] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)
    """Profiles by contender; empty unless they were requested."""
    finished: bool = False

    @property
    def kinds(self) -> list[str]:
        """Kinds with at least one complete set, in the order of the prompts."""
        seen = {run.prompt for run in self.runs}
        return list(dict.fromkeys(kind for i, (kind, _) in enumerate(self.prompts) if i in seen))

    def add_counts(self, contender: str, kind: str, counts: Counts) -> None:
        self.counts.setdefault((contender, kind), Counts()).merge(counts)
