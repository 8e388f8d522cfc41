"""/metrics: what Prometheus reads, all names beginning with `wager_`.

Totals are read from the engine and its meter when somebody asks; only the times of requests are collected
here as they end. Reading happens on the loop while the engine runs: a scrape may be a step behind, and no
more. Knows neither dialects nor policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from wager.engine.engine import Engine
from wager.server.inbox import End, Running
from wager.server.meter import Meter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2)
_WHOLE_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_BETS = (0, 1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """One registry for one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._http = Counter("wager_http_requests", "Requests answered.", ["path", "status"], **own)
        self._ended = Counter("wager_requests", "Requests by how they ended.", ["finish"], **own)
        self._prompt = Counter("wager_prompt_tokens", "Tokens read from prompts.", **own)
        self._written = Counter("wager_generation_tokens", "Tokens written.", **own)
        self._thought = Counter("wager_thinking_tokens", "Tokens of thinking among them.", **own)
        self._closes = Counter("wager_thinking_closes", "Thinking spans by how they ended.", ["kind"], **own)
        self._first = Histogram(
            "wager_time_to_first_token_seconds", "From arrival to the first token.", buckets=_FIRST_S, **own
        )
        self._each = Histogram(
            "wager_time_per_output_token_seconds", "Mean time between tokens.", buckets=_TOKEN_S, **own
        )
        self._whole = Histogram(
            "wager_e2e_request_latency_seconds", "From arrival to the last token.", buckets=_WHOLE_S, **own
        )

    def watch(self, engine: Engine, meter: Meter) -> None:
        """Show this engine's totals too."""
        self._registry.register(EngineCollector(engine, meter))

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def count_http(self, path: str, status: int) -> None:
        self._http.labels(path, str(status)).inc()

    def count_end(self, running: Running, end: End) -> None:
        """A request has ended, or its reader has gone."""
        self._ended.labels(end.finish).inc()
        self._written.inc(running.num_output)
        if running.sequence is not None:
            self._prompt.inc(running.sequence.num_prompt)
        if end.sequence is not None and end.sequence.close is not None:
            self._thought.inc(end.sequence.close.thinking_tokens)
            self._closes.labels(end.sequence.close.kind.value).inc()
        if running.first_s is None:
            return
        self._first.observe(running.first_s - running.arrived_s)
        if running.ended_s is not None:
            self._whole.observe(running.ended_s - running.arrived_s)
            if running.num_output > 1:
                self._each.observe((running.ended_s - running.first_s) / (running.num_output - 1))


class EngineCollector(Collector):
    """The engine's own totals, read when asked."""

    def __init__(self, engine: Engine, meter: Meter) -> None:
        self._engine = engine
        self._meter = meter

    def collect(self) -> Iterator[Any]:
        yield from self._speculation()
        yield from self._engine_totals()
        yield from self._ledger()
        yield from self._occupancy()

    def _speculation(self) -> Iterator[Any]:
        stats, meter = self._engine.controller.experience.stats, self._meter
        name = "wager_spec_decode_num_"
        yield _count(name + "drafts", "Rows of steps in which guesses were verified.", stats.drafted_steps)
        yield _count(name + "draft_tokens", "Guesses verified.", stats.drafted)
        yield _count(name + "accepted_tokens", "Guesses accepted.", stats.accepted)
        by_place = CounterMetricFamily(
            name + "accepted_tokens_per_pos", "Guesses accepted, by depth from 0.", labels=["position"]
        )
        left = stats.drafted_steps
        for position, ended in enumerate(list(stats.acceptance_histogram)[:-1]):
            left -= ended
            by_place.add_metric([str(position)], left)
        yield by_place
        yield _count("wager_probes", "Drafts made only to look at.", meter.probes)
        yield _bets(list(meter.bets), meter.num_nodes)

    def _engine_totals(self) -> Iterator[Any]:
        telemetry, scheduler = self._engine.telemetry, self._engine.scheduler
        yield _count("wager_steps", "Steps.", telemetry.steps)
        stages = CounterMetricFamily("wager_stage_seconds", "Time by stage of the step.", labels=["stage"])
        for stage, ms in telemetry.stage_ms.items():
            stages.add_metric([stage], ms / 1e3)
        yield stages
        yield _count("wager_drafter_failures", "Times that drafting failed.", telemetry.drafter_failures)
        yield _count("wager_failed_requests", "Requests that the target failed.", telemetry.failed_requests)
        yield _count("wager_preemptions", "Times that a request lost its pages.", scheduler.num_preemptions)

    def _ledger(self) -> Iterator[Any]:
        experience, error = self._engine.controller.experience, self._meter.cost_error
        total = experience.ledger.total
        yield _gauge("wager_ledger_seconds", "Time saved against plain decoding.", total.balance_ms / 1e3)
        yield _gauge("wager_ledger_lowest_seconds", "The ledger's lowest point.", total.lowest_ms / 1e3)
        yield _count("wager_ledger_spent_seconds", "Time spent on steps.", total.elapsed_ms / 1e3)
        yield _count("wager_ledger_plain_seconds", "Time plain decoding would need.", total.plain_ms / 1e3)
        yield _gauge(
            "wager_speedup_ratio", "Plain decoding's time over the time spent.", total.speedup or 1.0
        )
        yield _gauge(
            "wager_tokens_per_step", "Mean tokens a row emits in a step.", experience.stats.tokens_per_step
        )
        yield _gauge("wager_cost_error_ratio", "Mean error of predicted step times.", error.ratio)
        yield _count("wager_stalled_seconds", "Time the machine stood still.", experience.stalled_ms / 1e3)

    def _occupancy(self) -> Iterator[Any]:
        scheduler = self._engine.scheduler
        memory = scheduler.memory
        used = memory.num_pages - memory.allocator.num_available
        yield _gauge("wager_num_requests_running", "Requests that run.", len(scheduler.running))
        yield _gauge("wager_num_requests_waiting", "Requests that wait.", len(scheduler.waiting))
        yield _gauge("wager_kv_cache_usage_ratio", "Pages in use, of all.", used / memory.num_pages)
        policy = GaugeMetricFamily("wager_policy_info", "The policy that holds.", labels=["policy"])
        policy.add_metric([self._engine.controller.policy.name], 1.0)
        yield policy


def _count(name: str, help: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, help, value=value)


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help, value=value)


def _bets(counts: list[int], num_nodes: int) -> HistogramMetricFamily:
    buckets = [(str(float(most)), float(sum(counts[: most + 1]))) for most in _BETS]
    whole = float(sum(counts))
    return HistogramMetricFamily(
        "wager_bet_nodes", "Nodes verified for a row.", [*buckets, ("+Inf", whole)], sum_value=num_nodes
    )
