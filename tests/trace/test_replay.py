"""Replay against a second simulator, written here from the words of the docs; and what policies see."""

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.recorded import cut_at_its_limit, made_up
from wager.errors import ConfigError
from wager.policy import Controller, Prediction, StepOutcome
from wager.policy.controller import StepListener
from wager.trace import Noise, ReplayOptions, StepCosts, Trace, demo_traces, load_costs, replay, step_costs


def noting(times: list[float]) -> StepListener:
    """A listener that notes the times that the policy sees."""
    return lambda outcome, expected: times.append(outcome.verify_ms + outcome.draft_ms)


STAIRS = step_costs("stairs", 0.7, {1: 3.0, 4: 3.2, 5: 6.0, 9: 6.5, 30: 15.0})


class Sums(NamedTuple):
    tokens: int
    time_ms: float
    nodes: int
    steps: int


def best_paths(logprobs: np.ndarray, count: int, chain: bool) -> set[tuple[int, ...]]:
    """The `count` likeliest rank paths, by looking at all of them."""
    depths, ranks = logprobs.shape
    if chain:
        return {(0,) * depth for depth in range(1, min(count, depths) + 1)}
    score = {
        path: float(sum(logprobs[d, r] for d, r in enumerate(path)))
        for depth in range(1, depths + 1)
        for path in itertools.product(range(ranks), repeat=depth)
    }
    return set(sorted(score, key=score.__getitem__, reverse=True)[:count])


def by_hand(traces: list[Trace], costs: StepCosts, count: int, rows: int, *, chain: bool) -> Sums:
    """Every step of `fixed:count` or `tree:count`, spelled out."""
    waiting = [(trace, i) for trace in traces for i in range(trace.num_sequences)]
    running: list[list] = []
    tokens, time_ms, nodes, steps = 0, 0.0, 0, 0
    while waiting or running:
        while waiting and len(running) < rows:
            running.append([*waiting.pop(0), 0])
        in_pass = len(running)
        for row in running:
            trace, i, position = row
            paths = best_paths(trace.logprobs[i, position].astype(np.float64), count, chain)
            truth = trace.ranks[i, position].tolist()
            kept = 0
            while tuple(truth[: kept + 1]) in paths and kept < len(truth):
                kept += 1
            emitted = min(kept + 1, trace.length(i) - position)
            row[2] += emitted
            tokens += emitted
            nodes += len(paths)
            in_pass += len(paths)
        time_ms += costs.verify(in_pass) + (costs.draft_ms if count else 0.0)
        steps += 1
        running = [row for row in running if row[2] < row[0].length(row[1])]
    return Sums(tokens, time_ms, nodes, steps)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**16), st.integers(0, 7), st.sampled_from([1, 3]), st.booleans())
def test_a_replay_is_exact(seed: int, count: int, rows: int, chain: bool) -> None:
    traces = [
        made_up(seed, (3, 14, 4, 3), lengths=(14, 9, 1)),
        made_up(seed + 1, (2, 10, 3, 2), kind="prose"),
    ]
    done = replay(traces, STAIRS, f"{'fixed' if chain else 'tree'}:{count}", ReplayOptions(rows=rows))
    expected = by_hand(traces, STAIRS, count, rows, chain=chain)
    assert done.tokens == expected.tokens == 14 + 9 + 1 + 20
    assert done.time_ms == pytest.approx(expected.time_ms)
    assert len(done.steps) == expected.steps
    assert sum(step.num_nodes for step in done.steps) == expected.nodes
    assert done.drafted_steps == (expected.steps if count else 0)
    assert done.mean_nodes == pytest.approx(expected.nodes / expected.steps)


def test_a_shorter_draft_costs_its_own_time() -> None:
    trace, verify = made_up(), {1: 3.0, 64: 3.5}
    table = step_costs("table", {1: 0.1, 3: 0.5, 5: 2.0}, verify)
    for policy, whole in (("fixed:1", 0.1), ("fixed:3", 0.5), ("fixed:4", 1.25), ("tree:3", 2.0)):
        alone = step_costs("alone", whole, verify)
        for rows in (1, 2):
            options = ReplayOptions(rows=rows)
            done = replay(trace, table, policy, options)
            assert done.time_ms == pytest.approx(replay(trace, alone, policy, options).time_ms)


