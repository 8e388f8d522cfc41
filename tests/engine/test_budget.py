"""A request's thinking, without torch: against a reference that rereads the whole text at every token."""

from collections.abc import Sequence
from itertools import cycle, islice
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.engine.budget import Thinking, repeats_itself
from wager.engine.sequence import Finish, Origin, Request, asked_nodes
from wager.engine.sequence import Sequence as Running
from wager.records import CloseKind, SamplingParams, ThinkingLimit

OPEN, CLOSE = (1,), (2, 3)


def limit(budget: int | None = 4, **changes: object) -> ThinkingLimit:
    values: dict[str, object] = {"open_ids": OPEN, "close_ids": CLOSE, "starts_open": True, **changes}
    return ThinkingLimit(budget, **values)  # type: ignore[arg-type]


class Told(NamedTuple):
    """What a reference or a run says of a text."""

    tokens: list[int]
    forced_at: int | None
    kind: CloseKind
    num_thinking: int
    num_content: int


def find(mark: Sequence[int], tokens: Sequence[int], start: int) -> int | None:
    """Where the mark stands first, at or behind `start`."""
    places = range(start, len(tokens) - len(mark) + 1)
    return next((i for i in places if tuple(tokens[i : i + len(mark)]) == tuple(mark)), None)


def opened_at(tokens: Sequence[int], own: ThinkingLimit) -> int | None:
    """The first position inside the span."""
    if own.starts_open:
        return 0
    place = find(own.open_ids, tokens, 0) if own.open_ids else None
    return None if place is None else place + len(own.open_ids)


def reference(stream: Sequence[int], soft: Sequence[bool], own: ThinkingLimit, length: int) -> Told:
    """Token by token: what the model writes at a position is stream[position], unless a close is forced."""
    tokens: list[int] = []
    while len(tokens) < length:
        inside = opened_at(tokens, own)
        is_open = inside is not None and find(own.natural_ids, tokens, inside) is None
        if inside is not None and is_open:
            count = len(tokens) - inside
            chosen = stream[len(tokens)]
            yields = count >= own.soft_after and chosen != own.natural_ids[0] and own.soft_ratio is not None
            kind = None
            if own.budget is not None and count >= own.budget:
                kind = CloseKind.HARD
            elif yields and soft[len(tokens)]:
                kind = CloseKind.SOFT
            if kind is not None:
                forced_at = len(tokens)
                answer = list(stream[forced_at + len(own.close_ids) : max(length, forced_at)])
                before = inside - (0 if own.starts_open else len(own.open_ids))
                whole = [*tokens, *own.close_ids, *answer]
                return Told(whole, forced_at, kind, count, before + len(answer))
        tokens.append(stream[len(tokens)])
    inside = opened_at(tokens, own)
    if inside is None:
        return Told(tokens, None, CloseKind.NONE, 0, len(tokens))
    before = inside - (0 if own.starts_open else len(own.open_ids))
    end = find(own.natural_ids, tokens, inside)
    if end is None:
        return Told(tokens, None, CloseKind.NONE, len(tokens) - inside, before)
    content = before + len(tokens) - end - len(own.natural_ids)
    return Told(tokens, None, CloseKind.NATURAL, end - inside, content)


def run(stream: Sequence[int], soft: Sequence[bool], own: ThinkingLimit, steps: Sequence[int]) -> Told:
    """The same in steps of these many tokens, as a sequence of verdicts would come."""
    thinking, tokens, forced_at = Thinking(own), list[int](), None
    if thinking.is_due:
        forced_at = 0
        tokens += thinking.force(CloseKind.HARD)
    for size in steps:
        chosen = stream[len(tokens) : len(tokens) + size]
        flags = soft[len(tokens) : len(tokens) + size] if own.soft_ratio is not None else ()
        kept, kind = thinking.walk(chosen, flags)
        for token in chosen[:kept]:
            thinking.feed(token)
        tokens += chosen[:kept]
        if kind is not None:
            forced_at = len(tokens)
            tokens += thinking.force(kind)
        assert not thinking.is_due
    return Told(tokens, forced_at, *thinking.report)


marks = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@st.composite
def limits(draw: st.DrawFn) -> ThinkingLimit:
    opening, natural = draw(marks), draw(marks)
    soft = draw(st.none() | st.just(0.5))
    return ThinkingLimit(
        draw(st.none() | st.integers(0, 20)),
        opening,
        draw(st.just(natural) | marks),
        draw(st.booleans()),
        natural if natural != opening else (*natural, 3),
        soft,
        draw(st.integers(0, 6)),
        stop_repeats=False,
    )


