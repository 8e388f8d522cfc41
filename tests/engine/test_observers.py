"""Observers never steer: with and without them the engine decides the same and writes the same texts."""

from typing import Any

import pytest

from tests.equivalence.world import Job, World, make_engine, prompt
from wager.engine.engine import Engine
from wager.policy import StepOutcome
from wager.records import SamplingParams

Steps = list[list[tuple[object, str | None, int, int]]]


def jobs() -> list[Job]:
    """Greedy and sampled requests, one of which limits its own guesses."""
    return [
        Job(
            prompt(index, 9 + 4 * index, period=5),
            SamplingParams(
                max_tokens=30 + 3 * index,
                temperature=0.8 * (index % 2),
                seed=index,
                speculation="fixed:2" if index == 3 else None,
            ),
        )
        for index in range(5)
    ]


def watch_outcomes(engine: Engine) -> Steps:
    """Collects what every step decided for each of its rows."""
    learn, steps = engine.controller.learn, Steps()

    def noted(outcome: StepOutcome) -> None:
        steps.append(
            [(one.row.request_id, one.offer.drafter, one.num_nodes, one.emitted) for one in outcome.rows]
        )
        learn(outcome)

    engine.controller.learn = noted  # type: ignore[method-assign]
    return steps


def run(engine: Engine, asked: list[Job]) -> dict[Any, list[int]]:
    """Serves the jobs; the last one arrives late."""
    tokens = dict[Any, list[int]]()
    for step in range(400):
        for index, job in enumerate(asked):
            if step == (6 if index == len(asked) - 1 else 0):
                engine.add(index, job.prompt, job.params)
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    assert not engine.has_work
    return tokens


@pytest.mark.parametrize("policy", ["auto", "bod", "fixed:4"])
@pytest.mark.parametrize("drafter", ["chain", "block"])
def test_observed_and_unobserved_engines_decide_the_same(world: World, drafter: str, policy: str) -> None:
    found = []
    for is_observed in (False, True):
        engine = make_engine(world, drafter, policy, max_rows=4)
        steps, reports, decisions = watch_outcomes(engine), list[Any](), list[Any]()
        if is_observed:
            engine.telemetry.listener = reports.append
            engine.controller.on_step = lambda *told, found=decisions: found.append(told)
        found.append((run(engine, jobs()), steps))
        assert (len(reports) > 10) == (len(decisions) > 10) == is_observed
    assert found[0] == found[1]
