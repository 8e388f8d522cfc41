"""Drafts against the tokens that came: what is ripe, when, and of which draft."""

import numpy as np

from wager.engine.hindsight import Hindsight
from wager.policy import Evidence

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
