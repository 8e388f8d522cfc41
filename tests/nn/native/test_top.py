"""The best tokens of a row natively: as a sort of the log-probabilities would have them, ties included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.nn.native.nets import CASES, make_decoder, make_drafter, off
from wager.draft.scores import best
from wager.nn.models.decoder import Decoder
from wager.nn.native.library import Library
from wager.nn.native.loader import PassOptions
from wager.nn.native.top import MAX_RANKS, NativeTop


def scores_of(rows: int, columns: int, seed: int, step: float = 0.0) -> Tensor:
    """Random scores; with a `step` many of them are equal."""
    found = 4.0 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return (found / step).round() * step if step else found


def sorted_best(scores: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """What is asked for, in float64; of equal scores the lower index first."""
    values, places = scores.double().log_softmax(dim=1).sort(dim=1, descending=True, stable=True)
    return values[:, :ranks], places[:, :ranks]


@given(
    rows=st.integers(1, 9),
    columns=st.sampled_from([1, 7, 37, 64, 101, 512, 1000]),
    ranks=st.integers(1, MAX_RANKS),
    step=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=80)
def test_as_a_sort_would_have_it(
    library: Library, rows: int, columns: int, ranks: int, step: float, seed: int
) -> None:
    ranks, scores = min(ranks, columns), scores_of(rows, columns, seed, step)
    logprobs, token_ids = NativeTop(library)(scores, ranks)
    values, places = sorted_best(scores, ranks)
    assert torch.equal(token_ids, places)
    assert logprobs.double() == pytest.approx(values, abs=2e-5)


def test_threads_and_company_change_nothing(library: Library) -> None:
    top, scores = NativeTop(library), scores_of(40, 8192, seed=1)
    torch.set_num_threads(2)
    logprobs, token_ids = top(scores, 8)
    for row in range(0, 40, 7):
        alone = top(scores[row : row + 1], 8)
        assert torch.equal(alone[0][0], logprobs[row]) and torch.equal(alone[1][0], token_ids[row])


def test_what_is_not_offered_and_what_is_no_number(library: Library) -> None:
    scores = scores_of(2, 101, seed=2)
    scores[0, 50:] = -torch.inf
    scores[1, 77] = torch.nan
    logprobs, token_ids = NativeTop(library)(scores, 8)
    values, places = sorted_best(scores[:1], 8)
    assert torch.equal(token_ids[:1], places) and logprobs[:1].double() == pytest.approx(values, abs=2e-5)
    assert logprobs[1].isnan().all(), "a broken row must show"


def test_others_are_served_by_torch(library: Library) -> None:
    top, scores = NativeTop(library), scores_of(4, 128, seed=3)
    assert top.fits(scores, 8) and not top.fits(scores.double(), 8)
    assert not top.fits(scores, MAX_RANKS + 1) and not top.fits(scores.T, 8)
    for one in (scores, scores.double(), scores_of(128, 4, seed=4).T):
        got, want = best(one, 8, top), best(one, 8)
        assert torch.equal(got.token_ids, want.token_ids)
        assert got.logprobs == pytest.approx(want.logprobs, abs=2e-5)


@pytest.mark.parametrize(("weights", "is_apart"), [("auto", True), ("full", False), ("int8", False)])
def test_a_head_for_guesses(ready: Library, weights: str, is_apart: bool) -> None:
    """Guesses may be scored by narrow weights; the target's own choices never are unless asked for."""
    native, exact = make_decoder(CASES["odd"], PassOptions("on", weights))
    hidden = torch.randn(5, 48, generator=torch.Generator().manual_seed(0))
    head = native.draft_head(())
    assert head is not None and torch.equal(native.logits(hidden), head(hidden)) != is_apart
    assert off(head(hidden), exact.logits(hidden.double())) < (0.15 if is_apart else 0.05)
    few = native.draft_head((7, 3, 40))
    assert few is not None and native.draft_head((7, 3, 40)) is few, "made once"
    if is_apart:
        assert few.token_ids is not None and few.token_ids.tolist() == [7, 3, 40]
        assert torch.equal(few(hidden), head(hidden)[:, [7, 3, 40]])
    if weights != "int8":
        assert off(native.logits(hidden), exact.logits(hidden.double())) < 1e-5
    assert exact.draft_head(()) is None, "plain torch has no other head"


@pytest.mark.parametrize(("weights", "kept"), [("auto", "int8"), ("full", "float32"), ("int8", "int8")])
def test_a_network_that_only_guesses(ready: Library, weights: str, kept: str) -> None:
    options = PassOptions("on", weights, is_drafter=True)
    assert f"{kept} weights" in str(make_drafter(CASES["odd"], options).native.layout)
    decoder: Decoder = make_decoder(CASES["odd"], options).native
    assert f"{kept} weights" in str(decoder.layout) and decoder.top is not None
