"""What drafts yield: classes of confidence, curves, requests of their own, and phases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.situations import Expected, calibrator, claims, expected
from wager.policy import Draft, Evidence, Row
from wager.policy.survival import Survival
from wager.policy.yields import (
    CLASS_EDGES,
    CURVE_NODES,
    NUM_CLASSES,
    YOUNG_STEPS,
    Yields,
    curve_of,
    options,
)
from wager.tree import build_forest

ROW = Row("r")


def learn(yields: Yields, row: Row, draft: Draft, times: int = 1) -> None:
    for _ in range(times):
        yields.learn_draft(row, draft, 1, with_curve=True)
        yields.step(row.request_id)


def random_draft(seed: int, depths: int = 6) -> Draft:
    random = np.random.default_rng(seed)
    probs = -np.sort(-random.dirichlet(np.full(5, random.uniform(0.1, 2.0)), depths), axis=1)[:, :4]
    return Draft("draft", depths, np.log(np.maximum(probs, 1e-12)))


def assert_sound(found: Expected) -> None:
    """Frequencies are a distribution; curves never fall and a node is worth less than the one before it."""
    assert found.frequencies.sum() == pytest.approx(1.0)
    assert (found.frequencies >= 0.0).all()
    assert (np.diff(found.curves, axis=1) >= -1e-12).all()
    assert (np.diff(found.mean, n=2) <= 1e-9).all()
    assert found.curves.min() >= 0.0
    assert found.mean.shape == (CURVE_NODES,)


def test_before_the_first_draft_a_chain_of_even_chances_is_expected() -> None:
    found = expected(Yields(Survival()), ROW, "draft")
    assert found.mean[:3] == pytest.approx([0.5, 0.75, 0.875])
    assert_sound(found)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=40))
@settings(deadline=None, max_examples=40)
def test_curves_are_sound_whatever_was_seen(seeds: list[int]) -> None:
    yields = Yields(Survival())
    for seed in seeds:
        learn(yields, ROW, random_draft(seed))
    for depth in (0, *yields.depths("draft", "")):
        assert_sound(expected(yields, ROW, "draft", depth))
    whole, half = (expected(yields, ROW, "draft", depth).mean for depth in (0, 3))
    assert (half <= whole + 1e-9).all(), "a shorter draft yields no more"


@given(st.floats(0.02, 0.98), st.integers(1, 16))
@settings(deadline=None, max_examples=40)
def test_a_drafter_whose_drafts_are_all_alike_yields_what_they_claim(chance: float, depths: int) -> None:
    yields, draft = Yields(Survival()), claims(chance, depths)
    assert draft.logprobs is not None
    learn(yields, ROW, draft, 300)
    found = expected(yields, ROW, "draft")
    calibrated = calibrator(yields).acceptance(draft.logprobs)[:, 0]
    want = calibrated.cumprod().cumsum()
    seen = found.curves[int(found.frequencies.argmax())]
    assert seen[:depths] == pytest.approx(want, rel=0.02)
    assert (seen <= depths + 1e-9).all()
    assert found.mean[depths - 1] == pytest.approx(want[-1], rel=0.25, abs=0.05)


def test_classes_are_kept_apart_so_that_a_seen_draft_may_be_better_than_the_mean() -> None:
    yields = Yields(Survival())
    for _ in range(100):
        learn(yields, ROW, claims(0.05))
        learn(yields, ROW, claims(0.9))
    found = expected(yields, ROW, "draft")
    poor, good = np.argsort(found.frequencies)[-2:].tolist()
    low, high = sorted((found.curves[poor][7], found.curves[good][7]))
    assert low < 0.1 and high > 4.0
    assert found.frequencies[[poor, good]] == pytest.approx([0.5, 0.5], abs=0.05)


def test_every_class_begins_at_its_own_middle() -> None:
    """One draft of one class says what to expect of the others: more confidence, more tokens."""
    yields = Yields(Survival())
    learn(yields, ROW, claims(0.5))
    curves = expected(yields, ROW, "draft").curves
    assert (np.diff(curves[:, CURVE_NODES - 1]) > 0.0).all()
    assert len(curves) == NUM_CLASSES == len(CLASS_EDGES) + 1


def test_a_request_begins_with_the_common_frequencies_and_grows_its_own() -> None:
    yields, own, other = Yields(Survival()), Row("own"), Row("other")
    learn(yields, other, claims(0.1), 60)
    learn(yields, own, claims(0.9), YOUNG_STEPS)
    before = expected(yields, Row("new"), "draft").mean[7]
    learn(yields, own, claims(0.9), 30)
    assert expected(yields, own, "draft").mean[7] > 2.0 * expected(yields, other, "draft").mean[7]
    assert before > expected(yields, other, "draft").mean[7]
    yields.forget("own")
    forgotten, new = expected(yields, own, "draft"), expected(yields, Row("new"), "draft")
    assert forgotten.frequencies.tolist() == new.frequencies.tolist()


def test_own_drafts_are_shrunk_to_the_common_ones() -> None:
    yields = Yields(Survival())
    learn(yields, Row("other"), claims(0.05), 100)
    means = []
    for _ in range(YOUNG_STEPS):
        means.append(float(expected(yields, ROW, "draft").mean[7]))
        learn(yields, ROW, claims(0.9))
    assert (np.diff(means) > 0.0).all(), "each draft of its own counts, and none decides alone"
    assert means[1] < 0.5 * means[-1]


def test_what_a_request_showed_long_ago_counts_for_less() -> None:
    yields = Yields(Survival())
    learn(yields, Row("other"), claims(0.05), 100)
    learn(yields, ROW, claims(0.9), 30)
    late = float(expected(yields, ROW, "draft").mean[7])
    for _ in range(600):
        yields.step("r")
    assert float(expected(yields, ROW, "draft").mean[7]) < 0.5 * late


def test_the_first_drafts_of_an_answer_are_learned_apart() -> None:
    yields = Yields(Survival())
    for i in range(40):
        learn(yields, Row(i), claims(0.05), YOUNG_STEPS)
        learn(yields, Row(i), claims(0.9), YOUNG_STEPS)
    young = expected(yields, Row("new"), "draft").mean[7]
    for _ in range(YOUNG_STEPS):
        yields.step("new")
    assert expected(yields, Row("new"), "draft").mean[7] > 5.0 * young


def test_a_row_near_its_end_teaches_nothing() -> None:
    yields = Yields(Survival())
    yields.learn_draft(Row("r", max_depth=3), claims(0.9), 1, with_curve=True)
    assert expected(yields, ROW, "draft").mean[0] == 0.5


def test_grades_and_phases_are_learned_apart_and_begin_as_their_kin() -> None:
    yields = Yields(Survival())
    code, prose = Row("r", phase="code"), Row("r", phase="prose")
    long = Row("r", phase="code", drafters=("draft",), grades=("/long",))
    learn(yields, code, claims(0.9), 60)
    assert expected(yields, prose, "draft").mean[7] > 3.0, "as far as is known"
    learn(yields, prose, claims(0.05), 60)
    assert expected(yields, prose, "draft").mean[7] < 0.5
    assert expected(yields, code, "draft").mean[7] > 3.0
    learn(yields, long, claims(0.05), 60)
    assert expected(yields, long, "draft").mean[7] < 0.5 < expected(yields, code, "draft").mean[7]


@pytest.mark.parametrize("with_curve", [True, False])
def test_many_drafts_of_a_step_count_without_their_curves(with_curve: bool) -> None:
    yields = Yields(Survival())
    learn(yields, ROW, claims(0.5))
    for _ in range(40):
        yields.learn_draft(ROW, claims(0.95), 40, with_curve=with_curve)
    found = expected(yields, ROW, "draft")
    assert int(found.frequencies.argmax()) == NUM_CLASSES - 1


def test_a_changed_drafter_is_believed_sooner() -> None:
    """Where the calibration finds that a drafter changed, the past counts for a few drafts only."""
    yields, claim = Yields(Survival()), np.full((4, 1), np.log(0.9))
    learn(yields, ROW, claims(0.9, 4), 100)
    for _ in range(12):
        yields.learn_evidence(Evidence("draft", "", claim[:1], np.array([-1]), request_id="r"))
        learn(yields, ROW, claims(0.9, 4))
    assert expected(yields, ROW, "draft").mean[3] < 1.8


def test_drafts_without_probabilities_yield_what_survived() -> None:
    survival = Survival()
    yields, others = Yields(survival), Row("other", drafters=("copy",))
    for _ in range(60):
        survival.observe(9, 9, ("copy", ""))
    row = Row("r", drafters=("copy",))
    assert expected(yields, others, "copy").mean[8] > 7.0
    for _ in range(30):
        yields.learn_evidence(Evidence("copy", "", None, np.array([-1]), request_id="r"))
    assert expected(yields, row, "copy").mean[8] < 1.5, "this request has no copies"
    assert expected(yields, others, "copy").mean[8] > 7.0
    rates = np.exp(yields.log_acceptance(others, Draft("copy", 5)))
    assert rates.shape == (5, 1) and (rates > 0.9).all()


@pytest.mark.parametrize(
    ("full", "found"),
    [(16, (8, 4)), (15, (8, 4)), (8, (4, 2)), (4, (2,)), (3, (2,)), (2, ()), (1, ()), (0, ())],
)
def test_depths_worth_asking_for(full: int, found: tuple[int, ...]) -> None:
    assert options(full) == found


def test_short_drafts_move_with_what_they_show() -> None:
    """A draft of half the depth says nothing of deeper guesses, which are taken to move along."""
    yields = Yields(Survival())
    learn(yields, ROW, claims(0.9, 8), 60)
    short = claims(0.9, 4)
    whole = float(expected(yields, ROW, "draft").mean[7])
    learn(yields, ROW, short, 60)
    assert expected(yields, ROW, "draft").mean[7] == pytest.approx(whole, rel=0.1)
    assert yields.depths("draft", "") == (4, 2)


@given(st.integers(0, 999), st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_a_curve_adds_up_the_best_nodes_within_its_depth(seed: int, depth: int) -> None:
    draft = random_draft(seed)
    forest = build_forest(np.asarray(draft.logprobs, np.float64)[None], CURVE_NODES)
    curve = curve_of(forest, depth)
    probs = np.sort(forest.path_probs[forest.depth <= depth])[::-1]
    assert curve[: len(probs)] == pytest.approx(probs.cumsum())
    assert curve[-1] == pytest.approx(probs.sum())
    assert curve[-1] <= depth + 1e-9
