"""Policies that need something of the engine: the target's own confidence for the entropy gate."""

from unittest.mock import patch

import pytest

from tests.equivalence.world import Job, World, alone, drive, make_engine, prompt
from wager.draft.lookup import LookupDrafter
from wager.records import SamplingParams

LOOPING = Job(prompt(2, 15), SamplingParams(max_tokens=120))


@pytest.mark.parametrize("drafter", ["lookup", "chain", "block"])
def test_the_entropy_gate_runs_on_the_targets_confidence(world: World, drafter: str) -> None:
    engine = make_engine(world, drafter, "entropy+fixed:4")
    assert engine.wants_p1
    jobs = [LOOPING, Job(prompt(5, 9), SamplingParams(max_tokens=40, temperature=1.0, seed=1))]
    run = drive(engine, {0: list(enumerate(jobs))}, {})
    assert [run.tokens(i) for i in range(2)] == alone(make_engine(world), jobs)
    # The gate closes for good once the target is unsure, as a random one soon is.
    assert run.reports[-1].num_drafting == 0
    assert 0.0 < run.last(0).sequence.target_p1 <= 1.0


def test_a_gate_that_nothing_closes_lets_all_pass(world: World) -> None:
    loose = {"entropy_unsure": 0.0, "entropy_sagging": 0.0}
    gated = drive(make_engine(world, "chain", "entropy+fixed:4", **loose), {0: [(0, LOOPING)]}, {})
    free = drive(make_engine(world, "chain", "fixed:4"), {0: [(0, LOOPING)]}, {})
    assert gated.tokens(0) == free.tokens(0)
    assert [r.num_nodes for r in gated.reports] == [r.num_nodes for r in free.reports]


def test_plain_rows_ask_for_no_confidence(world: World) -> None:
    engine = make_engine(world, "chain", "fixed:4")
    assert not engine.wants_p1
    engine.set_policy("entropy+auto")
    assert engine.wants_p1


@pytest.mark.parametrize(("policy", "asks"), [("fixed:4", False), ("bod", False), ("auto", True)])
def test_a_chain_asks_nobody_behind_a_drafter_that_can(world: World, policy: str, asks: bool) -> None:
    engine = make_engine(world, "block", policy)
    lookup = engine.drafters["lookup"] = LookupDrafter()
    with patch.object(lookup, "can_propose", wraps=lookup.can_propose) as asked:
        run = drive(engine, {0: [(0, LOOPING)]}, {})
    assert sum(report.num_drafting for report in run.reports) > 0
    # Before the first pass the block drafter has read nothing and cannot.
    assert (asked.call_count > 1) is asks