def test_nobody_guesses_beyond_the_most_tokens_allowed() -> None:
    """An engine knows how many tokens are left; that a text will end by itself it cannot foresee."""
    by_itself = replace(made_up(3, (1, 28, 5, 3)), ranks=np.zeros((1, 28, 5), np.int16))
    reach = {}
    for name, trace in (("ends", by_itself), ("is cut", cut_at_its_limit(by_itself))):
        steps = replay(trace, STAIRS, "fixed:4").steps
        assert sum(step.emitted for step in steps) == 28
        reach[name] = max(step.start + step.num_nodes for step in steps)
    assert reach == {"ends": 29, "is cut": 27}


def test_plain_decoding_is_the_measure() -> None:
    done = replay(made_up(), STAIRS, "ar")
    assert done.time_ms == pytest.approx(120 * 3.0)
    assert done.speedup == pytest.approx(1.0)
    assert done.ledger_min == pytest.approx(0.0)
    assert done.tokens_per_s == pytest.approx(1000 / 3)


def test_the_balance_is_plain_time_less_time_spent() -> None:
    done = replay(made_up(3), STAIRS, "tree:6")
    spent = np.cumsum([step.time_ms for step in done.steps])
    plain = np.cumsum([3.0 * step.emitted for step in done.steps])
    assert [step.balance_ms for step in done.steps] == pytest.approx((plain - spent).tolist())
    assert done.ledger_min == pytest.approx(min(0.0, (plain - spent).min()))


@pytest.mark.parametrize("noise", [Noise(0.3, seed=1), Noise(0.0, 0.1, 20.0, seed=2)])
def test_noise_is_seen_but_not_scored(noise: Noise) -> None:
    times: list[float] = []
    trace = made_up(5)
    calm = replay(trace, STAIRS, "fixed:3")
    noisy = replay(trace, STAIRS, "fixed:3", ReplayOptions(noise=noise, on_step=noting(times)))
    assert noisy == calm
    assert times != pytest.approx([step.time_ms for step in calm.steps])


def test_noise_follows_its_seed() -> None:
    def seen(seed: int) -> list[float]:
        times: list[float] = []
        options = ReplayOptions(noise=Noise(0.2, 0.05, 10.0, seed), on_step=noting(times))
        replay(made_up(), STAIRS, "auto", options)
        return times

    assert seen(1) == seen(1) != seen(2)


POLICIES = ["auto", "bod", "bod:tree", "ema+fixed:4", "entropy+tree:6", "fixed:3"]


def shape_of(steps: tuple, before: int | None = None) -> list[tuple[int, bool, int]]:
    return [(s.start, s.drafted, s.num_nodes) for s in steps if before is None or s.start < before]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_does_not_see_the_future(policy: str) -> None:
    """Another future from token 60 on: until then, every bet is the same."""
    cut = 60
    trace, other = (made_up(seed, (1, 120, 6, 4), p1=True) for seed in (1, 2))
    assert trace.target_p1 is not None and other.target_p1 is not None
    later = np.arange(120) >= cut
    reaches = np.arange(120)[:, None] + np.arange(6) >= cut  # position + depth: the token that is guessed
    changed = replace(
        trace,
        logprobs=np.where(later[:, None, None], other.logprobs, trace.logprobs),
        ranks=np.where(reaches, other.ranks, trace.ranks),
        target_p1=np.where(later, other.target_p1, trace.target_p1),
    )
    first, second = replay(trace, STAIRS, policy), replay(changed, STAIRS, policy)
    assert shape_of(first.steps, cut) == shape_of(second.steps, cut)
    assert len(shape_of(first.steps, cut)) >= 5


class Watching(Controller):
    """Keeps every outcome that the policy is told."""

    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        self.outcomes: list[StepOutcome] = []

    def learn(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)
        super().learn(outcome)