@settings(deadline=None, max_examples=300)
@given(limits(), st.integers(0, 1 << 20), st.lists(st.integers(1, 17), min_size=1, max_size=8))
def test_steps_of_any_size_write_what_one_token_at_a_time_would(
    own: ThinkingLimit, seed: int, steps: list[int]
) -> None:
    random = Random(seed)
    stream = [random.randrange(4) for _ in range(400)]
    soft = [random.random() < 0.1 for _ in range(400)]
    found = run(stream, soft, own, steps)
    assert found == reference(stream, soft, own, len(found.tokens))


@settings(deadline=None, max_examples=200)
@given(limits(), st.lists(st.integers(0, 3), max_size=60))
def test_every_token_is_counted_once(own: ThinkingLimit, tokens: list[int]) -> None:
    thinking = Thinking(own)
    for token in tokens:
        thinking.feed(token)
    kind, num_thinking, num_content = thinking.report
    opened = (thinking.is_open or thinking.is_closed) and not own.starts_open
    marked = len(own.open_ids) * opened + len(own.natural_ids) * (kind is CloseKind.NATURAL)
    assert num_thinking + num_content + marked == len(tokens)


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_the_span_is_as_long_as_the_budget(budget: int) -> None:
    thinking = Thinking(limit(budget))
    assert thinking.left == budget and thinking.is_due == (budget == 0)
    for _ in range(budget):
        assert not thinking.is_due
        thinking.feed(9)
    assert thinking.is_due and thinking.left == 0
    assert thinking.force(CloseKind.HARD) == CLOSE
    assert thinking.report == (CloseKind.HARD, budget, 0)
    assert not thinking.is_due and thinking.left is None


def test_a_verdict_is_cut_at_the_budget() -> None:
    thinking = Thinking(limit(3))
    assert thinking.walk([9] * 3) == (3, CloseKind.HARD)
    assert thinking.walk([9] * 8) == (3, CloseKind.HARD)
    assert thinking.walk([9] * 2) == (2, None)
    assert thinking.report == (CloseKind.NONE, 0, 0), "walking changes nothing"


def test_a_span_that_opens_inside_a_verdict_is_limited_there() -> None:
    thinking = Thinking(limit(2, starts_open=False))
    assert thinking.left is None, "no tree is cut for a span that may never open"
    assert thinking.walk([9, 9, 1, 8, 8, 8, 8]) == (5, CloseKind.HARD)
    for token in [9, 9, 1, 8, 8]:
        thinking.feed(token)
    thinking.force(CloseKind.HARD)
    assert thinking.report == (CloseKind.HARD, 2, 2)


def test_with_nothing_allowed_a_span_closes_as_it_opens() -> None:
    assert Thinking(limit(0, starts_open=False)).walk([9, 1, 8, 8]) == (2, CloseKind.HARD)


def test_a_natural_close_is_final() -> None:
    thinking = Thinking(limit(6))
    for token in [9, 2, 3]:
        thinking.feed(token)
    assert thinking.report == (CloseKind.NATURAL, 1, 0) and thinking.is_closed
    assert thinking.walk([1] + [9] * 50) == (51, None), "not even a span that is opened again is closed"
    for token in [1] + [9] * 20:
        thinking.feed(token)
    assert not thinking.is_due and thinking.report == (CloseKind.NATURAL, 1, 21)


def test_a_natural_close_may_cross_a_step() -> None:
    thinking = Thinking(limit(5))
    for token in [9, 9, 2]:
        thinking.feed(token)
    assert thinking.walk([3, 7, 7, 7, 7]) == (5, None)
    thinking.feed(3)
    assert thinking.report == (CloseKind.NATURAL, 2, 0)


def test_a_close_begun_too_late_is_thinking_and_closed_whole() -> None:
    thinking = Thinking(limit(3))
    assert thinking.walk([9, 9, 2, 3]) == (3, CloseKind.HARD)
    for token in [9, 9, 2]:
        thinking.feed(token)
    assert thinking.is_due and thinking.num_thinking == 3


def test_the_models_own_mark_may_differ_from_what_is_forced() -> None:
    own = limit(9, close_ids=(7, 8, 3), natural_ids=(3,))
    thinking = Thinking(own)
    for token in [7, 8, 3]:
        thinking.feed(token)
    assert thinking.report == (CloseKind.NATURAL, 2, 0)


def test_without_a_budget_it_only_counts() -> None:
    thinking = Thinking(limit(None))
    assert thinking.left is None
    assert thinking.walk([9] * 500) == (500, None)


