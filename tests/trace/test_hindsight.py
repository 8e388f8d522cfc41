"""The references that know the future: best-fixed is the best replay, oracle-chain the least time."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.recorded import cut_at_its_limit, made_up
from wager.trace import (
    ReplayOptions,
    StepCosts,
    Trace,
    best_fixed,
    demo_traces,
    load_costs,
    oracle_chain,
    replay,
)
from wager.trace.costs import step_costs

FLAT = step_costs("flat", 0.2, {1: 3.0, 64: 3.5})
STEEP = step_costs("steep", 1.0, {1: 3.0, 2: 4.0, 64: 90.0})
STAIRS = step_costs("stairs", 0.5, {1: 3.0, 3: 3.1, 4: 5.0, 6: 5.1, 7: 9.0, 20: 9.5})
FALLING = step_costs("falling", 0.1, {1: 3.0, 2: 6.0, 3: 3.5, 5: 3.2, 9: 8.0, 10: 9.0})
SHORTER = step_costs("shorter", {1: 0.2, 3: 0.9, 5: 2.0}, {1: 3.0, 64: 9.0})
CURVES = [FLAT, STEEP, STAIRS, FALLING, SHORTER]


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**16), st.sampled_from(CURVES), st.sampled_from([1, 3]))
def test_best_fixed_is_the_best_of_the_replays(seed: int, costs: StepCosts, rows: int) -> None:
    traces = [made_up(seed, (3, 12, 5, 2), lengths=(12, 5, 8)), made_up(seed + 1, (2, 9, 3, 2))]
    runs = [replay(traces, costs, f"fixed:{k}", ReplayOptions(rows=rows)) for k in range(16)]
    found = best_fixed(traces, costs, rows)
    assert found.run.time_ms == pytest.approx(min(run.time_ms for run in runs))
    assert found.run == runs[found.length]


def test_best_fixed_may_be_plain_decoding() -> None:
    found = best_fixed(made_up(), step_costs("dear", 50.0, {1: 1.0, 9: 9.0}))
    assert found.length == 0
    assert found.run.drafted_steps == 0


def least_time(trace: Trace, costs: StepCosts) -> float:
    """By trying every chain length at every position."""

    def sequence(i: int) -> float:
        length = trace.length(i)

        @functools.cache
        def left(position: int) -> float:
            if position >= length:
                return 0.0
            ways = [costs.verify(1) + left(position + 1)]
            for guesses in range(1, trace.num_depths + 1):
                stands = 0
                while stands < guesses and trace.ranks[i, position, stands] == 0:
                    stands += 1
                step_ms = costs.draft_time_ms(guesses) + costs.verify(1 + guesses)
                ways.append(step_ms + left(position + stands + 1))
            return min(ways)

        return left(0)

    return sum(sequence(i) for i in range(trace.num_sequences))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**16), st.sampled_from(CURVES))
def test_the_oracle_takes_the_least_time_there_is(seed: int, costs: StepCosts) -> None:
    trace = made_up(seed, (2, 15, 5, 2), lengths=(15, 11))
    done = oracle_chain(trace, costs)
    assert done.time_ms == pytest.approx(least_time(trace, costs))
    assert done.tokens == 26
    assert sum(step.emitted for step in done.steps) == 26
    assert sum(step.time_ms for step in done.steps) == pytest.approx(done.time_ms)


@pytest.mark.parametrize("costs", CURVES, ids=lambda costs: costs.name)
@pytest.mark.parametrize("policy", ["ar", "fixed:1", "fixed:4", "bod", "ema+fixed:3"])
def test_no_chain_policy_beats_the_oracle(policy: str, costs: StepCosts) -> None:
    trace = made_up(9)
    assert oracle_chain(trace, costs).time_ms <= replay(trace, costs, policy).time_ms + 1e-9


@pytest.mark.parametrize("name", ["cpu", "h200", "moe"])
def test_with_rows_the_greedy_oracle_is_ahead_of_every_fixed_length(name: str) -> None:
    traces, costs = demo_traces().traces[:2], load_costs(name)
    done = oracle_chain(traces, costs, rows=3)
    assert done.tokens == replay(traces, costs, "ar").tokens
    assert done.time_ms < best_fixed(traces, costs, rows=3).run.time_ms


def with_gaps(trace: Trace) -> Trace:
    """As recorded from an engine: nothing offered at the first position, less than all depths at another."""
    logprobs, ranks = trace.logprobs.copy(), trace.ranks.copy()
    for hole in ((slice(None), 0), (slice(None), 3, slice(1, None))):
        logprobs[hole] = -np.inf
        ranks[hole] = np.minimum(ranks[hole], -1)
    return replace(trace, logprobs=logprobs, ranks=ranks)


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 2**16), st.sampled_from(CURVES), st.sampled_from([1, 2]))
def test_positions_without_an_offer_cost_no_draft(seed: int, costs: StepCosts, rows: int) -> None:
    trace = with_gaps(made_up(seed, (3, 12, 5, 2), lengths=(12, 5, 8)))
    trace = cut_at_its_limit(trace) if seed % 2 else trace
    runs = [replay(trace, costs, f"fixed:{k}", ReplayOptions(rows=rows)) for k in range(16)]
    found = best_fixed(trace, costs, rows)
    assert found.run.time_ms == pytest.approx(min(run.time_ms for run in runs))
    assert not runs[3].steps[0].drafted and runs[3].steps[0].num_nodes == 0
    if rows == 1:
        assert oracle_chain(trace, costs).time_ms <= found.run.time_ms + 1e-9
