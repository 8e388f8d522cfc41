"""Acceptance by depth, from reached depths alone."""

import numpy as np
import pytest

from wager.policy.survival import MAX_DEPTH, Survival, chain_curve


def test_before_the_first_draft_it_is_the_prior() -> None:
    assert Survival(prior=0.7).rates(3).tolist() == [0.7] * 3


def test_depths_behind_a_refusal_were_never_tried() -> None:
    survival = Survival(fade=1.0, prior_weight=1e-9)
    for _ in range(10):
        survival.observe(1, 5)
    rates = survival.rates(5)
    assert rates[:2] == pytest.approx([1.0, 0.0], abs=1e-6)
    assert rates[2:] == pytest.approx([0.5] * 3, abs=1e-6)  # the pooled rate: one stood, one fell


def test_a_full_acceptance_adds_no_refusal() -> None:
    survival = Survival(fade=1.0)
    for _ in range(100):
        survival.observe(4, 4)
    assert (survival.rates(4) > 0.98).all()


def test_true_rates_are_found() -> None:
    survival, random = Survival(fade=0.999), np.random.default_rng(0)
    truth = np.array([0.9, 0.7, 0.5])
    for _ in range(3000):
        hits = random.random(3) < truth
        survival.observe(3 if hits.all() else int(hits.argmin()), 3)
    assert survival.rates(3) == pytest.approx(truth, abs=0.08)


def test_phases_are_separate_and_old_evidence_fades() -> None:
    survival = Survival()
    for _ in range(200):
        survival.observe(3, 3, "code")
        survival.observe(0, 3, "prose")
    assert survival.rates(1, "code")[0] > 0.95
    assert survival.rates(1, "prose")[0] < 0.05
    for _ in range(150):
        survival.observe(0, 3, "code")
    assert survival.rates(1, "code")[0] < 0.1


def test_one_among_others() -> None:
    others, own = np.array([0.9, 0.8, 0.7]), Survival(fade=1.0, prior_weight=2.0)
    assert own.among(others).tolist() == others.tolist()
    for _ in range(6):
        own.observe(0, 3)
    assert own.among(others) == pytest.approx([1.8 / 8, 0.8, 0.7]), "deeper guesses were never tried"
    assert own.among(others, "another phase").tolist() == others.tolist()


def test_the_curve_of_a_chain_adds_up_the_chances_of_its_prefixes() -> None:
    assert chain_curve(np.array([0.5, 0.5, 1.0])) == pytest.approx([0.5, 0.75, 1.0])


def test_drafts_deeper_than_the_table_are_cut() -> None:
    survival = Survival()
    survival.observe(MAX_DEPTH + 9, MAX_DEPTH + 9)
    assert survival.rates(MAX_DEPTH + 9).shape == (MAX_DEPTH,)
