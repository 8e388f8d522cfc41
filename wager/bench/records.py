"""What is measured: the time of one answer, the counts of its steps, and everything of a whole run.

Plain values that go to JSON and come back equal; no torch, no statistics (figures.py). Made by runs.py and
peers.py, kept in files by report.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Answer", "Counts", "Difference", "Measured", "Profile", "Run", "Timing"]


class Timing(NamedTuple):
    """One answer's clock. `first_s`: until its first tokens, `num_first` of them, were there."""

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
    """What the engine's steps did, summed over answers. Steps that read the prompt are kept apart."""

    answers: int = 0
    steps: int = 0
    emitted: int = 0
    prompt_steps: int = 0
    bets: Counter[int] = field(default_factory=Counter)
    """Steps by the nodes they verified; 0 is plain decoding."""
    accepted: Counter[int] = field(default_factory=Counter)
    """Steps with a bet above zero by the guesses they kept."""
    drafters: Counter[str] = field(default_factory=Counter)
    """Steps by the drafter that ran; "" where none did."""
    stage_ms: dict[str, float] = field(default_factory=dict)
    """By the nine stages, of the steps behind the prompt."""
    prompt_ms: float = 0.0
    """Of the steps that read the prompt, all stages."""
    outside_ms: float = 0.0
    """Wall time outside of steps."""
    spent_ms: float = 0.0
    """By the ledger: time really spent on passes, and what plain decoding would have spent."""
    plain_ms: float = 0.0

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
    """Where the time of one policy's steps behind the prompt went."""

    steps: int
    tokens_per_step: float
    step_ms: float
    """Median of all stages together."""
    stage_ms: Mapping[str, float]
    """Median by stage."""
    stage_share: Mapping[str, float]
    """Of the time of all steps."""
    gap_ms: float
    """Median of a step's time in which no pass ran: on a device by its own clock, else outside of the stages
    that run one."""
    gap_share: float
    device_ms: Mapping[str, float] | None = None
    """Median by stage of the device's busy time; None where there is no such clock."""
    pass_bytes: int | None = None
    """Bytes of weights that a pass of the target reads; None where they are not known."""
    bandwidth_gb_s: float | None = None
    """Those by the median time of a pass."""


@dataclass(frozen=True)
class Answer:
    """One answer of one contender. `counts` is None where the steps cannot be seen."""

    timing: Timing
    token_ids: tuple[int, ...]
    counts: Counts | None = None


class Run(NamedTuple):
    """Where an answer stood in the plan, and its clock. `prompt` is an index, `place` that of its turn."""

    contender: str
    prompt: int
    round: int
    place: int
    timing: Timing


@dataclass(frozen=True)
class Difference:
    """The first token at which a contender's text left plain decoding's.

    `gap`: how far plain decoding's own two best final scores lay apart there; None where it was not looked
    up. `excused`: nearer than the near-tie rule of the dtype allows for.
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
    """All of a run. `prompts` are (kind, id) in order; a set is complete or not there at all."""

    contenders: Sequence[str]
    """In the order asked for, plain decoding first."""
    prompts: Sequence[tuple[str, str]]
    runs: list[Run] = field(default_factory=list)
    counts: dict[tuple[str, str], Counts] = field(default_factory=dict)
    """By contender and kind."""
    compared: Counter[str] = field(default_factory=Counter)
    """Answers whose text was compared with plain decoding's."""
    differences: list[Difference] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)
    """By contender; empty unless asked for."""
    finished: bool = False

    @property
    def kinds(self) -> list[str]:
        """Kinds with at least one complete set, in the prompts' order."""
        seen = {run.prompt for run in self.runs}
        return list(dict.fromkeys(kind for i, (kind, _) in enumerate(self.prompts) if i in seen))

    def add_counts(self, contender: str, kind: str, counts: Counts) -> None:
        self.counts.setdefault((contender, kind), Counts()).merge(counts)
