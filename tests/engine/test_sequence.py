"""A request's own state, without torch and without an engine: appending, ending, what is left."""

import pytest

from wager.engine.sequence import Finish, Origin, Request, Sequence
from wager.records import SamplingParams


def make(output: int = 10, ends: tuple[int, ...] = (), max_len: int = 100, **params: int) -> Sequence:
    request = Request("r", (1, 2, 3), SamplingParams(max_tokens=output, **params), 0, "", ends)
    return Sequence(request, max_len, 0)


def test_it_begins_with_its_prompt_pending() -> None:
    sequence = make()
    assert (sequence.num_pending, sequence.num_output, sequence.num_left) == (3, 0, 10)
    sequence.num_cached = 3
    assert sequence.append((5, 6, 7), 2) == 3
    assert sequence.output_ids == [5, 6, 7] and sequence.num_pending == 3
    assert sequence.origins == [Origin.GUESS, Origin.GUESS, Origin.TARGET]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_end_inside_the_path_drops_the_rest(place: int) -> None:
    tokens = [5, 6, 7]
    sequence = make(ends=(tokens[place],))
    assert sequence.append(tokens, 2) == place + 1
    assert sequence.output_ids == tokens[: place + 1]
    assert sequence.finish is Finish.STOP and sequence.matched_stop == tokens[place]


def test_a_length_inside_the_path_drops_the_rest() -> None:
    sequence = make(output=2)
    assert sequence.append((5, 6, 7, 8), 3) == 2
    assert sequence.output_ids == [5, 6] and sequence.finish is Finish.LENGTH and sequence.num_left == 0


def test_the_longest_length_counts_the_prompt() -> None:
    sequence = make(max_len=5)
    assert sequence.num_left == 2
    assert sequence.append((5, 6), 1) == 2 and sequence.finish is Finish.LENGTH


def test_an_end_token_on_the_last_place_is_a_stop() -> None:
    sequence = make(output=2, ends=(6,))
    sequence.append((5, 6), 1)
    assert sequence.finish is Finish.STOP


def test_before_min_tokens_an_end_token_ends_nothing() -> None:
    sequence = make(ends=(5,), min_tokens=2)
    assert sequence.append((5, 5, 5), 2) == 3
    assert sequence.finish is Finish.STOP and sequence.num_output == 3


def test_the_first_end_stands() -> None:
    sequence = make(output=1)
    sequence.append((4,))
    sequence.end(Finish.ABORT, "too late")
    assert sequence.finish is Finish.LENGTH and sequence.error is None
