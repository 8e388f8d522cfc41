"""Page's test for a shift."""

import numpy as np
import pytest

from wager.policy.calibration import ShiftTest


def first_alarm(test: ShiftTest, deviations: np.ndarray) -> int | None:
    return next((i for i, deviation in enumerate(deviations.tolist()) if test.add(deviation)), None)


def test_chance_raises_no_alarm() -> None:
    noise = np.random.default_rng(0).standard_normal(3000)
    assert first_alarm(ShiftTest(slack=1.0, alarm=8.0), noise) is None


@pytest.mark.parametrize("shift", [2.0, -2.0])
def test_a_shift_either_way_does_and_soon(shift: float) -> None:
    noise = np.random.default_rng(1).standard_normal(100)
    found = first_alarm(ShiftTest(slack=1.0, alarm=8.0), noise + shift)
    assert found is not None
    assert 2 <= found <= 30


def test_one_wild_sample_is_not_a_shift() -> None:
    test = ShiftTest(slack=0.5, alarm=8.0)
    assert not test.add(1e9)
    assert not any(test.add(0.0) for _ in range(50))


def test_after_an_alarm_it_starts_anew() -> None:
    test = ShiftTest(slack=0.0, alarm=8.0)
    alarms = [test.add(3.0) for _ in range(6)]
    assert alarms == [False, False, True, False, False, True]
