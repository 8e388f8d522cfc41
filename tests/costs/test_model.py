"""What a step costs: learned online, robustly, by size and shape."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.costs import (
    MAX_TOKENS,
    CostModel,
    DraftShape,
    DraftTime,
    PassTime,
)
from wager.costs.model import NEARLY_FLAT
from wager.errors import ConfigError, InputError
from wager.trace.costs import CostCurve

STAIRS = {1: 5.0, 2: 5.0, 4: 5.05, 8: 5.1, 9: 8.0, 16: 8.1, 17: 12.0, 32: 12.2}


def model(**options: object) -> CostModel:
    return CostModel(**{"warm_up": 0, **options})  # type: ignore[arg-type]


def see(costs: CostModel, size: int, times: Iterable[float], rows: int = 1, context_len: int = 0) -> None:
    for time_ms in times:
        costs.observe_pass(size, rows, context_len, time_ms)


def noisy(costs: CostModel, points: Mapping[int, float], rounds: int, spread: float = 0.03) -> None:
    random = np.random.default_rng(0)
    for _ in range(rounds):
        for size, time_ms in points.items():
            see(costs, size, [time_ms * math.exp(spread * random.standard_normal())])


def test_a_curve_is_linear_between_points_and_beyond_the_last() -> None:
    curve = CostCurve({1: 4.0, 5: 8.0, 9: 10.0})
    assert [curve(n) for n in (1, 3, 5, 7, 9, 13)] == pytest.approx([4.0, 6.0, 8.0, 9.0, 10.0, 12.0])
    assert CostCurve({4: 3.0})(100) == 3.0
    assert curve.scaled(2.0)(3) == pytest.approx(12.0)


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: math.nan}, {1: math.inf}])
def test_an_impossible_curve_is_refused(points: dict[int, float]) -> None:
    with pytest.raises(InputError) as caught:
        CostCurve(points, "mine")
    assert caught.value.field == "mine.verify_ms"


@pytest.mark.parametrize("share", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_draft_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError) as caught:
        model(draft_share=share)
    assert caught.value.field == "draft_share"


def test_nothing_is_known_before_the_first_pass() -> None:
    costs = model()
    assert not costs.measured
    see(costs, 1, [5.0])
    assert costs.measured
    assert costs.largest_seen(1, 0) == 1


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_prior_is_a_shape_whose_scale_one_pass_sets(scale: float) -> None:
    costs = model(prior=scale * NEARLY_FLAT)
    see(costs, 1, [5.0])
    assert costs.curve(1, 0)[[1, 101]] == pytest.approx([5.0, 10.0])


def test_warm_up_passes_are_not_recorded() -> None:
    costs = CostModel(warm_up=2)
    see(costs, 1, [500.0, 300.0])
    assert not costs.measured
    see(costs, 1, [5.0])
    assert costs.plain_ms(1, 0) == pytest.approx(5.0)


@pytest.mark.parametrize("time_ms", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_passed_over(time_ms: float) -> None:
    costs = model()
    see(costs, 1, [time_ms])
    costs.observe_drafts({"draft": DraftShape(1)}, time_ms)
    assert not costs.measured
    see(costs, 1, [5.0])
    assert costs.draft_ms("draft", DraftShape(1)) == pytest.approx(1.0)


def test_a_staircase_is_kept() -> None:
    costs = model()
    noisy(costs, STAIRS, rounds=60)
    assert costs.curve(1, 0)[list(STAIRS)] == pytest.approx(list(STAIRS.values()), rel=0.05)
    assert costs.curve(1, 0)[9] / costs.curve(1, 0)[8] > 1.45


def test_a_staircase_is_kept_where_times_do_not_scatter() -> None:
    costs = model()
    for _ in range(20):
        for size, time_ms in STAIRS.items():
            see(costs, size, [time_ms])
    assert costs.curve(1, 0)[list(STAIRS)] == pytest.approx(list(STAIRS.values()), rel=0.1)


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(0.1, 100.0)), min_size=1, max_size=30),
)
@settings(deadline=None, max_examples=80)
def test_the_curve_never_falls_and_is_always_usable(passes: list[tuple[int, float]]) -> None:
    costs = model()
    for size, time_ms in passes:
        see(costs, size, [time_ms])
    curve = costs.curve(1, 0)
    assert curve.shape == (MAX_TOKENS + 1,)
    assert np.isfinite(curve).all()
    assert (curve > 0.0).all()
    assert (np.diff(curve) >= -1e-12).all()
    assert costs.largest_seen(1, 0) == max(size for size, _ in passes)


def test_one_stall_does_not_move_the_curve() -> None:
    costs = model()
    noisy(costs, STAIRS, rounds=20)
    before = costs.curve(1, 0).copy()
    see(costs, 8, [20 * STAIRS[8]])
    assert costs.curve(1, 0)[:33] == pytest.approx(before[:33], rel=0.03)


def test_a_slow_first_look_at_a_size_does_not_lift_those_behind_it() -> None:
    costs = model()
    noisy(costs, {1: 5.0, 4: 5.0, 8: 5.0}, rounds=30)
    see(costs, 2, [9.0])
    assert costs.curve(1, 0)[[4, 8]] == pytest.approx([5.0, 5.0], rel=0.05)


def test_a_stall_now_and_then_does_not_add_up() -> None:
    costs = model()
    for _ in range(20):
        see(costs, 1, [5.0] * 19 + [100.0])
    assert costs.plain_ms(1, 0) == pytest.approx(5.0, rel=0.1)


@pytest.mark.parametrize("factor", [0.5, 2.0, 5.0])
def test_a_shift_of_level_is_followed_within_twenty_passes(factor: float) -> None:
    costs = model()
    see(costs, 1, [5.0] * 200)
    see(costs, 1, [5.0 * factor] * 20)
    assert costs.plain_ms(1, 0) == pytest.approx(5.0 * factor, rel=0.15)


def test_a_small_shift_of_level_is_followed_in_the_end() -> None:
    costs = model()
    see(costs, 1, [5.0] * 200)
    see(costs, 1, [6.0] * 200)
    assert costs.plain_ms(1, 0) == pytest.approx(6.0, rel=0.03)


@pytest.mark.parametrize("factor", [1.4, 3.0, 20.0])
def test_a_cold_first_pass_is_replaced_by_the_second(factor: float) -> None:
    costs = model()
    see(costs, 1, [5.0 * factor, 5.0])
    assert costs.plain_ms(1, 0) == pytest.approx(5.0, rel=0.05)


def test_a_cold_first_pass_of_a_new_size_is_soon_forgotten() -> None:
    costs = model()
    see(costs, 1, [5.0] * 50)
    see(costs, 8, [100.0] + [5.1] * 5)
    assert costs.curve(1, 0)[8] == pytest.approx(5.1, rel=0.1)


def test_a_size_not_seen_for_long_follows_its_neighbours() -> None:
    """Everything became twice as slow while size 8 was not used: what was seen around it is believed."""
    costs = model()
    for _ in range(60):
        for size in (7, 8, 9):
            see(costs, size, [5.0])
    for _ in range(1500):
        for size in (7, 9):
            see(costs, size, [10.0])
    assert costs.shape(1, 0).age(8) > 3000
    assert costs.curve(1, 0)[8] == pytest.approx(10.0, rel=0.1)


def test_sizes_between_are_interpolated() -> None:
    costs = model()
    noisy(costs, {1: 5.0, 32: 20.0}, rounds=20, spread=0.0)
    between = costs.curve(1, 0)[8]
    assert 5.5 < between < 19.0


def test_ages() -> None:
    costs = model()
    see(costs, 1, [5.0] * 3)
    see(costs, 4, [5.0] * 2)
    table = costs.shape(1, 0)
    assert (table.age(1), table.age(4), table.age(9)) == (2, 0, 5)
    assert table.num_timed == 5


def test_shapes_are_separate() -> None:
    costs = model()
    for (rows, context_len), time_ms in {(1, 0): 5.0, (4, 0): 7.0, (1, 9000): 11.0}.items():
        see(costs, rows, [time_ms] * 5, rows, context_len)
    assert costs.plain_ms(1, 0) == pytest.approx(5.0)
    assert costs.plain_ms(4, 0) == pytest.approx(7.0)
    assert costs.plain_ms(1, 9000) == pytest.approx(11.0)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ((3, 0), (4, 0), True),
        ((4, 0), (5, 0), False),
        ((1, 0), (2, 0), False),
        ((1, 0), (1, 1023), True),
        ((1, 1023), (1, 1024), False),
        ((1, 1024), (1, 2047), True),
        ((1, 2047), (1, 2048), False),
    ],
)
def test_rows_share_by_octave_and_contexts_by_range(
    one: tuple[int, int], other: tuple[int, int], shared: bool
) -> None:
    costs = model()
    assert (costs.shape(*one) is costs.shape(*other)) == shared


def test_a_new_shape_starts_from_the_nearest_known() -> None:
    costs = model()
    see(costs, 1, [5.0] * 5, rows=1)
    see(costs, 16, [50.0] * 5, rows=16)
    assert costs.curve(2, 0)[2] == pytest.approx(costs.curve(1, 0)[2])
    assert costs.curve(12, 0)[16] == pytest.approx(50.0)
    assert costs.largest_seen(6, 0) == 16, "known as far as the nearest is"
    see(costs, 2, [8.0], rows=2)
    assert costs.curve(2, 0)[2] == pytest.approx(8.0)
    assert costs.curve(1, 0)[1] == pytest.approx(5.0)


def test_a_bucket_costs_the_same_wherever_it_is_filled() -> None:
    costs = model(buckets=(8, 1, 16))
    see(costs, 1, [5.0] * 3)
    see(costs, 3, [6.0] * 3)
    see(costs, 12, [9.0] * 3)
    curve = costs.curve(1, 0)
    assert len({float(t) for t in curve[2:9]}) == 1
    assert len({float(t) for t in curve[9:17]}) == 1
    assert curve[8] < curve[9]
    assert costs.shape(1, 0).age(8) == 3, "what 3 tokens took is the bucket's time"
    assert curve[40] > curve[16]


def test_passes_beyond_the_table_are_prompt_chunks_and_not_kept() -> None:
    costs = model()
    see(costs, 1, [5.0])
    see(costs, MAX_TOKENS + 1, [50.0])
    assert costs.largest_seen(1, 0) == 1
    assert costs.plain_ms(1, 0) == pytest.approx(5.0)
    assert np.isfinite(costs.plain_ms(10 * MAX_TOKENS, 0))


def test_an_unmeasured_draft_is_a_share_of_a_plain_pass() -> None:
    costs = model(draft_share=0.3)
    see(costs, 1, [5.0])
    assert costs.draft_ms("draft", DraftShape(1)) == pytest.approx(1.5)


def test_drafts_are_kept_by_drafter_and_rows() -> None:
    costs = model()
    see(costs, 1, [5.0])
    for _ in range(3):
        costs.observe_drafts({"small": DraftShape(1)}, 0.5)
        costs.observe_drafts({"large": DraftShape(1)}, 2.0)
        costs.observe_drafts({"large": DraftShape(8)}, 4.0)
    assert costs.draft_ms("small", DraftShape(1)) == pytest.approx(0.5, rel=0.05)
    assert costs.draft_ms("large", DraftShape(1)) == pytest.approx(2.0, rel=0.1)
    assert costs.draft_ms("large", DraftShape(8)) == pytest.approx(4.0, rel=0.1)
    assert 3.0 < costs.draft_ms("large", DraftShape(6)) < 4.0, "every further row takes as long"
    assert costs.draft_ms("large", DraftShape(64)) > 10.0


def test_one_stalled_draft_does_not_move_its_time() -> None:
    costs = model()
    for time_ms in [0.5] * 20 + [10.0] + [0.5]:
        costs.observe_drafts({"draft": DraftShape(1)}, time_ms)
    assert costs.draft_ms("draft", DraftShape(1)) == pytest.approx(0.5, rel=0.1)


def test_times_measured_before_are_known_at_once() -> None:
    """However steep they are: nothing of them is taken for an outlier or a shift."""
    costs = CostModel(warm_up=2)
    costs.load([PassTime(size, 1, 300, ms) for size, ms in STEEP.items()], [DraftTime("block", 1, 0, 0.7)])
    assert costs.measured
    assert costs.curve(1, 300)[list(STEEP)] == pytest.approx(list(STEEP.values()), rel=0.05)
    assert costs.largest_seen(1, 300) == max(STEEP)
    assert costs.draft_ms("block", DraftShape(1)) == pytest.approx(0.7, rel=0.05)


STEEP = {1: 1.0, 2: 5.0, 4: 30.0, 8: 150.0, 16: 700.0}


def test_times_measured_before_give_way_to_what_is_seen() -> None:
    costs = model()
    costs.load([PassTime(1, 1, 0, 5.0), PassTime(8, 1, 0, 6.0)], [DraftTime("block", 1, 0, 1.0)])
    see(costs, 1, [5.6] * 20)
    for _ in range(20):
        costs.observe_drafts({"block": DraftShape(1)}, 1.3)
    assert costs.plain_ms(1, 0) == pytest.approx(5.6, rel=0.03)
    assert costs.draft_ms("block", DraftShape(1)) == pytest.approx(1.3, rel=0.05)


def test_what_was_seen_does_not_give_way_to_times_measured_before() -> None:
    costs = model()
    see(costs, 1, [5.0] * 3)
    costs.observe_drafts({"block": DraftShape(1)}, 1.0)
    costs.load([PassTime(1, 1, 0, 50.0), PassTime(8, 1, 0, 6.0)], [DraftTime("block", 1, 0, 9.0)])
    assert costs.plain_ms(1, 0) == pytest.approx(5.0, rel=0.02)
    assert costs.curve(1, 0)[8] == pytest.approx(6.0, rel=0.02)
    assert costs.draft_ms("block", DraftShape(1)) == pytest.approx(1.0)


@pytest.mark.parametrize("time_ms", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_measured_before_are_passed_over(time_ms: float) -> None:
    costs = model()
    costs.load([PassTime(1, 1, 0, time_ms), PassTime(MAX_TOKENS + 1, 1, 0, 5.0)])
    costs.load([], [DraftTime("block", 1, 0, time_ms)])
    assert not costs.measured
    see(costs, 1, [5.0])
    assert costs.draft_ms("block", DraftShape(1)) == pytest.approx(1.0)


def test_passes_right_behind_a_prompt_are_not_recorded() -> None:
    costs = CostModel(warm_up=0)
    for _ in range(20):
        costs.observe_pass(1, 1, 100, 2.0)
    costs.observe_drafts({"block": DraftShape(1)}, 1.0)
    for _ in range(10):  # requests: a prompt, then passes that are slow at first
        costs.observe_pass(100, 1, 0, 30.0, num_read=99)
        for time_ms in (4.0, 3.5, 3.0, 2.0):
            costs.observe_pass(1, 1, 100, time_ms)
            costs.observe_drafts({"block": DraftShape(1)}, time_ms / 2)
    assert costs.plain_ms(1, 100) == pytest.approx(2.0, rel=0.01)
    assert costs.draft_ms("block", DraftShape(1)) == pytest.approx(1.0, rel=0.01)


def test_a_bet_is_no_prompt() -> None:
    costs = CostModel(warm_up=0)
    for _ in range(20):
        costs.observe_pass(17, 1, 100, 4.0)
        costs.observe_pass(1, 1, 100, 2.0)
    assert costs.plain_ms(1, 100) == pytest.approx(2.0) and costs.curve(1, 100)[17] == pytest.approx(4.0)
