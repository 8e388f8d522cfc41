"""A request may tighten every limit and loosen none; what was tightened is told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.cards import EFFORTS, card_for, decide_budget
from wager.cards.budget import reply_room
from wager.errors import RequestError

DEMO = card_for("demo")
wishes = st.none() | st.integers(0, 5000)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 4000), wishes, st.none() | st.sampled_from(EFFORTS), wishes)
def test_the_tightest_wins(max_tokens: int, asked: int | None, effort: str | None, most: int | None) -> None:
    decided = decide_budget(DEMO, max_tokens, asked, effort, most)
    tier = None if effort is None else 0 if effort == "none" else DEMO.efforts.value[effort]
    limits = [one for one in (asked, tier, most) if one is not None]
    room = max_tokens - reply_room(DEMO, max_tokens)
    assert decided.budget == min([*limits, room])
    assert decided.clamped == (decided.asked is not None and decided.budget < decided.asked)
    assert 0 <= reply_room(DEMO, max_tokens) <= max_tokens / 2


def test_what_won_is_named() -> None:
    assert decide_budget(DEMO, 1000, 50).source == "request"
    assert decide_budget(DEMO, 1000, 500, "low").source == "effort low"
    assert decide_budget(DEMO, 1000, 500, None, 40) == (40, 500, "limit")
    assert decide_budget(DEMO, 100, 500) == (84, 500, "room for the answer")
    assert decide_budget(DEMO, 100, 500).clamped and not decide_budget(DEMO, 100, 50).clamped
    assert not decide_budget(DEMO, 100).clamped


def test_wishes_that_mean_nothing_are_refused() -> None:
    with pytest.raises(RequestError, match="effort"):
        decide_budget(DEMO, 100, effort="huge")
    with pytest.raises(RequestError, match="effort"):
        decide_budget(card_for("meta-llama/Llama-3.1-8B-Instruct"), 100, effort="low")
    for bad in (-1, True, 2.5):
        with pytest.raises(RequestError, match="thinking_budget"):
            decide_budget(DEMO, 100, bad)  # type: ignore[arg-type]
