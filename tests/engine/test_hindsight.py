"""Drafts against the tokens that came: what is ripe, when, and of which draft."""

import numpy as np
import pytest

from tests.equivalence.world import Job, World, alone, drive, make_engine
from wager.draft.lookup import LookupDrafter
from wager.engine.engine import Engine
from wager.engine.hindsight import Hindsight
from wager.policy import MANY, Coming, Evidence, StepOutcome
from wager.policy.simple import Fixed
from wager.records import SamplingParams

Proposed = tuple[np.ndarray, np.ndarray, bool]


def chain(*tokens: int, spine_only: bool = False) -> Proposed:
    """One candidate a depth, and a second one that is 100 more."""
    ids = np.array([[token, token + 100] for token in tokens], np.int64)
    return ids, np.zeros(ids.shape, np.float32), spine_only


def ranks(found: list[Evidence]) -> list[list[int]]:
    return [one.ranks.tolist() for one in found]


def test_a_draft_is_ripe_at_its_last_depth_or_where_a_token_fell_outside() -> None:
    hindsight = Hindsight()
    hindsight.add("r", "draft", "", chain(1, 2, 3))
    hindsight.feed("r", [1, 102])
    assert hindsight.ripe() == []
    hindsight.feed("r", [3])
    assert ranks(hindsight.ripe()) == [[0, 1, 0]]
    hindsight.add("r", "draft", "", chain(1, 2, 3))
    hindsight.feed("r", [1, 9, 9])
    [found] = hindsight.ripe()
    assert found.ranks.tolist() == [0, -1] and found.logprobs is not None and found.logprobs.shape == (2, 2)
    assert hindsight.ripe() == [], "told once"


def test_tokens_that_came_before_a_draft_are_not_held_against_it() -> None:
    hindsight = Hindsight()
    hindsight.add("r", "draft", "", chain(1, 2))
    hindsight.feed("r", [1])
    hindsight.add("r", "draft", "", chain(2, 3))  # nobody has asked what is ripe in between
    hindsight.feed("r", [2, 3])
    assert ranks(hindsight.ripe()) == [[0, 0], [0, 0]]


def test_the_end_of_a_request_makes_ripe_what_is_known_and_a_failure_nothing() -> None:
    hindsight = Hindsight()
    for request in ("r", "s"):
        hindsight.add(request, "draft", "", chain(1, 2, 3))
        hindsight.add(request, "draft", "", chain(1, 2, 3, spine_only=True))
        hindsight.feed(request, [1])
    hindsight.close("r")
    hindsight.drop("s")
    assert ranks(hindsight.ripe()) == [[0], [0]]
    hindsight.feed("r", [2])
    hindsight.feed("s", [2])
    assert hindsight.ripe() == []


def test_a_draft_along_its_spine_ends_beside_it() -> None:
    hindsight = Hindsight()
    hindsight.add("r", "draft", "", chain(1, 2, 3, spine_only=True))
    hindsight.feed("r", [101, 2])
    assert ranks(hindsight.ripe()) == [[1]]


def test_a_draft_that_nobody_bet_on_is_known_by_its_request() -> None:
    hindsight = Hindsight()
    hindsight.add("r", "draft", "", chain(1, 2))
    hindsight.add("r", "copy", "", chain(1, 3), is_bet=False)
    hindsight.feed("r", [1, 2])
    found = {one.drafter: one for one in hindsight.ripe()}
    assert found["draft"].watched is None and found["draft"].ranks.tolist() == [0, 0]
    assert found["copy"].watched == "r" and found["copy"].ranks.tolist() == [0, -1]


class Curious(Fixed):
    """Asks every drafter, and takes the first that can."""

    def suffices(self, drafter: str, coming: Coming) -> bool:
        return False


def watching(world: World, num_rows: int) -> tuple[Engine, list[Evidence]]:
    """An engine whose rows have drafted by blocks and could have copied as well, and what was learned."""
    engine, learned = make_engine(world, "block", max_rows=16), list[Evidence]()
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
    return engine, learned


def test_what_another_drafter_would_have_guessed_is_watched(world: World) -> None:
    _, learned = watching(world, 2)
    watched = [one for one in learned if one.watched is not None]
    assert {one.drafter for one in watched} == {"lookup"} and {one.watched for one in watched} == {0, 1}
    assert 0 < len(watched) < len(learned) / 2, "now and then"


def test_in_a_crowd_nobody_is_watched(world: World) -> None:
    _, learned = watching(world, MANY)
    assert learned and not [one for one in learned if one.watched is not None]


def test_a_drafter_that_fails_when_watched_costs_bets_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("injected")

    monkeypatch.setattr(LookupDrafter, "draft", fail)
    engine, _ = watching(world, 2)
    assert engine.telemetry.drafter_failures == 2 and engine.telemetry.failed_requests == 0
