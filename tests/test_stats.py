"""The moving average and the speculation counts."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.errors import ConfigError, InputError
from wager.stats import ExponentialMovingAverage, SpeculationStats

STEPS = st.lists(
    st.integers(0, 16).flatmap(
        lambda drafted: st.tuples(
            st.integers(0, drafted), st.just(drafted), st.floats(0, 10), st.floats(0, 10)
        )
    ),
    max_size=40,
)


def test_a_request_that_ends_on_a_guess_emits_no_bonus() -> None:
    stats = SpeculationStats()
    stats.record(2, 4)
    stats.record(3, 4, emitted=3)
    assert (stats.accepted, stats.emitted, stats.tokens_per_step) == (5, 6, 3.0)
    for emitted in (2, 5):
        with pytest.raises(InputError, match="emitted"):
            stats.record(3, 4, emitted=emitted)
    assert stats.steps == 2


def recorded(steps: list[tuple[int, int, float, float]]) -> SpeculationStats:
    stats = SpeculationStats()
    for step in steps:
        stats.record(*step)
    return stats


def test_first_sample_initialises_and_later_ones_move_by_alpha() -> None:
    average = ExponentialMovingAverage()
    assert (average.alpha, average.value, average.count) == (0.1, None, 0)
    assert average.update(3.0) == 3.0
    assert average.update(13.0) == pytest.approx(4.0)
    assert (average.value, average.count) == (pytest.approx(4.0), 2)


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.5, math.nan, True, "x"])
def test_bad_alpha_is_named(alpha: object) -> None:
    with pytest.raises(ConfigError) as caught:
        ExponentialMovingAverage(alpha)  # type: ignore[arg-type]
    assert caught.value.field == "alpha"


@pytest.mark.parametrize("sample", [math.nan, math.inf])
def test_a_sample_that_would_stay_for_ever_is_refused(sample: float) -> None:
    average = ExponentialMovingAverage()
    average.update(1.0)
    with pytest.raises(InputError):
        average.update(sample)
    assert (average.value, average.count) == (1.0, 1)


def test_merged_averages_weigh_by_count() -> None:
    left, right, empty = ExponentialMovingAverage(), ExponentialMovingAverage(), ExponentialMovingAverage()
    left.update(1.0)
    for _ in range(3):
        right.update(5.0)
    left.merge(empty)
    assert (left.value, left.count) == (1.0, 1)
    left.merge(right)
    assert (left.value, left.count) == (pytest.approx(4.0), 4)
    empty.merge(left)
    assert (empty.value, empty.count) == (left.value, 4)


def test_counts_rates_and_histogram() -> None:
    stats = recorded([(3, 4, 0.2, 0.8), (0, 4, 0.2, 0.2), (0, 0, 0.1, 0.1), (4, 4, 0.3, 1.0)])
    assert (stats.steps, stats.drafted_steps, stats.accepted, stats.drafted) == (4, 3, 7, 12)
    assert stats.emitted == 7 + 4
    assert stats.acceptance == pytest.approx(7 / 12)
    assert stats.acceptance_histogram == [1, 0, 0, 1, 1]
    assert stats.acceptance_by_depth == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1 / 3])
    assert stats.tokens_per_step == pytest.approx(11 / 4)
    assert stats.speedup == pytest.approx(2.1 / 0.8)
    assert stats.acceptance_ema.value == pytest.approx(0.675 + 0.1 * (1 - 0.675))


def test_speedup_is_measured_and_not_invented() -> None:
    stats = recorded([(3, 4, 0.2, 0.0)])
    assert stats.speedup is None
    assert "plain" not in str(stats)


def test_empty_statistics_have_no_division_by_zero() -> None:
    stats = SpeculationStats()
    assert (stats.acceptance, stats.tokens_per_step, stats.speedup, stats.acceptance_by_depth) == (
        0.0,
        0.0,
        None,
        [],
    )
    assert "0 steps" in str(stats)


@pytest.mark.parametrize(
    "step", [(5, 4, 0.0, 0.0), (-1, 4, 0.0, 0.0), (1, 2, -1.0, 0.0), (1, 2, 0.0, math.nan)]
)
def test_impossible_steps_are_refused_and_not_counted(step: tuple[int, int, float, float]) -> None:
    stats = SpeculationStats()
    with pytest.raises(InputError):
        stats.record(*step)
    assert stats == SpeculationStats() or stats.steps == 0


@settings(max_examples=60, deadline=None)
@given(STEPS, STEPS)
def test_merge_equals_recording_everything(first: list, second: list) -> None:
    merged, whole = recorded(first), recorded(first + second)
    merged.merge(recorded(second))
    left, right = merged.as_dict(), whole.as_dict()
    for average in (left.pop("acceptance_ema"), right.pop("acceptance_ema")):
        assert average is None or 0.0 <= average <= 1.0
    for name in ("time_s", "plain_time_s", "speedup"):
        assert left.pop(name) == (value if (value := right.pop(name)) is None else pytest.approx(value))
    assert left == right
    assert sum(merged.acceptance_histogram) == merged.drafted_steps


def test_merging_with_itself_doubles() -> None:
    stats = recorded([(3, 4, 0.2, 0.8), (1, 4, 0.2, 0.2)])
    stats.merge(stats)
    assert (stats.steps, stats.accepted, stats.acceptance_histogram) == (4, 8, [0, 2, 0, 2])


def test_as_dict_is_json_and_str_is_one_line() -> None:
    stats = recorded([(3, 4, 0.2, 0.8)])
    assert json.loads(json.dumps(stats.as_dict()))["tokens_per_step"] == 4.0
    assert "\n" not in str(stats)
    assert "accepted 3 of 4 guesses (75.0%)" in str(stats)
    assert "4.00x plain" in str(stats)
