"""What the engine is doing, in numbers: running totals, and their change over the last seconds.

It hears of every step in the engine's thread and counts; the loop reads totals and takes a picture of them
twice a second, so that rates come from the difference of two pictures. Metrics, /wager/live and /wager/state
read it. It decides nothing and knows no HTTP.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from wager.engine.engine import Engine

WINDOW_S = 5.0
_MOST_BETS = 65  # this and larger bets are counted together


@dataclass(slots=True)
class CostError:
    """How far the cost model's predictions are from what steps really took."""

    steps: int = 0
    predicted_ms: float = 0.0
    actual_ms: float = 0.0
    absolute_ms: float = 0.0
    """Sum of the differences, whatever their sign."""

    @property
    def ratio(self) -> float:
        """Mean difference as a part of the time of a step; 0 before the first."""
        return self.absolute_ms / self.actual_ms if self.actual_ms > 0.0 else 0.0


@dataclass(slots=True)
class Picture:
    """Totals at one moment."""

    at_s: float = 0.0
    tokens: int = 0
    """Emitted by all requests."""
    row_steps: int = 0
    drafted_steps: int = 0
    histogram: list[int] = field(default_factory=list)
    bets: list[int] = field(default_factory=list)


class Meter:
    """Counts for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.bets = [0] * (_MOST_BETS + 1)
        """Rows by the number of nodes verified for them in a step."""
        self.num_nodes = 0
        self.probes = 0
        """Drafts that were made to look at and of which nothing was verified."""
        self.cost_error = CostError()
        self._pictures: deque[Picture] = deque([Picture(time.monotonic())])
        engine.telemetry.listener = self._hear_step
        engine.controller.on_decision = self._hear_decision

    # -- in the engine's thread

    def _hear_step(self, report: Any) -> None:
        bets, num_betting = self.bets, 0
        for bet in report.bets:
            bets[bet if bet < _MOST_BETS else _MOST_BETS] += 1
            num_betting += bet > 0
        self.num_nodes += report.num_nodes
        self.probes += max(0, report.num_drafting - num_betting)

    def _hear_decision(self, decision: dict[str, Any]) -> None:
        error = self.cost_error
        error.steps += 1
        error.predicted_ms += decision["predicted_ms"]
        error.actual_ms += decision["actual_ms"]
        error.absolute_ms += abs(decision["predicted_ms"] - decision["actual_ms"])

    # -- on the loop

    def tick(self) -> None:
        """Take a picture; those older than the window go, but for one to compare with."""
        self._pictures.append(self._picture())
        while len(self._pictures) > 2 and self._pictures[1].at_s < time.monotonic() - WINDOW_S:
            self._pictures.popleft()

    def state(self) -> dict[str, Any]:
        """What /wager/state shows."""
        engine = self._engine
        memory = engine.scheduler.memory
        total = engine.controller.experience.ledger.total
        return {
            "t": round(time.time(), 3),
            "running": len(engine.scheduler.running),
            "waiting": len(engine.scheduler.waiting),
            "max_rows": engine.scheduler.config.max_rows,
            "pages_used": memory.num_pages - memory.allocator.num_available,
            "pages_total": memory.num_pages,
            "policy": engine.controller.policy.name,
            "ledger_ms": round(total.balance_ms, 3),
            "speedup": None if total.speedup is None else round(total.speedup, 4),
            **self._rates(),
        }

    def _picture(self) -> Picture:
        stats = self._engine.controller.experience.stats
        return Picture(
            time.monotonic(),
            self._engine.telemetry.emitted,
            stats.steps,
            stats.drafted_steps,
            list(stats.acceptance_histogram),
            list(self.bets),
        )

    def _rates(self) -> dict[str, Any]:
        """Over the window."""
        old, new = self._pictures[0], self._picture()
        tokens, rows = new.tokens - old.tokens, new.row_steps - old.row_steps
        bets = _difference(new.bets, old.bets)
        num_rows = sum(bets)
        return {
            "tokens_per_s": round(tokens / max(new.at_s - old.at_s, 1e-3), 2),
            "tokens_per_step": round(tokens / rows, 3) if rows else None,
            "bet_mean": round(sum(i * n for i, n in enumerate(bets)) / num_rows, 3) if num_rows else None,
            "bet_histogram": _trimmed(bets),
            "acceptance_by_depth": acceptance_by_depth(_difference(new.histogram, old.histogram)),
        }


def acceptance_by_depth(histogram: list[int]) -> list[float]:
    """Share of the drafted steps that accepted at least d guesses, for d = 1, 2, ..."""
    total = left = sum(histogram)
    shares = []
    for ended in histogram[:-1]:
        left -= ended
        shares.append(round(left / total, 4) if total else 0.0)
    return shares


def _difference(new: list[int], old: list[int]) -> list[int]:
    padded = old + [0] * (len(new) - len(old))
    return [a - b for a, b in zip(new, padded, strict=False)]


def _trimmed(counts: list[int]) -> list[int]:
    """Without the zeros at the end."""
    last = max((i for i, n in enumerate(counts) if n), default=-1)
    return counts[: last + 1]
