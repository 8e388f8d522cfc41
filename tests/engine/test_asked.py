"""Requests that say themselves how they are guessed, in one batch with others: their bets and their text."""

import pytest

from tests.equivalence.world import Job, World, alone, drive, is_clean, make_engine, prompt
from wager.records import SamplingParams

WISHES = (None, "off", "fixed:3", "auto", "fixed:1", "off")


def jobs() -> list[Job]:
    return [
        Job(
            prompt(i, 10 + i),
            SamplingParams(max_tokens=24, seed=i, temperature=0.7, ignore_eos=True, speculation=wish),
        )
        for i, wish in enumerate(WISHES)
    ]


@pytest.mark.parametrize("policy", ["ar", "tree:8", "auto"])
@pytest.mark.parametrize("drafter", ["chain", "block"])
def test_bets_are_as_asked_and_the_text_is_plains(world: World, drafter: str, policy: str) -> None:
    want = alone(make_engine(world, prefix_reuse=False), jobs())
    engine = make_engine(world, drafter, policy)
    run = drive(engine, {0: list(enumerate(jobs()))}, {})
    assert [run.tokens(i) for i in range(len(want))] == want and is_clean(engine)
    bets = [[event.bet for event in run.events if event.request_id == i] for i in range(len(want))]
    assert not any(bets[1]) and not any(bets[5])
    # The first step reads the prompt, and the last ones have fewer tokens left.
    assert set(bets[2][1:-4]) == {3} and max(bets[2]) == 3
    assert set(bets[4][1:-2]) == {1} and max(bets[4]) == 1
    for free in (0, 3):
        assert any(bets[free]) == (policy != "ar")
        assert policy != "tree:8" or max(bets[free]) == 8


def test_a_wish_without_a_drafter_is_plain_decoding(world: World) -> None:
    engine = make_engine(world, "none", "auto")
    run = drive(engine, {0: [(2, jobs()[2])]}, {})
    assert run.verified == 0 and len(run.tokens(2)) == 24
