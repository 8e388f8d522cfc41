"""Stop strings, against a search of the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.errors import RequestError
from wager.text.stops import StopFinder, StopHit

PIECES = st.lists(st.text(st.sampled_from("abX"), max_size=3), max_size=15)
STOPS = st.lists(st.text(st.sampled_from("abX"), min_size=1, max_size=4), max_size=3)


def search_whole(pieces, stops, include_stop):
    """What a reader of the whole text would say: (shown text, stop)."""
    text = "".join(pieces)
    ends = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start)
    ]
    if not ends:
        return text, None
    end, start, stop = min(ends)
    return text[: end if include_stop else start], stop


@settings(deadline=None, max_examples=500)
@given(pieces=PIECES, stops=STOPS, include_stop=st.booleans(), chunk=st.integers(1, 4))
def test_any_split_equals_a_search_of_the_whole_text(pieces, stops, include_stop, chunk):
    finder = StopFinder(stops, include_stop)
    shown = [finder.feed(pieces[i : i + chunk]).text for i in range(0, len(pieces), chunk)]
    shown.append(finder.flush().text)
    text, stop = search_whole(pieces, stops, include_stop)
    assert "".join(shown) == text
    assert finder.hit == (None if stop is None else StopHit(stop, len(text)))


@settings(deadline=None, max_examples=200)
@given(pieces=PIECES, stops=STOPS)
def test_no_more_is_held_back_than_a_stop_could_begin_with(pieces, stops):
    finder = StopFinder(stops)
    shown = "".join(finder.feed([piece]).text for piece in pieces)
    if finder.hit is None:
        held = "".join(pieces)[len(shown) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_text_after_a_hit_is_not_taken():
    finder = StopFinder(["END"])
    assert finder.feed(["one E", "ND two", " three"]) == ("one ", StopHit("END", 4))
    assert finder.feed(["four"]) == ("", finder.hit)
    assert finder.flush("x") == ("", finder.hit)


def test_what_the_detokenizer_held_back_can_still_complete_a_stop():
    finder = StopFinder(["a\ufffd"])
    assert finder.feed(["x", "a", ""]).text == "x"
    assert finder.flush("\ufffd") == ("", StopHit("a\ufffd", 1))


def test_without_stops_nothing_is_held_back():
    assert StopFinder([]).feed(["a", "b"]) == ("ab", None)


@pytest.mark.parametrize("stops", ["END", [""], ["a", ""], [1]])
def test_stops_that_are_none_are_refused(stops):
    with pytest.raises(RequestError, match="stop"):
        StopFinder(stops)
