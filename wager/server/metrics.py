"""/metrics: the Prometheus registry.

Totals of the engine are read when the metrics are scraped and may be one step old. The times of requests are
collected when they end. It knows neither the APIs nor the policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from wager.engine.engine import Engine
from wager.server.engine_monitor import EngineMonitor
from wager.server.response_queue import EngineUpdate, RunningChoice

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_BETS = (0, 1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The Prometheus registry of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        shared: dict[str, Any] = {"registry": self._registry}
        self._http = Counter(
            "wager_http_requests", "HTTP requests by path and status.", ["path", "status"], **shared
        )
        self._choices = Counter("wager_requests", "Choices by how they ended.", ["finish"], **shared)
        self._prompt = Counter("wager_prompt_tokens", "Prompt tokens.", **shared)
        self._generated = Counter("wager_generation_tokens", "Generated tokens.", **shared)
        self._thinking = Counter("wager_thinking_tokens", "Generated tokens that are thinking.", **shared)
        self._closes = Counter(
            "wager_thinking_closes", "Thinking spans by how they ended.", ["kind"], **shared
        )
        self._first_token = Histogram(
            "wager_time_to_first_token_seconds",
            "From arrival to the first token.",
            buckets=_FIRST_TOKEN_S,
            **shared,
        )
        self._per_token = Histogram(
            "wager_time_per_output_token_seconds",
            "Mean time between the tokens of a request.",
            buckets=_PER_TOKEN_S,
            **shared,
        )
        self._duration = Histogram(
            "wager_e2e_request_latency_seconds",
            "From arrival to the last token.",
            buckets=_REQUEST_S,
            **shared,
        )

    def watch(self, engine: Engine, monitor: EngineMonitor) -> None:
        """Add the totals of this engine."""
        self._registry.register(EngineCollector(engine, monitor))

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def count_http(self, path: str, status: int) -> None:
        self._http.labels(path, str(status)).inc()

    def count_end(self, choice: RunningChoice, update: EngineUpdate) -> None:
        """Count a choice that has ended or was aborted."""
        self._choices.labels(update.finish).inc()
        self._generated.inc(choice.num_output)
        if choice.sequence is not None:
            self._prompt.inc(choice.sequence.num_prompt)
        if update.sequence is not None and update.sequence.close is not None:
            self._thinking.inc(update.sequence.close.thinking_tokens)
            self._closes.labels(update.sequence.close.kind.value).inc()
        if choice.first_token_s is None:
            return
        self._first_token.observe(choice.first_token_s - choice.arrived_s)
        if choice.ended_s is not None:
            self._duration.observe(choice.ended_s - choice.arrived_s)
            if choice.num_output > 1:
                self._per_token.observe((choice.ended_s - choice.first_token_s) / (choice.num_output - 1))


class EngineCollector(Collector):
    """Reads the totals of the engine when the metrics are scraped."""

    def __init__(self, engine: Engine, monitor: EngineMonitor) -> None:
        self._engine = engine
        self._monitor = monitor

    def collect(self) -> Iterator[Any]:
        yield from self._speculation()
        yield from self._engine_totals()
        yield from self._ledger()
        yield from self._occupancy()

    def _speculation(self) -> Iterator[Any]:
        stats, monitor = self._engine.controller.experience.stats, self._monitor
        name = "wager_spec_decode_num_"
        yield _count(name + "drafts", "Row steps in which guesses were verified.", stats.drafted_steps)
        yield _count(name + "draft_tokens", "Guesses verified.", stats.drafted)
        yield _count(name + "accepted_tokens", "Guesses accepted.", stats.accepted)
        by_position = CounterMetricFamily(
            name + "accepted_tokens_per_pos",
            "Guesses accepted, by depth, counted from 0.",
            labels=["position"],
        )
        remaining = stats.drafted_steps
        for position, ended in enumerate(list(stats.acceptance_histogram)[:-1]):
            remaining -= ended
            by_position.add_metric([str(position)], remaining)
        yield by_position
        yield _count("wager_probes", "Drafts of which nothing was verified.", monitor.num_probes)
        yield _bets(list(monitor.bets), monitor.num_nodes)

    def _engine_totals(self) -> Iterator[Any]:
        telemetry, scheduler = self._engine.telemetry, self._engine.scheduler
        yield _count("wager_steps", "Engine steps.", telemetry.steps)
        stages = CounterMetricFamily("wager_stage_seconds", "Time by stage of the step.", labels=["stage"])
        for stage, ms in telemetry.stage_ms.items():
            stages.add_metric([stage], ms / 1e3)
        yield stages
        yield _count("wager_drafter_failures", "Failures of a drafter.", telemetry.drafter_failures)
        yield _count(
            "wager_failed_requests", "Requests that failed in the target model.", telemetry.failed_requests
        )
        yield _count("wager_preemptions", "Preemptions of requests.", scheduler.num_preemptions)

    def _ledger(self) -> Iterator[Any]:
        experience, error = self._engine.controller.experience, self._monitor.cost_error
        total = experience.ledger.total
        yield _gauge("wager_ledger_seconds", "Time saved against plain decoding.", total.balance_ms / 1e3)
        yield _gauge("wager_ledger_lowest_seconds", "Lowest value of the ledger.", total.lowest_ms / 1e3)
        yield _count("wager_ledger_spent_seconds", "Time spent on steps.", total.elapsed_ms / 1e3)
        yield _count(
            "wager_ledger_plain_seconds", "Time that plain decoding would have needed.", total.plain_ms / 1e3
        )
        yield _gauge(
            "wager_speedup_ratio", "Time of plain decoding divided by the time spent.", total.speedup or 1.0
        )
        yield _gauge(
            "wager_tokens_per_step", "Mean tokens per row and step.", experience.stats.tokens_per_step
        )
        yield _gauge(
            "wager_cost_error_ratio",
            "Mean error of predicted step times, relative to the step time.",
            error.ratio,
        )
        yield _count(
            "wager_stalled_seconds", "Time in stalls that no bet caused.", experience.stalled_ms / 1e3
        )

    def _occupancy(self) -> Iterator[Any]:
        scheduler = self._engine.scheduler
        memory = scheduler.memory
        used = memory.num_pages - memory.allocator.num_available
        yield _gauge("wager_num_requests_running", "Running requests.", len(scheduler.running))
        yield _gauge("wager_num_requests_waiting", "Waiting requests.", len(scheduler.waiting))
        yield _gauge("wager_kv_cache_usage_ratio", "Share of the pages in use.", used / memory.num_pages)
        policy = GaugeMetricFamily("wager_policy_info", "The current policy.", labels=["policy"])
        policy.add_metric([self._engine.controller.policy.name], 1.0)
        yield policy


def _count(name: str, help: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, help, value=value)


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help, value=value)


def _bets(counts: list[int], num_nodes: int) -> HistogramMetricFamily:
    buckets = [(str(float(bound)), float(sum(counts[: bound + 1]))) for bound in _BETS]
    total = float(sum(counts))
    return HistogramMetricFamily(
        "wager_bet_nodes",
        "Nodes verified per row and step.",
        [*buckets, ("+Inf", total)],
        sum_value=num_nodes,
    )
