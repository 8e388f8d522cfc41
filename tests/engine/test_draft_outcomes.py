"""Drafts compared with the tokens that were emitted: what is complete, when, and of which draft."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from tests.equivalence.world import Job, World, alone, drive, make_engine
from wager.draft.lookup import LookupDrafter
from wager.engine.draft_outcomes import DraftOutcomes
from wager.engine.drafting import COMPARED_BELOW
from wager.engine.engine import Engine
from wager.policy import Coming, Evidence, Inquiry, StepOutcome
from wager.policy.simple import Fixed
from wager.records import SamplingParams

Proposed = tuple[np.ndarray, np.ndarray, bool]


def chain(*tokens: int, spine_only: bool = False) -> Proposed:
    """One candidate a depth, and a second one that is 100 more."""
    ids = np.array([[token, token + 100] for token in tokens], np.int64)
    return ids, np.zeros(ids.shape, np.float32), spine_only


def ranks(found: list[Evidence]) -> list[list[int]]:
    return [one.ranks.tolist() for one in found]


def test_a_draft_is_complete_at_its_last_depth_or_at_a_token_outside_it() -> None:
    outcomes = DraftOutcomes()
    outcomes.add("r", "draft", "", chain(1, 2, 3))
    outcomes.feed("r", [1, 102])
    assert outcomes.take_complete() == []
    outcomes.feed("r", [3])
    assert ranks(outcomes.take_complete()) == [[0, 1, 0]]
    outcomes.add("r", "draft", "", chain(1, 2, 3))
    outcomes.feed("r", [1, 9, 9])
    [found] = outcomes.take_complete()
    assert found.ranks.tolist() == [0, -1] and found.logprobs is not None and found.logprobs.shape == (2, 2)
    assert outcomes.take_complete() == [], "told once"


def test_tokens_that_came_before_a_draft_are_not_held_against_it() -> None:
    outcomes = DraftOutcomes()
    outcomes.add("r", "draft", "", chain(1, 2))
    outcomes.feed("r", [1])
    outcomes.add("r", "draft", "", chain(2, 3))  # nobody has taken what is complete in between
    outcomes.feed("r", [2, 3])
    assert ranks(outcomes.take_complete()) == [[0, 0], [0, 0]]


def test_the_end_of_a_request_completes_its_drafts_and_a_failure_drops_them() -> None:
    outcomes = DraftOutcomes()
    for request in ("r", "s"):
        outcomes.add(request, "draft", "", chain(1, 2, 3))
        outcomes.add(request, "draft", "", chain(1, 2, 3, spine_only=True))
        outcomes.feed(request, [1])
    outcomes.close("r")
    outcomes.drop("s")
    assert ranks(outcomes.take_complete()) == [[0], [0]]
    outcomes.feed("r", [2])
    outcomes.feed("s", [2])
    assert outcomes.take_complete() == []


def test_a_draft_along_its_spine_ends_beside_it() -> None:
    outcomes = DraftOutcomes()
    outcomes.add("r", "draft", "", chain(1, 2, 3, spine_only=True))
    outcomes.feed("r", [101, 2])
    assert ranks(outcomes.take_complete()) == [[1]]


def test_every_draft_is_known_by_its_request() -> None:
    outcomes = DraftOutcomes()
    outcomes.add("r", "draft", "", chain(1, 2))
    outcomes.add("r", "copy", "", chain(1, 3), is_bet=False)
    outcomes.feed("r", [1, 2])
    found = {one.drafter: one for one in outcomes.take_complete()}
    assert found["draft"].request_id == "r" and found["draft"].ranks.tolist() == [0, 0]
    assert found["copy"].request_id == "r" and found["copy"].ranks.tolist() == [0, -1]


class Curious(Fixed):
    """Asks every drafter, and takes the first that can."""

    def inquire(self, coming: Coming) -> Inquiry:
        return Inquiry(asks=True)


def compared_in(engine: Engine) -> list[tuple[Hashable, str]]:
    """Collects the requests and drafters of drafts that are made for comparison."""
    add, found = engine.draft_outcomes.add, list[tuple[Hashable, str]]()

    def noted(request_id: Hashable, drafter: str, *rest: Any, is_bet: bool = True) -> None:
        if not is_bet:
            found.append((request_id, drafter))
        add(request_id, drafter, *rest, is_bet=is_bet)

    engine.draft_outcomes.add = noted  # type: ignore[method-assign]
    return found


def comparing(world: World, num_rows: int) -> tuple[Engine, list[Evidence], list[tuple[Hashable, str]]]:
    """An engine whose rows draft by blocks and could copy as well; what was learned and what was compared."""
    engine, learned = make_engine(world, "block", max_rows=16), list[Evidence]()
    compared = compared_in(engine)
    engine.drafters["lookup"] = LookupDrafter(min_match=1)
    engine.controller.policy = Curious(engine.controller.experience, 4, chain=True)
    learn = engine.controller.learn

    def listen(outcome: StepOutcome) -> None:
        learned.extend(outcome.evidence)
        learn(outcome)

    engine.controller.learn = listen  # type: ignore[method-assign]
    jobs = [Job([3, 4, 5, 3, 4, 5, 3, 4, 5 + i], SamplingParams(max_tokens=24)) for i in range(num_rows)]
    run = drive(engine, {0: list(enumerate(jobs))}, {})
    assert [run.tokens(index) for index in range(num_rows)] == alone(make_engine(world), jobs)
    return engine, learned, compared


def test_what_another_drafter_would_have_guessed_is_compared(world: World) -> None:
    _, learned, compared = comparing(world, 2)
    assert {drafter for _, drafter in compared} == {"lookup"} and {name for name, _ in compared} == {0, 1}
    assert {one.drafter for one in learned} == {"block", "lookup"}
    assert 0 < len(compared) < len(learned) / 2, "now and then"


def test_with_many_rows_nothing_is_compared(world: World) -> None:
    _, learned, compared = comparing(world, COMPARED_BELOW)
    assert learned and not compared


def test_a_drafter_that_fails_in_a_comparison_costs_bets_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("injected")

    monkeypatch.setattr(LookupDrafter, "propose", fail)
    engine, _, _ = comparing(world, 2)
    assert engine.telemetry.drafter_failures == 2 and engine.telemetry.failed_requests == 0