def test_soft_waits_for_its_minimum_and_leaves_a_close_to_the_model() -> None:
    thinking = Thinking(limit(None, soft_ratio=0.5, soft_after=2))
    assert thinking.walk([9] * 5, [True] * 5) == (2, CloseKind.SOFT)
    assert thinking.walk([9, 9, 2, 3], [True] * 4) == (3, CloseKind.SOFT), "3 comes where 2 could"
    assert thinking.walk([9, 9, 2], [True] * 3) == (3, None)
    assert Thinking(limit(None, starts_open=False)).walk([9] * 5, [True] * 5) == (5, None)


def test_a_hard_close_comes_before_a_soft_one_of_the_next_token() -> None:
    assert Thinking(limit(2, soft_ratio=0.5)).walk([9] * 4, [False, False, True, True]) == (
        2,
        CloseKind.HARD,
    )


# -- repeats


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 100), st.integers(0, 30))
def test_repeats_are_found_at_once_and_only_there(period: int, before: int) -> None:
    piece = range(period)
    tokens = [*range(2000, 2000 + before), *islice(cycle(piece), 3 * 100)]
    ends = [end for end in range(len(tokens) + 1) if repeats_itself(tokens[:end])]
    multiples = [n * period for n in range(1, 81) if 12 <= n * period <= 80]
    if not multiples:
        assert not ends
    else:
        assert ends[0] == before + 2 * multiples[0]


def test_only_the_answer_is_watched() -> None:
    thinking = Thinking(limit(400))
    for _ in range(100):
        thinking.feed(9)
    assert not thinking.repeated
    thinking.force(CloseKind.HARD)
    for token in range(100, 160):
        thinking.feed(token)
    assert not thinking.repeated
    for _ in range(24):
        thinking.feed(9)
    assert thinking.repeated


# -- in a sequence


def sequence(thinking: ThinkingLimit, output: int = 60, **params: object) -> Running:
    asked = SamplingParams(max_tokens=output, thinking=thinking, **params)  # type: ignore[arg-type]
    return Running(Request("r", (7, 7, 7), asked, 0, "", (0,)), 1000, 0)


def test_a_forced_close_is_pending_behind_the_bonus() -> None:
    running = sequence(limit(2))
    running.num_cached = 3
    assert running.max_depth == 1
    assert running.append((9, 9), 1) == 2
    assert running.force(CloseKind.HARD) == 2
    assert running.output_ids == [9, 9, 2, 3] and running.num_pending == 4
    assert running.origins[2:] == [Origin.FORCED] * 2
    assert running.max_depth == 55
    assert running.close == (CloseKind.HARD, 2, 0)


def test_a_soft_close_takes_the_place_of_the_bonus() -> None:
    running = sequence(limit(None, soft_ratio=0.1))
    assert running.append(()) == 0
    running.force(CloseKind.SOFT)
    assert running.output_ids == [2, 3] and running.close == (CloseKind.SOFT, 0, 0)


def test_the_length_ends_it_inside_its_close() -> None:
    running = sequence(limit(2), output=3)
    running.append((9, 9), 1)
    assert running.force(CloseKind.HARD) == 1
    assert running.output_ids == [9, 9, 2] and running.finish is Finish.LENGTH


def test_an_end_token_is_neither_thinking_nor_answer() -> None:
    running = sequence(limit(9))
    running.append((9, 2, 3, 8, 0), 4)
    assert running.finish is Finish.STOP and running.close == (CloseKind.NATURAL, 1, 1)
    unclosed = sequence(limit(9))
    unclosed.append((9, 0), 1)
    assert unclosed.close == (CloseKind.NONE, 1, 0)


def test_repeats_end_the_answer_inside_a_path() -> None:
    running = sequence(limit(1), output=400)
    running.append((9,))
    running.force(CloseKind.HARD)
    assert running.append([8] * 31, 30) == 24
    assert running.finish is Finish.STOP and running.repeat_stopped and running.matched_stop is None
    kept = sequence(limit(1, stop_repeats=False), output=400)
    kept.append((9, 2), 1)
    assert kept.append([3, *[8] * 61], 61) == 62 and not kept.repeat_stopped


def test_repeats_do_not_end_it_before_min_tokens() -> None:
    running = sequence(limit(1), output=400, min_tokens=60)
    running.append((9,))
    running.force(CloseKind.HARD)
    assert running.append([8] * 101, 100) == 58 and running.num_output == 61


def test_forced_tokens_have_no_log_probability() -> None:
    running = sequence(limit(1), logprobs=0)
    running.append((9,))
    running.logprobs.append("first")
    running.force(CloseKind.HARD)
    assert running.logprobs == ["first", None, None]


@pytest.mark.parametrize(("word", "nodes"), [(None, None), ("off", 0), ("fixed:7", 7)])
def test_a_requests_own_word_for_its_guesses(word: str | None, nodes: int | None) -> None:
    assert asked_nodes(word) == nodes
    assert sequence(limit(1), speculation=word).nodes == nodes
