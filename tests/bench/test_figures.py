"""Statistics on made-up clocks: every figure is foretold, drift cancels, and noise shows as spread."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.made_up import KINDS, SPEEDS, counts, measured
from wager.bench.figures import (
    ALL_KINDS,
    BET_GROUPS,
    drawn,
    geometric_mean,
    grouped_bets,
    quantile,
    spread_of,
    stages_of,
    summarise,
    with_steps,
)
from wager.bench.records import Counts, Measured, Run, Timing

RATIOS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30)


def test_speedups_are_those_of_the_clock() -> None:
    summary = summarise(measured(rounds=2))
    assert summary.kinds == KINDS
    for name, speed in SPEEDS.items():
        for kind in KINDS:
            want = 1.75 if (name, kind) == ("fixed:4", "prose") else speed
            cell = summary.cells[name, kind]
            assert cell.tokens_per_s == pytest.approx(16 * want)
            assert cell.decode_tokens_per_s == pytest.approx(15 * want / 0.75)
            if name == "ar":
                assert cell.speedup is cell.decode_speedup is None
            else:
                assert cell.speedup is not None and cell.decode_speedup is not None
                assert cell.speedup[:4] == pytest.approx([want] * 4)
                assert cell.decode_speedup.mean == pytest.approx(want)
                assert cell.speedup.num == 6
    assert summary.overall["auto"] == pytest.approx(2.0)
    assert summary.overall["fixed:4"] == pytest.approx(math.sqrt(1.25 * 1.75))
    assert summary.overall_decode["transformers"] == pytest.approx(0.5)


def test_the_best_fixed_length_of_each_kind() -> None:
    summary = summarise(measured())
    assert summary.best_fixed["code"] == ("fixed:2", pytest.approx(1.5))
    assert summary.best_fixed["prose"] == ("fixed:4", pytest.approx(1.75))
    assert summary.best_fixed_overall == pytest.approx(math.sqrt(1.5 * 1.75))
    none = summarise(measured(("ar", "auto")))
    assert none.best_fixed == {} and none.best_fixed_overall is None


def test_steady_drift_cancels() -> None:
    """A machine that grows slower by the turn favours nobody: everybody is as fast as plain decoding."""
    found = measured(("ar", "auto", "fixed:2"), clock=lambda _name, _kind, place: 1.0 + 0.1 * place)
    summary = summarise(found)
    assert summary.overall["auto"] == pytest.approx(1.0)
    assert summary.overall["fixed:2"] == pytest.approx(1.0)
    assert summary.control["code"].mean == pytest.approx(1.0 / 1.5)


def test_a_contender_is_measured_by_the_plain_answers_around_it() -> None:
    """Behind the first group the machine is twice as slow: for those there, plain decoding is too."""
    found = measured(tuple(SPEEDS), num=1, clock=lambda name, _kind, place: (1 + (place > 7)) / SPEEDS[name])
    summary = summarise(found)
    for run in found.runs:
        if run.place > 7 and run.contender != "ar":
            kind = found.prompts[run.prompt][0]
            # The plain answer between the groups was still a quick one.
            assert summary.speedup(run.contender, kind) == pytest.approx(0.75 * SPEEDS[run.contender])


def test_the_control_is_plain_against_plain() -> None:
    summary = summarise(measured())
    assert set(summary.control) == {*KINDS, ALL_KINDS}
    assert summary.control[ALL_KINDS][:4] == pytest.approx((1.0,) * 4)
    assert summary.control[ALL_KINDS].num == 2 * summary.control["code"].num


def test_what_the_steps_came_to() -> None:
    steps = summarise(measured(num=1)).cells["auto", "code"].steps
    assert steps is not None
    assert steps.tokens_per_step == pytest.approx(1.5)
    assert steps.mean_bet == pytest.approx(2.8)
    assert steps.plain_share == pytest.approx(0.2)
    assert steps.acceptance == pytest.approx(5 / 28)
    assert steps.acceptance_by_depth == pytest.approx((0.5, 0.125))
    assert steps.bets == pytest.approx({0: 0.2, 2: 0.5, 6: 0.3})
    assert steps.drafters == pytest.approx({"": 0.2, "block": 0.8})
    assert steps.stage_ms == pytest.approx({"plan": 0.1, "draft": 0.2, "verify": 2.0})
    assert steps.prompt_ms == pytest.approx(4.0)
    assert steps.ledger_ms == pytest.approx(40.0)
    assert steps.ledger_speedup == pytest.approx(1.5)
    assert dict(zip(BET_GROUPS, grouped_bets(steps), strict=True)) == pytest.approx(
        {"0": 0.2, "1-2": 0.5, "3-4": 0.0, "5-8": 0.3, "9-16": 0.0, "17+": 0.0}
    )


def test_what_is_drawn() -> None:
    summary = summarise(measured())
    series = {one.name: one for one in drawn(summary)}
    assert list(series) == ["auto", "best fixed", "transformers"]
    assert series["best fixed"].labels == {"code": "fixed:2", "prose": "fixed:4"}
    assert series["best fixed"].spreads["prose"].mean == pytest.approx(1.75)
    few = summarise(measured(("ar", "auto", "fixed:2", "fixed:4")))
    assert [one.name for one in drawn(few)] == ["auto", "fixed:2", "fixed:4"]
    assert with_steps(few) == ["auto", "fixed:2", "fixed:4"]
    assert stages_of(few, "auto") == pytest.approx({"draft": 0.2, "verify": 2.0, "other": 0.1})
    assert stages_of(summary, "transformers") == {}


def test_nothing_finished_is_no_figure() -> None:
    summary = summarise(Measured(["ar", "auto"], [("code", "code/0")]))
    assert summary.kinds == () and summary.control == {} and math.isnan(summary.overall["auto"])


def test_an_answer_without_decoding_has_no_rate() -> None:
    found = Measured(["ar", "auto"], [("code", "code/0")])
    found.runs = [
        Run(name, 0, 0, place, Timing(1.0, 1.0, 4, 4))
        for place, name in enumerate(("ar", "auto", "auto", "ar"))
    ]
    cell = summarise(found).cells["auto", "code"]
    assert cell.decode_tokens_per_s is None and cell.decode_speedup is None and cell.speedup is not None


@given(ratios=RATIOS, share=st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=60)
def test_quantiles_are_numpys(ratios: list[float], share: float) -> None:
    assert quantile(ratios, share) == pytest.approx(float(np.quantile(ratios, share)))


@given(ratios=RATIOS)
@settings(deadline=None, max_examples=60)
def test_a_spread_is_ordered_and_turns_over_with_its_ratios(ratios: list[float]) -> None:
    found, turned = spread_of(ratios), spread_of([1.0 / ratio for ratio in ratios])
    assert found is not None and turned is not None
    assert found.low <= found.median <= found.high
    assert turned.mean == pytest.approx(1.0 / found.mean)
    assert min(ratios) * 0.999 <= found.mean <= max(ratios) * 1.001


def test_of_nothing() -> None:
    assert spread_of([]) is None
    assert math.isnan(geometric_mean([]))


def test_counts_add_up() -> None:
    total = Counts()
    for _ in range(3):
        total.merge(counts("auto"))
    assert (total.answers, total.steps, total.emitted, total.prompt_steps) == (3, 30, 45, 3)
    assert total.bets[2] == 15 and total.accepted[1] == 9 and total.drafters["block"] == 24
    assert total.stage_ms["verify"] == pytest.approx(90.0)
    assert (total.prompt_ms, total.outside_ms, total.plain_ms - total.spent_ms) == (12.0, 1.5, 60.0)
