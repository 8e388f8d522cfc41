"""Lookup against a naive search over the whole sequence, however the sequence grew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.draft.base import DraftRow, Proposal
from wager.draft.lookup import LookupDrafter, SuffixIndex, copy_on
from wager.errors import ConfigError
from wager.nn.noise import NoiseSource

NOISE = NoiseSource(8, capacity=0)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def ask(drafter: LookupDrafter, tokens: list[int], name: str = "a", depth: int = 0) -> Proposal | None:
    row = DraftRow(name, tokens, 1, [], depth=depth)
    proposal = drafter.propose([row], NOISE)[0]
    assert drafter.can_propose(row) == (proposal is not None)
    return proposal


def naive(tokens: list[int], drafter: LookupDrafter) -> list[int] | None:
    """The continuation of the longest, then latest, earlier place of the tail; copied token by token."""
    for length in range(drafter.max_match, drafter.min_match - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if length < len(tokens) and tokens[start : start + length] == tokens[-length:]:
                grown = list(tokens)
                for _ in range(min(drafter.depth, 3 * length)):
                    grown.append(grown[start + length + len(grown) - len(tokens)])
                return grown[len(tokens) :]
    return None


@given(TOKENS, st.lists(st.integers(1, 4), max_size=12), st.integers(1, 3), st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_it_proposes_what_a_naive_search_finds(
    tokens: list[int], growths: list[int], shortest: int, more: int
) -> None:
    drafter = LookupDrafter(shortest, shortest + more, depth=7)
    stops = [len(tokens) - sum(growths[:count]) for count in range(len(growths), -1, -1)]
    for stop in (stop for stop in stops if stop > 0):
        proposal, want = ask(drafter, tokens[:stop]), naive(tokens[:stop], drafter)
        if want is None:
            assert proposal is None
        else:
            assert proposal is not None and proposal.logprobs is None
            assert proposal.token_ids.tolist() == [[token] for token in want]


@given(TOKENS, st.integers(1, 3))
@settings(deadline=None, max_examples=150)
def test_a_copy_behind_a_long_tail_is_of_another_grade(tokens: list[int], shortest: int) -> None:
    drafter, row, tail = LookupDrafter(shortest, 5), DraftRow("a", tokens, 1, []), tokens[-5:]
    is_long = len(tail) == 5 and tail in [tokens[start : start + 5] for start in range(len(tokens) - 5)]
    assert bool(drafter.grade(row)) is is_long
    assert drafter.can_propose(row) or not is_long


@pytest.mark.parametrize(("length", "grade", "count"), [(2, "", 6), (4, "", 12), (5, "/long", 15)])
def test_the_longer_the_tail_the_more_is_copied(length: int, grade: str, count: int) -> None:
    tokens = [*range(40), 99, *range(20 - length, 20)]
    proposal = ask(LookupDrafter(), tokens)
    assert proposal is not None and proposal.token_ids[:, 0].tolist() == tokens[20:40][:count]
    assert LookupDrafter().grade(DraftRow("a", tokens, 1, [])) == grade


def test_a_copy_that_goes_on_is_of_the_last_grade_soon() -> None:
    drafter, text = LookupDrafter(), [*range(100)]
    tokens = [*text, 199, *range(10)]
    row = DraftRow("a", tokens, 1, [])
    assert drafter.grade(row) == "/long"
    # The token behind six that stood, and what is guessed behind those seventeen: all that is ever copied.
    assert drafter.continuation(row, 6) == text[16 : 17 + 32]
    grown = DraftRow("a", [*tokens, *range(10, 17)], 1, [])
    assert drafter.grade(grown) == "/run"
    (proposal,) = drafter.propose([grown], NOISE)
    assert proposal is not None and proposal.token_ids[:, 0].tolist() == text[17 : 17 + 32]


def test_no_match_no_proposal() -> None:
    drafter = LookupDrafter()
    assert ask(drafter, [1, 2, 3, 4, 5]) is None
    assert ask(drafter, [1]) is None
    assert ask(drafter, [1, 2, 3, 4, 5, 1]) is None
    assert ask(drafter, [1, 2, 3, 4, 5, 1, 2]) is not None


def test_the_longest_match_wins_over_a_later_one() -> None:
    drafter = LookupDrafter(min_match=1, max_match=3, depth=1)
    proposal = ask(drafter, [7, 8, 9, 1, 0, 9, 2, 7, 8, 9])
    assert proposal is not None and proposal.token_ids.tolist() == [[1]]
    proposal = ask(drafter, [5, 1, 0, 5, 2, 0, 5], name="b")
    assert proposal is not None and proposal.token_ids.tolist() == [[2]]


def test_of_places_without_number_the_latest_are_looked_at() -> None:
    often = [1, 2, 1, 2, 3] * 200
    tokens = [7, 8, 9, 1, 2, 4, *often, 8, 9, 1, 2]
    assert SuffixIndex(2, 5).find(tokens) == (len(tokens) - 5, 2), "and not 8 9 1 2 long before"
    near = [7, 8, 9, 1, 2, 4, *often[:245], 8, 9, 1, 2]
    assert SuffixIndex(2, 5).find(near) == (5, 4)


def test_depth_limits_the_proposal() -> None:
    drafter = LookupDrafter(depth=6)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    for depth, count in ((0, 6), (4, 4), (20, 6)):
        proposal = ask(drafter, tokens, depth=depth)
        assert proposal is not None
        assert proposal.token_ids[:, 0].tolist() == [3, 4, 5, 6, 7, 8][:count]


def test_requests_do_not_see_each_other_and_are_indexed_anew() -> None:
    drafter = LookupDrafter()
    assert ask(drafter, [1, 2, 3, 1, 2], "a") is not None
    assert ask(drafter, [4, 5, 1, 2], "b") is None
    drafter.forget("a")
    assert ask(drafter, [6, 3, 1, 2], "a") is None
    drafter.adopt("a", 4)
    assert ask(drafter, [1, 2, 3, 1, 2, 3], "a") is not None
    # The same name with another text, shorter or not, without a word before.
    assert ask(drafter, [9, 9, 8], "a") is None
    assert ask(drafter, [5, 6, 7, 8, 5, 6], "a") is not None


def test_numpy_tokens_are_as_good_as_lists() -> None:
    proposal = LookupDrafter().propose([DraftRow("a", np.array([1, 2, 3, 1, 2]), 1, [])], NOISE)[0]
    assert proposal is not None and proposal.token_ids[:3, 0].tolist() == [3, 1, 2]
    assert copy_on([4, 5, 6], 1, 5) == [5, 6, 5, 6, 5]


@pytest.mark.parametrize("values", [{"min_match": 0}, {"min_match": 17}, {"depth": 0}])
def test_bad_options_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        LookupDrafter(**values)
