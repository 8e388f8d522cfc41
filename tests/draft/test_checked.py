"""Whatever a drafter returns, only usable proposals get through, and each fault names its reason."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wager.draft.base import DraftRow, Proposal
from wager.draft.checked import checked, continuation_fault

VOCAB = 20
ROWS = [DraftRow(index, [1, 2, 3], 1, []) for index in range(3)]


def good(depths: int = 2, ranks: int = 3) -> Proposal:
    return Proposal(np.ones((depths, ranks), np.int64), np.full((depths, ranks), -1.0, np.float32))


def with_ids(*token_ids: int) -> Proposal:
    return Proposal(np.array([token_ids], np.int64), None)


def with_logprob(value: float, dtype: Any = np.float32) -> Proposal:
    proposal = good()
    logprobs = np.full((2, 3), -1.0, dtype)
    logprobs[1, 2] = value
    return proposal._replace(logprobs=logprobs)


GOOD = {
    "none": None,
    "scored": good(),
    "chain": with_ids(0, VOCAB - 1),
    "impossible candidates": with_logprob(-np.inf),
    "rounded": with_logprob(1e-6),
    "doubles": with_logprob(-2.0, np.float64),
    "not contiguous": Proposal(np.ones((3, 2), np.int64).T, np.zeros((3, 2), np.float32).T),
}
FAULTY: dict[str, tuple[Any, str]] = {
    "beyond the vocabulary": (with_ids(1, VOCAB), "token 20, outside 0..19"),
    "negative": (with_ids(-1), "token -1"),
    "enormous": (with_ids(2**62), "outside"),
    "no depth": (good(depths=0), "shape"),
    "no rank": (good(ranks=0), "shape"),
    "one dimension": (Proposal(np.ones(3, np.int64), None), "shape"),
    "three dimensions": (Proposal(np.ones((1, 1, 1), np.int64), None), "shape"),
    "fewer scores": (good()._replace(logprobs=good(2, 2).logprobs), "log-probabilities have the shape"),
    "ids as floats": (Proposal(np.ones((2, 1)), None), "int64"),  # type: ignore[arg-type]
    "ids as a list": (Proposal([[1]], None), "int64"),  # type: ignore[arg-type]
    "scores as integers": (good()._replace(logprobs=np.zeros((2, 3), np.int64)), "floats"),
    "not a number": (with_logprob(np.nan), "not numbers"),
    "infinite": (with_logprob(np.inf), "log-probability is inf"),
    "positive": (with_logprob(0.5), "log-probability is 0.5"),
    "an array": (np.ones((2, 1), np.int64), "type ndarray"),
    "a bare tuple": ((np.ones((2, 1), np.int64), None, False), "type tuple"),
}


@pytest.mark.parametrize("name", GOOD)
def test_usable_proposals_get_through_unchanged(name: str) -> None:
    found, faults = checked([GOOD[name], good(), None], ROWS, VOCAB)
    assert found[0] is GOOD[name] and found[1] is not None and found[2] is None and not faults


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_costs_its_row_alone(name: str) -> None:
    bad, reason = FAULTY[name]
    fine = good(4, 1)
    found, faults = checked([fine, bad, None], ROWS, VOCAB)
    assert found[0] is fine and found[1] is None and list(faults) == [1]
    assert reason in faults[1]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([good()], "1 proposals for 3 rows"),
        ([good()] * 4, "4 proposals for 3 rows"),
        ([], "0 proposals"),
        (None, "NoneType"),
        ({0: good()}, "dict"),
        (good(), "3 rows|2 proposals|type"),
    ],
)
def test_answers_that_belong_to_no_rows_cost_all_rows(answer: object, reason: str) -> None:
    found, faults = checked(answer, ROWS, VOCAB)
    assert found == [None] * 3 and sorted(faults) == [0, 1, 2]
    assert any(part in faults[0] for part in reason.split("|"))


@given(st.lists(st.sampled_from([*GOOD.values(), *[bad for bad, _ in FAULTY.values()]]), max_size=6))
def test_all_faults_are_found_in_any_company(answer: list[Any]) -> None:
    faulty = {id(bad) for bad, _ in FAULTY.values()}
    found, faults = checked(answer, [ROWS[0]] * len(answer), VOCAB)
    for index, (given_one, kept) in enumerate(zip(answer, found, strict=True)):
        is_bad = id(given_one) in faulty
        assert (index in faults) is is_bad
        assert kept is (None if is_bad else given_one)


@pytest.mark.parametrize("tokens", [[0], (1, VOCAB - 1), [np.int64(3)]])
def test_usable_continuations(tokens: Any) -> None:
    assert continuation_fault(tokens, VOCAB) == ""


@pytest.mark.parametrize("tokens", [[], [VOCAB], [1, -1], ["a"], [1.5], 7, None])
def test_faulty_continuations(tokens: Any) -> None:
    assert "continuation" in continuation_fault(tokens, VOCAB)
