"""The records of decisions: what was bet, and why nothing was."""

from tests.policy.situations import FLAT, known_costs, share, step
from wager.policy import Controller, Declined, Plan, Reason, Row, StepOutcome
from wager.policy.base import PLAIN
from wager.trace.decisions import DecisionRecord, declined_of, record_decisions

ABLE, UNABLE = Row("r"), Row("r", drafters=())


def planned(outcome: StepOutcome, declined: Declined | None) -> StepOutcome:
    return outcome._replace(plan=Plan((PLAIN,), declined=declined))


def test_a_step_without_a_bet_has_a_reason() -> None:
    assert declined_of(step(share(3))) is None
    assert declined_of(step(share(drafter="draft"))) == Declined(Reason.SCORES)
    plain = step(share(row=ABLE))
    own = Declined(Reason.PRICE, 0.2, 0.7)
    assert declined_of(planned(plain, own)) == own
    assert declined_of(planned(plain, None)) == Declined(Reason.RULE)
    assert declined_of(step(share(row=UNABLE))) == Declined(Reason.NO_DRAFT)


def test_records_have_the_reason_and_the_draft_that_was_declined() -> None:
    controller = Controller("auto", known_costs(FLAT))
    records: list[DecisionRecord] = []
    record_decisions(controller, records.append)
    controller.learn(planned(step(share(row=ABLE)), Declined(Reason.PRICE, 0.25, 0.5)))
    controller.learn(step(share(3)))
    first, second = records
    assert (first["declined"], first["best_gain"], first["best_price"]) == ("price", 0.25, 0.5)
    assert (first["bet"], first["pending"]) == (0, 1)
    assert second["bet"] == 3 and second["declined"] is None
