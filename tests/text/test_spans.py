"""Phases by marker ids, one token or several, and the split of text by phase."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.errors import InputError
from wager.text.spans import Phase, PhaseTracker, Span, SpanSplitter, SpanText

SPANS = [Span(Phase.THINK, (1,), (2,)), Span(Phase.TOOL, (3, 3, 4), (5, 6))]
LETTERS = {Phase.THINK: "t", Phase.ANSWER: "a", Phase.TOOL: "x"}


def labels(ids, tracker=None):
    return "".join(LETTERS[phase] for phase in (tracker or PhaseTracker(SPANS)).feed(ids))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([9, 1, 9, 2, 9], "attta"),
        ([1, 2, 1, 2], "tttt"),
        ([3, 3, 4, 9, 5, 6, 9], "aaxxxxa"),
        ([3, 3, 3, 4, 9], "aaaxx"),
        ([3, 4, 3, 3, 9], "aaaaa"),
        ([1, 3, 3, 4, 9, 2], "tttttt"),
        ([3, 3, 4, 5, 5, 6, 9], "aaxxxxa"),
        ([2, 5, 6], "aaa"),
    ],
)
def test_labels(ids, expected):
    assert labels(ids) == expected


def test_tokens_of_one_marker_do_not_begin_the_next():
    spans = [Span(Phase.THINK, (1, 2), (2, 3))]
    assert labels([1, 2, 3, 9, 2, 3, 9], PhaseTracker(spans)) == "attttta"
    spans = [Span(Phase.THINK, (1, 2), (1, 3))]
    assert labels([1, 2, 3, 9, 1, 3, 9], PhaseTracker(spans)) == "attttta"


def test_of_two_markers_that_end_together_the_longer_counts():
    spans = [Span(Phase.THINK, (4,), (2,)), Span(Phase.TOOL, (3, 4), (2,))]
    assert labels([3, 4, 9], PhaseTracker(spans)) == "axx"


def test_a_prompt_can_open_the_thinking():
    tracker = PhaseTracker(SPANS)
    tracker.feed([9, 9, 1])
    tracker.reset_counts()
    assert tracker.phase is Phase.THINK
    assert labels([9, 9, 2, 9], tracker) == "ttta"
    assert tracker.num_tokens(Phase.THINK) == 3 and tracker.num_tokens(Phase.ANSWER) == 1


def test_closed_thinking_is_remembered():
    tracker = PhaseTracker(SPANS)
    tracker.feed([1, 9])
    assert not tracker.has_closed(Phase.THINK)
    tracker.feed([2, 9, 1])
    assert tracker.has_closed(Phase.THINK) and tracker.phase is Phase.THINK


def test_a_copy_goes_its_own_way():
    tracker = PhaseTracker(SPANS)
    tracker.feed([3, 3])
    other = tracker.copy()
    assert labels([4], other) == "x" and other.num_tokens(Phase.TOOL) == 1
    assert tracker.phase is Phase.ANSWER and tracker.num_partial == 2 and tracker.num_tokens(Phase.TOOL) == 0


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(1, 7), max_size=25))
def test_phases_equal_a_search_of_the_whole_sequence(ids):
    expected, place, inside = "", 0, None
    while place < len(ids):
        markers = [(span.open_ids, span) for span in SPANS] if inside is None else [(inside.close_ids, None)]
        found = [
            (find(ids, marker, place) + len(marker), span)
            for marker, span in markers
            if find(ids, marker, place) >= 0
        ]
        end, following = min(found, key=lambda each: each[0], default=(len(ids), inside))
        letters = "a" if inside is None else LETTERS[inside.phase]
        expected += letters * (end - place)
        if inside is None and following is not None:
            expected = expected[:-1] + LETTERS[following.phase]
        place, inside = end, following
    assert labels(ids) == expected


def find(ids, marker, start):
    return next((i for i in range(start, len(ids)) if tuple(ids[i : i + len(marker)]) == marker), -1)


def test_text_is_split_without_markers():
    splitter = SpanSplitter(PhaseTracker(SPANS))
    parts = splitter.feed([1, 9, 9, 2, 9], ["<think>", "so", " it", "</think>", "is"])
    parts += splitter.feed([3, 3, 3, 4, 8, 5, 6], [".", "<", "to", "ol>", "f()", "</", "tool>"])
    assert parts == [
        SpanText(Phase.THINK, "so it"),
        SpanText(Phase.ANSWER, "is"),
        SpanText(Phase.ANSWER, "."),
        SpanText(Phase.TOOL, "f()"),
    ]
    assert splitter.flush() == []


def test_a_marker_that_does_not_come_is_text():
    splitter = SpanSplitter(PhaseTracker(SPANS))
    assert splitter.feed([9, 3, 3], ["a", "<", "to"]) == [SpanText(Phase.ANSWER, "a")]
    assert splitter.feed([7], ["p"]) == [SpanText(Phase.ANSWER, "<top")]
    assert splitter.feed([3], ["<"]) == []
    assert splitter.flush("!") == [SpanText(Phase.ANSWER, "<!")]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Span(Phase.THINK, (), (2,)),
        lambda: Span(Phase.THINK, (1,), ()),
        lambda: Span(Phase.ANSWER, (1,), (2,)),
        lambda: PhaseTracker([SPANS[0], Span(Phase.TOOL, (1,), (9,))]),
    ],
)
def test_impossible_spans_are_refused(make):
    with pytest.raises(InputError, match="spans"):
        make()
