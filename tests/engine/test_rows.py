"""Small records of a step: tokens with more behind them, and drafts that are asked about all at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wager.draft.base import Proposal
from wager.engine.rows import Longer, any_broken

TOKENS = st.lists(st.integers(0, 9), max_size=6)
PLACE = st.none() | st.integers(-8, 8)


@given(TOKENS, TOKENS, PLACE, PLACE)
def test_longer_tokens_are_read_as_one_list(
    first: list[int], more: list[int], start: int | None, stop: int | None
) -> None:
    both, longer = [*first, *more], Longer(first, tuple(more))
    assert len(longer) == len(both) and list(longer) == both
    assert longer[start:] == both[start:] and longer[start:stop] == both[start:stop]


def test_one_broken_draft_among_others_is_found() -> None:
    scores = np.zeros((2, 3), np.float32)
    bad = scores.copy()
    bad[1, 2] = np.nan
    whole, chain = Proposal(scores.astype(np.int64), scores), Proposal(np.zeros((2, 1), np.int64), None)
    assert not any_broken([None, whole, chain]) and not any_broken([None, chain]) and not any_broken([])
    assert any_broken([whole, None, Proposal(whole.token_ids, bad)])
    assert any_broken([Proposal(whole.token_ids, bad)])
