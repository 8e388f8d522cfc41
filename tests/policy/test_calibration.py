"""From draft probability to acceptance probability."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wager.policy.base import Evidence
from wager.policy.calibration import Calibrator, reached_depths

LOGPROBS = hnp.arrays(np.float32, (6, 3), elements=st.floats(-30.0, 0.0, width=32))
GRID = np.log(np.linspace(0.02, 0.98, 25))[None, :]


def logit(probability: np.ndarray) -> np.ndarray:
    return np.log(probability / (1.0 - probability))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-logits))


def teach(calibrator: Calibrator, weights: tuple[float, float], drafts: int, seed: int = 0) -> None:
    """Chains whose guesses stand with the probability that a logistic map makes of what they claim."""
    random = np.random.default_rng(seed)
    for _ in range(drafts):
        claimed = random.uniform(0.05, 0.98, 6)
        hits = random.random(6) < sigmoid(weights[0] + weights[1] * logit(claimed))
        reached = 6 if hits.all() else int(hits.argmin()) + 1
        ranks = np.where(hits[:reached], 0, -1)
        calibrator.learn(Evidence("draft", "", np.log(claimed[:reached, None]), ranks))


def test_it_starts_by_believing_the_drafter() -> None:
    claimed = np.linspace(0.01, 0.99, 40)[:, None]
    assert Calibrator().acceptance(np.log(claimed)) == pytest.approx(claimed, abs=1e-6)


@given(LOGPROBS, st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3))
@settings(deadline=None, max_examples=80)
def test_never_above_certainty_and_always_finite(logprobs: np.ndarray, weights: list[float]) -> None:
    calibrator = Calibrator()
    calibrator.weights = weights
    logs = calibrator.log_acceptance(logprobs)
    assert logs.shape == logprobs.shape
    assert np.isfinite(logs).all()
    assert (logs < 0.0).all()


def test_offsets_follow_the_weights_and_the_number_of_depths() -> None:
    calibrator, claims = Calibrator(), np.full((7, 1), np.log(0.5))
    for num_depths, weights in [(2, [1.0, 1.0, 2.0]), (7, [1.0, 1.0, 2.0]), (3, [-1.0, 1.0, 0.5])]:
        calibrator.weights = weights
        depth = np.minimum(np.arange(num_depths), 4) / 4
        wanted = sigmoid(weights[0] + weights[2] * depth)
        assert calibrator.acceptance(claims[:num_depths])[:, 0] == pytest.approx(wanted)


def test_certainty_and_impossibility_stay_usable() -> None:
    extremes = Calibrator().acceptance(np.array([[0.0, -np.inf]]))
    assert 0.99 < extremes[0, 0] < 1.0
    assert extremes[0, 1] == 0.0  # not offered


@pytest.mark.parametrize("weights", [(-1.5, 1.0), (0.0, 0.5), (-1.0, 0.6), (1.0, 1.3)])
def test_a_drafter_that_is_wrong_by_a_logistic_map_is_corrected(weights: tuple[float, float]) -> None:
    calibrator = Calibrator()
    truth = sigmoid(weights[0] + weights[1] * logit(np.exp(GRID)))
    before = np.abs(calibrator.acceptance(GRID) - truth).mean()
    teach(calibrator, weights, 600)
    after = np.abs(calibrator.acceptance(GRID) - truth).mean()
    assert calibrator.num_drafts == 600
    assert after < 0.06
    assert after < 0.6 * before


def test_most_of_an_over_confidence_is_gone_after_fifty_drafts() -> None:
    calibrator = Calibrator()
    truth = sigmoid(-1.5 + logit(np.exp(GRID)))
    before = np.abs(calibrator.acceptance(GRID) - truth).mean()
    teach(calibrator, (-1.5, 1.0), 50)
    assert np.abs(calibrator.acceptance(GRID) - truth).mean() < 0.4 * before


def test_an_honest_drafter_stays_believed() -> None:
    calibrator = Calibrator()
    teach(calibrator, (0.0, 1.0), 600)
    assert calibrator.acceptance(GRID) == pytest.approx(np.exp(GRID), abs=0.12)


def test_it_follows_when_the_drafter_changes() -> None:
    calibrator = Calibrator()
    teach(calibrator, (1.0, 1.0), 500)
    teach(calibrator, (-1.5, 1.0), 300, seed=1)
    truth = sigmoid(-1.5 + logit(np.exp(GRID)))
    assert np.abs(calibrator.acceptance(GRID) - truth).mean() < 0.1


@pytest.mark.parametrize("weights", [(0.0, 1.0), (-1.5, 1.0), (0.0, 0.4)])
def test_what_is_claimed_likelier_stays_likelier(weights: tuple[float, float]) -> None:
    calibrator = Calibrator()
    teach(calibrator, weights, 300)
    assert (np.diff(calibrator.log_acceptance(GRID)) > 0.0).all()


def test_depth_is_learned_apart_from_the_claim() -> None:
    calibrator, random = Calibrator(), np.random.default_rng(3)
    stands = np.array([0.9, 0.8, 0.6, 0.5, 0.4, 0.4])
    for _ in range(800):
        hits = random.random(6) < stands
        reached = 6 if hits.all() else int(hits.argmin()) + 1
        ranks = np.where(hits[:reached], 0, -1)
        calibrator.learn(Evidence("draft", "", np.full((reached, 1), np.log(0.7)), ranks))
    learned = calibrator.acceptance(np.full((6, 1), np.log(0.7)))[:, 0]
    assert learned[0] > 0.75
    assert learned[4] < 0.55
    assert learned[4] == learned[5]


def test_every_candidate_of_a_reached_depth_teaches() -> None:
    """Two candidates that claim as much: the second one standing must raise both alike, not lower the map."""
    second, none = Calibrator(), Calibrator()
    claims = np.log(np.full((1, 2), 0.3))
    for _ in range(50):
        second.learn(Evidence("draft", "", claims, np.array([1])))
        none.learn(Evidence("draft", "", claims, np.array([-1])))
    assert second.acceptance(claims)[0].tolist() == pytest.approx([0.5, 0.5], abs=0.05)
    assert (none.acceptance(claims) < 0.15).all()


def test_the_candidate_that_stood_is_the_one_that_gains() -> None:
    calibrator, claims = Calibrator(), np.log(np.array([[0.6, 0.2]]))
    for _ in range(50):
        calibrator.learn(Evidence("draft", "", claims, np.array([1])))
    first, second = calibrator.acceptance(claims)[0]
    assert first < 0.4
    assert second > 0.6


@pytest.mark.parametrize(
    ("ranks", "spine_only", "reached"),
    [
        ([], False, 0),
        ([0, 2, 1], False, 3),
        ([0, 2, -1, 0], False, 3),
        ([0, 2, 1], True, 2),
        ([0, 0, 0], True, 3),
        ([-1, 0, 0], True, 1),
    ],
)
def test_reached_depths(ranks: list[int], spine_only: bool, reached: int) -> None:
    assert reached_depths(np.array(ranks, np.int64), spine_only=spine_only) == reached


def test_depths_that_were_not_reached_teach_nothing() -> None:
    cut, whole = Calibrator(), Calibrator()
    claims = np.log(np.full((4, 2), 0.4))
    cut.learn(Evidence("draft", "", claims[:2], np.array([0, -1])))
    whole.learn(Evidence("draft", "", claims, np.array([0, -1, 0, 0])))
    assert cut.weights == whole.weights


def test_evidence_without_probabilities_is_passed_over() -> None:
    calibrator = Calibrator()
    calibrator.learn(Evidence("lookup", "", None, np.array([0, 0])))
    calibrator.learn(Evidence("draft", "", np.empty((0, 2)), np.empty(0, np.int64)))
    assert (calibrator.weights, calibrator.num_drafts) == ([0.0, 1.0, 0.0], 0)


def test_a_surprise_is_signed_and_becomes_a_shift_when_it_lasts() -> None:
    calibrator, claims = Calibrator(), np.log(np.full((4, 1), 0.5))
    assert calibrator.learn(Evidence("draft", "", claims, np.array([0, 0, 0, 0]))).deviation > 1.0
    assert calibrator.learn(Evidence("draft", "", claims[:1], np.array([-1]))).deviation < -0.5
    assert calibrator.learn(Evidence("lookup", "", None, np.array([0]))) == (0.0, False)
    teach(calibrator, (2.0, 1.0), 300)
    misses = Evidence("draft", "", np.log(np.full((1, 1), 0.9)), np.array([-1]))
    assert any(calibrator.learn(misses).shifted for _ in range(15))


def test_a_copy_learns_alone() -> None:
    calibrator = Calibrator()
    teach(calibrator, (-1.5, 1.0), 100)
    kept = list(calibrator.weights)
    other = calibrator.copy()
    assert other.weights == kept
    teach(other, (2.0, 1.0), 50)
    assert calibrator.weights == kept
    assert other.weights != kept
