"""Small records of a step: concatenated tokens."""

from hypothesis import given
from hypothesis import strategies as st

from wager.engine.rows import ConcatenatedTokens

TOKENS = st.lists(st.integers(0, 9), max_size=6)
PLACE = st.none() | st.integers(-8, 8)


@given(TOKENS, TOKENS, PLACE, PLACE)
def test_concatenated_tokens_are_read_as_one_list(
    first: list[int], more: list[int], start: int | None, stop: int | None
) -> None:
    both, joined = [*first, *more], ConcatenatedTokens(first, tuple(more))
    assert len(joined) == len(both) and list(joined) == both
    assert joined[start:] == both[start:] and joined[start:stop] == both[start:stop]
