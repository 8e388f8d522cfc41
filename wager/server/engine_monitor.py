"""Observes the engine: counts every step and reports rates for /wager/state.

`EngineMonitor` is called for every step in the engine's thread and only adds to counters; it never influences
the engine. The event loop takes a snapshot of the totals twice a second, and rates are the difference of two
snapshots. It knows neither HTTP nor Prometheus.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from wager.engine.engine import Engine
from wager.policy import Account, Prediction, StepOutcome

WINDOW_S = 5.0
_MAX_REQUESTS = 64  # requests that the state lists
_MAX_BET = 65  # bets of this size and above are counted together


@dataclass(slots=True)
class CostError:
    """Compares predicted with measured step times."""

    measured_ms: float = 0.0
    absolute_error_ms: float = 0.0

    @property
    def ratio(self) -> float:
        """Mean absolute error relative to the mean step time; 0 before the first step."""
        return self.absolute_error_ms / self.measured_ms if self.measured_ms > 0.0 else 0.0


@dataclass(slots=True)
class Snapshot:
    """Totals at one moment."""

    time_s: float = 0.0
    tokens: int = 0
    """Tokens emitted by all requests."""
    row_steps: int = 0
    acceptance: list[int] = field(default_factory=list)
    """Drafted steps by the number of accepted guesses."""
    bets: list[int] = field(default_factory=list)
    """Row steps by the number of verified nodes."""


class EngineMonitor:
    """Observes one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.bets = [0] * (_MAX_BET + 1)
        """Row steps by the number of verified nodes."""
        self.num_nodes = 0
        self.num_probes = 0
        """Drafts of which no node was verified."""
        self.cost_error = CostError()
        self._snapshots: deque[Snapshot] = deque([Snapshot(time.monotonic())])
        engine.telemetry.listener = self._count_step
        engine.controller.on_step = self._count_errors

    # -- called in the engine's thread

    def _count_step(self, report: Any) -> None:
        bets, num_betting = self.bets, 0
        for bet in report.bets:
            bets[bet if bet < _MAX_BET else _MAX_BET] += 1
            num_betting += bet > 0
        self.num_nodes += report.num_nodes
        self.num_probes += max(0, report.num_drafting - num_betting)

    def _count_errors(self, outcome: StepOutcome, expected: Prediction) -> None:
        error, measured_ms = self.cost_error, outcome.verify_ms + outcome.draft_ms
        error.measured_ms += measured_ms
        error.absolute_error_ms += abs(expected.time_ms - measured_ms)

    # -- called on the event loop

    def tick(self) -> None:
        """Take a snapshot. One snapshot older than the window is kept for comparison."""
        self._snapshots.append(self._snapshot())
        while len(self._snapshots) > 2 and self._snapshots[1].time_s < time.monotonic() - WINDOW_S:
            self._snapshots.popleft()

    def state(self) -> dict[str, Any]:
        """The body of /wager/state."""
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
            "acceptance_ema": _rounded(engine.controller.experience.stats.acceptance_ema.value),
            "requests": self._requests(),
        }

    def _requests(self) -> list[dict[str, Any]]:
        """The running requests, then the waiting ones, in their order. It has no text of any of them."""
        scheduler, accounts = self._engine.scheduler, self._engine.controller.experience.ledger.requests
        lists = (("running", scheduler.running), ("waiting", scheduler.waiting))
        # The engine's thread changes these lists, so they are copied before they are read.
        found = [(state, one) for state, sequences in lists for one in list(sequences)]
        return [_request(state, one, accounts.get(one.request_id)) for state, one in found[:_MAX_REQUESTS]]

    def _snapshot(self) -> Snapshot:
        stats = self._engine.controller.experience.stats
        return Snapshot(
            time.monotonic(),
            self._engine.telemetry.emitted,
            stats.steps,
            list(stats.acceptance_histogram),
            list(self.bets),
        )

    def _rates(self) -> dict[str, Any]:
        """Rates over the window."""
        old, new = self._snapshots[0], self._snapshot()
        tokens, rows = new.tokens - old.tokens, new.row_steps - old.row_steps
        bets = _difference(new.bets, old.bets)
        num_bets = sum(bets)
        return {
            "tokens_per_s": round(tokens / max(new.time_s - old.time_s, 1e-3), 2),
            "tokens_per_step": round(tokens / rows, 3) if rows else None,
            "bet_mean": round(sum(i * n for i, n in enumerate(bets)) / num_bets, 3) if num_bets else None,
            "bet_histogram": _trimmed(bets),
            "acceptance_by_depth": acceptance_by_depth(_difference(new.acceptance, old.acceptance)),
        }


def acceptance_by_depth(histogram: list[int]) -> list[float]:
    """Share of the drafted steps that accepted at least d guesses, for d = 1, 2, ..."""
    total = remaining = sum(histogram)
    shares = []
    for ended in histogram[:-1]:
        remaining -= ended
        shares.append(round(remaining / total, 4) if total else 0.0)
    return shares


def _request(state: str, sequence: Any, account: Account | None) -> dict[str, Any]:
    """What the state says about one request."""
    stats = sequence.stats
    return {
        "id": sequence.request_id,
        "state": state,
        "prompt_tokens": sequence.num_prompt,
        "tokens": sequence.num_output,
        "max_tokens": sequence.max_len - sequence.num_prompt,
        "tokens_per_step": round(stats.tokens_per_step, 3),
        "acceptance": _rounded(stats.acceptance_ema.value),
        "speedup": None if account is None else _rounded(account.speedup),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _difference(new: list[int], old: list[int]) -> list[int]:
    padded = old + [0] * (len(new) - len(old))
    return [a - b for a, b in zip(new, padded, strict=False)]


def _trimmed(counts: list[int]) -> list[int]:
    """The counts without the zeros at the end."""
    last = max((i for i, n in enumerate(counts) if n), default=-1)
    return counts[: last + 1]
