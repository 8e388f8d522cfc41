"""Buckets of captured passes: every pass of decoding rows has one, and none is captured in vain."""

from hypothesis import given
from hypothesis import strategies as st

from wager.target.buckets import Buckets, GraphLimits, Size

LONG = 4096


@given(st.integers(1, 300), st.integers(1, 3000), st.integers(1, 20_000), st.data())
def test_a_pass_falls_into_a_bucket_that_holds_it(
    max_rows: int, max_tokens: int, max_context: int, data: st.DataObject
) -> None:
    buckets = Buckets(GraphLimits(max_rows, max(max_tokens, max_rows), max_context), LONG)
    rows = data.draw(st.integers(1, max_rows))
    tokens = data.draw(st.integers(rows, max(max_tokens, max_rows)))
    longest = data.draw(st.integers(0, max_context))
    size = buckets.of(tokens, rows, longest)
    if tokens > buckets.most:
        assert size is None
        return
    assert size is not None and size in buckets.all()
    assert size.tokens >= tokens and size.rows >= rows
    assert size.is_long == (rows == 1 and longest >= LONG)


def test_no_size_is_captured_twice_and_none_that_cannot_come() -> None:
    buckets = Buckets(GraphLimits(16, 600, 2048), LONG)
    sizes = buckets.all()
    assert len(sizes) == len(set(sizes)) and not any(size.is_long for size in sizes)
    assert Size(1, 16) not in sizes, "a pass of more rows than tokens"
    assert buckets.most == 512 and buckets.beyond == Size(600, 16)
