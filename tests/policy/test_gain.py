"""The slow mean that jumps when the ground has moved, and the backed-off probe."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.policy.gain import TRIAL, Probe, SteadyMean


def test_the_prior_is_a_few_samples_heavy() -> None:
    mean = SteadyMean(1.0, prior_weight=2.0)
    assert mean.value == 1.0
    mean.add(4.0)
    assert mean.value == pytest.approx(2.0)


def test_noise_alone_does_not_make_it_jump() -> None:
    random, mean = np.random.default_rng(1), SteadyMean(1.0)
    values = []
    for sample in random.normal(1.0, 1.0, 4000).tolist():
        mean.add(sample)
        values.append(mean.value)
    late = np.array(values[500:])
    assert late.std() < 0.1
    assert np.abs(np.diff(late)).max() < 0.1


@pytest.mark.parametrize(("before", "after"), [(2.0, 0.0), (0.0, 2.0)])
def test_a_shift_is_believed_within_tens_of_samples(before: float, after: float) -> None:
    random, mean = np.random.default_rng(2), SteadyMean(0.5)
    for sample in random.normal(before, 0.5, 1000).tolist():
        mean.add(sample)
    assert mean.value == pytest.approx(before, abs=0.1)
    for sample in random.normal(after, 0.5, 40).tolist():
        mean.add(sample)
    assert mean.value == pytest.approx(after, abs=0.4)


def test_without_a_shift_it_remembers_no_more_than_its_memory() -> None:
    mean = SteadyMean(0.0, memory=50.0)
    for _ in range(500):
        mean.add(0.3)
    assert mean.count == 50.0
    assert mean.value == pytest.approx(0.3, abs=1e-3)


def test_a_restart_goes_on_from_the_last_few_samples() -> None:
    mean = SteadyMean(0.0)
    for sample in [1.0, -1.0] * 150 + [1.0] * 5:
        mean.add(sample)
    assert abs(mean.value) < 0.1
    mean.restart()
    assert 0.5 < mean.value < 1.0
    assert mean.count < 20.0


def test_a_copy_starts_where_the_first_one_is_but_moves_alone() -> None:
    mean = SteadyMean(0.0)
    for _ in range(300):
        mean.add(1.0)
    other = mean.copy()
    assert other.value == mean.value
    other.add(-8.0)
    assert other.value < 0.3
    assert mean.value == pytest.approx(1.0, abs=0.05)


def waits(probe: Probe) -> int:
    """Steps until the probe is due."""
    steps = 1
    while not probe.due():
        steps += 1
    return steps


def test_losing_doubles_the_wait_up_to_the_longest() -> None:
    probe, seen = Probe(longest=16), []
    for _ in range(7):
        seen.append(waits(probe))
        probe.result(won=False)
    assert seen == [1, 2, 4, 8, 16, 16, 16]


def test_winning_shrinks_the_wait() -> None:
    probe = Probe(longest=64)
    for _ in range(6):
        probe.result(won=False)
    seen = []
    for _ in range(5):
        seen.append(waits(probe))
        probe.result(won=True)
    assert seen[0] == 64
    assert seen[1] <= 16
    assert seen[-1] == 1


def test_several_looks_in_a_row() -> None:
    probe, due = Probe(longest=8, looks=3), []
    for _ in range(24):
        due.append(probe.due())
        if due[-1]:
            probe.result(won=False)
    shown = "".join(".x"[one] for one in due)
    assert shown == "xxx.xxx...xxx.......xxx."
    probe.result(won=True)
    assert probe.interval == 1 and probe.due()
    for _ in range(3):
        probe.result(won=False, price=0.02)
    assert [probe.due() for _ in range(2)] == [False, True]


def test_where_looks_are_dear_the_wait_grows_at_once() -> None:
    probe, seen = Probe(longest=48, looks=1), []
    for _ in range(6):
        seen.append(waits(probe))
        probe.result(won=False, price=2.0)
    assert seen == [1, 50, 100, 200, 400, 400], "a look of two plain steps every 400: half a percent"


def test_a_large_crowd_looks_once_and_waits_for_its_whole_price() -> None:
    probe, seen = Probe(longest=48, looks=3), []
    for _ in range(3):
        seen.append(waits(probe))
        probe.result(won=False, price=2.0, num_rows=64)
    assert seen == [1, 6400, 6400], "a sixteenth of half a percent of the time"
    probe.result(won=True, price=2.0, num_rows=64)
    assert probe.interval == 6400, "a look that wins costs as much: what comes of it will show"
    for _ in range(12):
        probe.paid()
    assert probe.due()


def test_a_crowd_tries_for_some_steps_whatever_they_show() -> None:
    """The first is dear, those behind it gain: what all cost together is waited for, half a percent."""
    probe, seen = Probe(longest=48, looks=3), []
    for price in (3.0, -0.5, -0.5, 0.0, 3.0):
        seen.append(waits(probe))
        probe.result(won=price < 0.0, price=price, num_rows=16)
    assert seen == [1] * TRIAL + [400]


def test_a_crowd_that_drafts_ends_its_trial() -> None:
    probe = Probe(longest=48, looks=3)
    for _ in range(TRIAL):
        probe.result(won=False, price=0.5, num_rows=16)
    assert probe.interval == 400
    assert waits(probe) == 400
    probe.result(won=True, price=0.5, num_rows=16)
    probe.paid()
    assert waits(probe) == 200, "one more look would be due at once otherwise"


def test_a_due_probe_stays_due_until_it_has_a_result() -> None:
    probe = Probe()
    probe.result(won=False)
    assert [probe.due() for _ in range(4)] == [False, True, True, True]


@given(st.lists(st.booleans(), max_size=50), st.integers(1, 100))
@settings(deadline=None, max_examples=60)
def test_the_wait_keeps_its_bounds(results: list[bool], longest: int) -> None:
    probe = Probe(longest)
    for won in results:
        probe.result(won=won)
        assert 1 <= probe.interval <= longest
