"""A machine that changes its level: all times move with it, and no bet is blamed for that."""

import math

import numpy as np
import pytest

from wager.costs import CostModel, DraftShape
from wager.policy import Controller, Experience, Offer, Row, RowOutcome, StepOutcome
from wager.policy.ledger import Ledger
from wager.trace import Trace, replay, step_costs
from wager.trace.replay import _Clock

CURVE = {1: 8.6, 2: 10.0, 5: 10.4, 9: 11.6, 17: 13.8, 65: 28.0}
COSTS = step_costs("two cores", {4: 3.8, 8: 4.2, 15: 5.0}, CURVE)


def known(sizes: tuple[int, ...] = (1, 5, 9)) -> CostModel:
    costs = CostModel(warm_up=0)
    for _ in range(12):
        for size in sizes:
            costs.observe_pass(size, 1, 0, CURVE[size])
    costs.observe_drafts({"draft": DraftShape(1)}, 5.0)
    return costs


def test_several_sizes_off_at_once_are_the_machine() -> None:
    costs = known()
    shifts = [costs.observe_pass(size, 1, 0, 2.0 * CURVE[size]) for size in (5, 9, 5)]
    assert shifts[:2] == [0.0, 0.0] and shifts[2] == pytest.approx(math.log(2.0), abs=0.1)
    curve = costs.curve(1, 0)
    assert [curve[size] for size in (1, 5, 9)] == pytest.approx([2 * CURVE[s] for s in (1, 5, 9)], rel=0.1)
    assert costs.draft_ms("draft", DraftShape(1)) == pytest.approx(10.0, rel=0.1)
    assert costs.shape(1, 0).needs_plain(1), "plain decoding is to be timed again"
    for _ in range(2):
        costs.observe_pass(1, 1, 0, 2.0 * CURVE[1])
    assert not costs.shape(1, 0).needs_plain(1)


def test_plain_passes_alone_speak_for_the_machine() -> None:
    costs = known()
    shifts = [costs.observe_pass(1, 1, 0, CURVE[1] / 2) for _ in range(3)]
    assert shifts[2] < 0.0
    assert costs.curve(1, 0)[9] == pytest.approx(CURVE[9] / 2, rel=0.1)


def test_one_other_size_alone_is_a_curve_that_was_wrong_there() -> None:
    costs = known()
    shifts = [costs.observe_pass(9, 1, 0, 2.0 * CURVE[9]) for _ in range(4)]
    assert shifts == [0.0] * 4
    curve = costs.curve(1, 0)
    assert curve[1] == pytest.approx(CURVE[1], rel=0.05) and curve[9] > 1.5 * CURVE[9]


def test_a_single_outlier_moves_nothing() -> None:
    costs = known()
    assert [costs.observe_pass(5, 1, 0, t) for t in (30.0, CURVE[5], 30.0, CURVE[5])] == [0.0] * 4


def test_a_crowd_that_drafts_says_nothing_of_the_machine() -> None:
    """Its passes are late because the host is busy: plain ones are as quick as ever."""
    costs = known()
    shifts = [costs.observe_pass(size, 1, 0, 2.0 * CURVE[size], is_bare=False) for size in (5, 9, 5, 9, 5)]
    assert shifts == [0.0] * 5
    assert costs.curve(1, 0)[1] == pytest.approx(CURVE[1], rel=0.05)
    assert costs.curve(1, 0)[9] > 1.3 * CURVE[9], "they have become dear all the same"


def outcome(size: int, factor: float, request_id: str = "r") -> StepOutcome:
    row = Row(request_id)
    share = RowOutcome(row, Offer("draft"), size - 1, 1, 2)
    return StepOutcome([share], size, factor * CURVE[size], factor * 5.0)


def test_late_steps_are_refunded_once_the_machine_is_known_to_be_slow() -> None:
    experience = Experience(known())
    usual = Experience(known())
    for size in (5, 9, 5):
        experience.learn(outcome(size, 2.0))
        usual.learn(outcome(size, 1.0))
    assert experience.ledger.total.balance_ms == pytest.approx(usual.ledger.total.balance_ms, abs=5.0)
    assert experience.ledger.account("r").balance_ms == experience.ledger.total.balance_ms
    assert experience.stalled_ms == pytest.approx(CURVE[5] * 2 + CURVE[9] + 15.0, abs=5.0)


def test_a_request_that_has_ended_gets_no_account_again() -> None:
    ledger = Ledger()
    ledger.post("gone", 5.0, 4.0, 1)
    ledger.close("gone")
    ledger.refund("gone", 1.0)
    assert "gone" not in ledger.requests and ledger.total.balance_ms == 0.0


def steady(chance: float, steps: int = 300) -> Trace:
    random, shape = np.random.default_rng(0), (3, steps, 15, 4)
    probs = np.full(shape, (1.0 - chance) / 4)
    probs[..., 0] = chance
    ranks = np.where(random.random(shape[:3]) < chance, 0, -1).astype(np.int16)
    return Trace("code", "t0", np.log(probs).astype(np.float32), ranks)


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("window", [(40, 90), (60, 400)])
def test_a_slow_spell_does_not_silence_it(
    monkeypatch: pytest.MonkeyPatch, factor: float, window: tuple[int, int]
) -> None:
    """The policy sees slow times for a while; its own choices are scored at the usual ones."""
    trace, random, seen_times = steady(0.8), np.random.default_rng(2), [0]

    def seen(_clock: _Clock, time_ms: float) -> float:
        seen_times[0] += 1
        slow = factor if window[0] <= seen_times[0] // 2 < window[1] else 1.0
        return time_ms * slow * float(np.exp(0.03 * random.standard_normal()))

    usual = replay(trace, COSTS, "auto")
    monkeypatch.setattr(_Clock, "seen", seen)
    slowed = replay(trace, COSTS, Controller("auto"))
    assert slowed.time_ms < 1.15 * usual.time_ms
    assert slowed.drafted_steps / len(slowed.steps) > 0.8