@pytest.mark.parametrize("policy", ["auto", "fixed:2", "tree:5"])
def test_evidence_is_of_paid_drafts_and_emitted_tokens_only(policy: str) -> None:
    trace = made_up(4, (1, 90, 6, 3))
    controller = Watching(policy)
    replay(trace, STAIRS, controller)
    paid: list[int] = []
    told: list[int] = []
    for outcome in controller.outcomes:
        [share] = outcome.rows
        emitted = share.row.context_len + share.emitted
        if share.offer.drafter:
            paid.append(share.row.context_len)
        for item in outcome.evidence:
            assert item.logprobs is not None
            known = len(item.ranks)
            [start] = [p for p in paid if np.array_equal(trace.logprobs[0, p, :known], item.logprobs)]
            assert start + known <= emitted
            assert np.array_equal(item.ranks, trace.ranks[0, start, :known])
            told.append(start)
    assert sorted(told) == paid  # each draft is told of once


@pytest.mark.parametrize("policy", ["auto", "ema+fixed:4", "bod"])
def test_a_policy_does_not_see_drafts_it_did_not_pay_for(policy: str) -> None:
    trace, other = made_up(1, (1, 200, 6, 4)), made_up(2, (1, 200, 6, 4))
    dear = step_costs("dear", 2.0, {1: 3.0, 2: 5.0, 10: 20.0})
    done = replay(trace, dear, policy)
    paid = np.zeros(200, np.bool_)
    paid[[step.start for step in done.steps if step.drafted]] = True
    assert 0 < paid.sum() < 150
    changed = replace(
        trace,
        logprobs=np.where(paid[:, None, None], trace.logprobs, other.logprobs),
        ranks=np.where(paid[:, None], trace.ranks, other.ranks),
    )
    assert replay(changed, dear, policy) == done


def test_a_policy_does_not_see_the_curve() -> None:
    """Until the first time arrives that differs, two curves look alike."""
    steep = step_costs("steep", 0.7, {1: 3.0, 4: 9.0})
    one, two = replay(made_up(), STAIRS, "auto").steps, replay(made_up(), steep, "auto").steps
    first = next(i for i, step in enumerate(one) if step.drafted and step.num_nodes)
    assert shape_of(one[: first + 1]) == shape_of(two[: first + 1])


def test_the_policy_can_change_on_the_way() -> None:
    steps = itertools.count(1)

    def change(_outcome: StepOutcome, _expected: Prediction) -> None:
        if next(steps) == 20:
            controller.set_policy("ar")

    controller = Controller("fixed:2", on_step=change)
    done = replay(made_up(), STAIRS, controller)
    assert [step.drafted for step in done.steps] == [i < 20 for i in range(len(done.steps))]
    assert done.tokens == 120
    assert controller.experience.ledger.total.tokens == 120
    assert controller.experience.stats.drafted_steps == 20


def test_a_gate_on_certainty_needs_it_recorded() -> None:
    with pytest.raises(ConfigError, match="target_p1"):
        replay(made_up(), STAIRS, "entropy+auto")
    assert replay(made_up(p1=True), STAIRS, "entropy+auto").tokens == 120


@pytest.mark.parametrize(
    "options",
    [
        {"spread": -0.1},
        {"spread": float("nan")},
        {"stall_chance": 1.5},
        {"stall_factor": 0.5},
        {"seed": -1},
    ],
)
def test_impossible_noise_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Noise(**options)  # type: ignore[arg-type]


def test_rows_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="rows"):
        replay(made_up(), STAIRS, "auto", ReplayOptions(rows=0))


def test_very_wide_passes_are_timed() -> None:
    done = replay(made_up(0, (40, 3, 6, 6)), STAIRS, "tree:300", ReplayOptions(rows=40))
    assert max(step.num_nodes for step in done.steps) == 12_000


@pytest.mark.parametrize("costs", ["cpu", "h200", "moe"])
def test_auto_is_ahead_of_plain_on_the_shipped_trace(costs: str) -> None:
    [code] = [trace for trace in demo_traces().traces if (trace.kind, trace.temperature) == ("code", "t0")]
    done = replay(code, load_costs(costs), "auto")
    assert done.speedup > 1.1
    assert done.ledger_min > -0.01 * done.time_ms - 2 * load_costs(costs).verify(16)
