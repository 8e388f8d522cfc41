"""Buckets of captured passes: every pass of decoding rows has one, and none is captured in vain."""

from hypothesis import given
from hypothesis import strategies as st

from wager.target.buckets import ALL_SCORED, PREFILL_BUCKETS, Buckets, GraphLimits, Size

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


@given(st.integers(1, 300), st.integers(1, 9000), st.integers(0, 9000), st.data())
def test_a_pass_that_reads_prompts_falls_into_a_bucket_that_holds_it(
    max_rows: int, max_tokens: int, max_step_tokens: int, data: st.DataObject
) -> None:
    limits = GraphLimits(max_rows, max(max_tokens, max_rows), 8192, max_step_tokens)
    buckets = Buckets(limits, LONG)
    rows = data.draw(st.integers(1, max_rows))
    tokens = data.draw(st.integers(rows, limits.max_tokens))
    judged, longest = data.draw(st.integers(0, tokens)), data.draw(st.integers(0, 8192))
    size = buckets.prefill_of(tokens, rows, longest, judged)
    if size is None:
        too_few_scores = judged > min(1 if rows == 1 else max_rows, buckets.most)
        is_long = rows == 1 and longest >= LONG
        is_small = tokens <= ALL_SCORED or tokens <= buckets.most < max(PREFILL_BUCKETS)
        assert is_small or too_few_scores or is_long or tokens > buckets.prefill[-1]
        return
    assert size in buckets.all_prefill() and size not in buckets.all()
    assert size.tokens >= tokens and size.rows >= rows and size.num_judged >= judged
    assert (size.tokens <= buckets.most) == (tokens <= buckets.most), "the tables of both are the same"


def test_prefill_buckets_reach_to_the_largest_step_and_are_few() -> None:
    buckets = Buckets(GraphLimits(32, 6176, 4096, 2048), LONG)
    assert buckets.prefill == list(PREFILL_BUCKETS) and len(buckets.all_prefill()) == 2 * len(PREFILL_BUCKETS)
    assert Buckets(GraphLimits(4, 580, 512, 64), LONG).prefill == [192]
    assert buckets.prefill_of(16 + 140, 16, 200, 16) == Size(192, 32, False, 32)
    assert buckets.prefill_of(16 + 140, 16, 200, 33) is None, "a pass with trees scores all its tokens"
