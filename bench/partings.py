"""Texts that were compared: how many are equal, and where the others part.

Plain values that go to JSON and come back equal. Made by exactness.py; judges and runs nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Parting:
    """Where a text left plain decoding's, and how far apart plain decoding's two best scores lay there."""

    bench: str
    id: str
    position: int
    plain_token: int | None
    own_token: int | None
    plain_text: str
    own_text: str
    gap: float
    near_tie: bool


@dataclass
class Tally:
    """Texts compared, and how they stood."""

    prompts: int = 0
    identical: int = 0
    near_ties: int = 0
    different: int = 0
    tokens: int = 0
    """Of plain decoding's texts."""

    def enter(self, num_tokens: int, parting: Parting | None) -> None:
        self.prompts += 1
        self.tokens += num_tokens
        self.identical += parting is None
        self.near_ties += parting is not None and parting.near_tie
        self.different += parting is not None and not parting.near_tie


@dataclass
class Comparison:
    """One series of texts against plain decoding's."""

    by_bench: dict[str, Tally] = field(default_factory=dict)
    partings: list[Parting] = field(default_factory=list)
    verified: int = 0
    accepted: int = 0

    @property
    def total(self) -> Tally:
        found = Tally()
        for tally in self.by_bench.values():
            for one in fields(Tally):
                setattr(found, one.name, getattr(found, one.name) + getattr(tally, one.name))
        return found

    def enter(self, bench: str, num_tokens: int, parting: Parting | None) -> None:
        self.by_bench.setdefault(bench, Tally()).enter(num_tokens, parting)
        if parting is not None:
            self.partings.append(parting)

    def as_dict(self) -> dict[str, Any]:
        return {"total": asdict(self.total)} | asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Comparison:
        tallies = {bench: Tally(**tally) for bench, tally in data["by_bench"].items()}
        partings = [Parting(**one) for one in data["partings"]]
        return cls(tallies, partings, data["verified"], data["accepted"])


@dataclass
class Progress:
    """All that a run has found; goes to the result file and comes back from it."""

    total: int
    done: int = 0
    seconds: float = 0.0
    guessed: Comparison = field(default_factory=Comparison)
    control: Comparison = field(default_factory=Comparison)

    @property
    def finished(self) -> bool:
        return self.done >= self.total

    def as_dict(self) -> dict[str, Any]:
        return {
            "finished": self.finished,
            "total": self.total,
            "done": self.done,
            "seconds": round(self.seconds, 1),
            "guessed": self.guessed.as_dict(),
            "control": self.control.as_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Progress:
        both = (Comparison.from_dict(data[name]) for name in ("guessed", "control"))
        return cls(data["total"], data["done"], data["seconds"], *both)
