"""Gates in front of a policy."""

import numpy as np
import pytest

from tests.policy.situations import FLAT, bet, known_costs, share, step
from wager.errors import ConfigError
from wager.policy import PLAIN, Draft, Offer, Row, RowOutcome, StepOutcome
from wager.policy.gates import EmaGate, EntropyGate
from wager.policy.simple import Fixed

BET = Offer("draft", 4)


def ema() -> EmaGate:
    experience = known_costs(FLAT)
    return EmaGate(Fixed(experience, 4, chain=True), experience)


def entropy() -> EntropyGate:
    experience = known_costs(FLAT)
    return EntropyGate(Fixed(experience, 4, chain=True), experience)


def drafted(accepted: int, time_ms: float = 10.0) -> StepOutcome:
    """A bet step; plain decoding takes 5 ms, so at 10 ms one accepted guess is par."""
    return step(share(4, accepted), verify_ms=time_ms - 1.0, draft_ms=1.0)


def run(gate: EmaGate, accepted: int, steps: int) -> list[bool]:
    """Whether each step was allowed to bet; a step that was, accepts that many."""
    bets = []
    for _ in range(steps):
        plan = gate.plan([Row("r")])
        bets.append(plan.offers == (BET,))
        gate.learn((drafted(accepted) if bets[-1] else step(share()))._replace(plan=plan))
    return bets


def test_names_and_the_open_gate() -> None:
    gate = ema()
    assert gate.name == "ema+fixed:4"
    assert gate.plan([Row("a"), Row("b")]).offers == (BET, BET)
    assert entropy().name == "entropy+fixed:4"


def test_a_gate_hands_the_draft_to_its_policy() -> None:
    gate = ema()
    assert bet(gate, [Row("r")], [Draft("draft", 6)]).num_nodes == 4
    assert bet(gate, [Row("r")], [None]).num_nodes == 0


def test_the_ema_gate_stays_open_while_bets_win() -> None:
    assert all(run(ema(), accepted=3, steps=200))


def test_the_ema_gate_closes_on_losing_and_probes_ever_more_rarely() -> None:
    bets = run(ema(), accepted=0, steps=400)
    assert all(bets[:4])
    assert sum(bets[:12]) < 12
    assert sum(bets[200:]) <= 6
    assert sum(bets[200:]) >= 2


def test_the_ema_gate_closes_by_its_rule() -> None:
    """From 2.0, halving towards 0.5: 1.25, 0.875 (warm-up), 0.69, 0.59, 0.55 - the third step below par."""
    gate = ema()
    ratios = []
    for _ in range(5):
        assert gate.open
        gate.learn(drafted(0))
        ratios.append(gate.ratio)
    assert ratios == pytest.approx([1.25, 0.875, 0.6875, 0.59375, 0.546875], rel=0.01)
    assert not gate.open


def test_the_ema_gate_opens_again_on_winning() -> None:
    gate = ema()
    run(gate, accepted=0, steps=100)
    assert not gate.open
    bets = run(gate, accepted=3, steps=200)
    assert any(bets[:70])
    assert all(bets[80:])
    assert gate.open


def test_one_stall_does_not_close_the_ema_gate() -> None:
    gate = ema()
    run(gate, accepted=2, steps=20)
    before = gate.ratio
    gate.learn(drafted(2, time_ms=2000.0))
    assert gate.ratio == pytest.approx(0.5 * before + 0.5 * 0.25)
    assert gate.open
    assert all(run(gate, accepted=2, steps=50))


def test_plain_steps_do_not_sway_the_ema_gate() -> None:
    gate = ema()
    run(gate, accepted=3, steps=5)
    before = gate.ratio
    for _ in range(10):
        gate.learn(step(share(), verify_ms=500.0))
    gate.learn(StepOutcome([], 0, 5.0))
    assert (gate.ratio, gate.open) == (before, True)


def p1(gate: EntropyGate, *values: float, request: str = "r") -> list[bool]:
    admitted = []
    for value in values:
        row = Row(request, target_p1=value)
        plan = gate.plan([row])
        admitted.append(plan.offers == (BET,))
        gate.learn(step(share(row=row))._replace(plan=plan))
    return admitted


def test_one_very_unsure_token_closes_the_entropy_gate_for_good() -> None:
    assert p1(entropy(), 1.0, 0.46, 1.0, 1.0)[0]
    assert p1(entropy(), 1.0, 1.0, 0.44, 1.0, 1.0, 1.0) == [True, True, False, False, False, False]
    assert p1(entropy(), 0.449999)[0] is False
    assert p1(entropy(), 0.45)[0] is True


def test_two_steps_of_a_sagging_average_close_it() -> None:
    # Averages: 0.85 (one below), 0.925 (counts anew), 0.8625, 0.88 (the second below).
    assert p1(entropy(), 0.7, 1.0, 0.8, 0.9, 1.0) == [True, True, True, False, False]
    assert p1(entropy(), *[0.9] * 30) == [True] * 30  # the average comes down to 0.90, never below


def test_requests_are_judged_apart_and_forgotten_at_their_end() -> None:
    gate = entropy()
    rows = [Row("a", target_p1=0.1), Row("b", target_p1=1.0)]
    plan = gate.plan(rows)
    assert plan.offers == (PLAIN, BET)
    gate.learn(step(*[share(row=row) for row in rows])._replace(plan=plan))
    assert p1(gate, 1.0, request="a") == [False]
    gate.forget("a")
    assert p1(gate, 1.0, request="a") == [True]
    assert p1(gate, 1.0, request="b") == [True]


def test_the_entropy_gate_needs_the_targets_confidence() -> None:
    with pytest.raises(ConfigError, match="target_p1"):
        entropy().plan([Row("r")])


def test_gates_pass_on_what_was_learned_and_forgotten() -> None:
    heard: list[object] = []

    class Listener(Fixed):
        def learn(self, outcome: StepOutcome) -> None:
            heard.append(outcome)

        def forget(self, request_id: object) -> None:
            heard.append(request_id)

    experience = known_costs(FLAT)
    for gate in (EmaGate, EntropyGate):
        heard.clear()
        outer = gate(Listener(experience, 2, chain=True), experience)
        outcome = StepOutcome([RowOutcome(Row("r", target_p1=1.0), PLAIN, 0, 0, 1)], 1, 5.0)
        outer.learn(outcome)
        outer.forget("r")
        assert heard == [outcome, "r"]


def test_a_closed_gate_arranges_nothing_for_any_number_of_rows() -> None:
    rows = [Row("a", target_p1=0.1), Row("b", target_p1=0.1)]
    forest = bet(entropy(), rows, [None, None])
    assert forest.num_nodes == 0
    assert forest.row.dtype.kind == "i"
    assert isinstance(forest.score, np.ndarray)
