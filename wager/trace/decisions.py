"""Records of what a policy decided, step by step, and why it bet nothing.

`wager simulate` writes them to a file, and `wager demo` summarises them.
"""

from __future__ import annotations

from collections.abc import Callable

from wager.policy import Controller, Declined, Prediction, Reason, StepOutcome

DecisionRecord = dict[str, object]
DecisionSink = Callable[[DecisionRecord], None]


def record_decisions(controller: Controller, sink: DecisionSink) -> None:
    """From now on, `sink` receives a record of each step of the controller."""
    num_steps = 0

    def on_step(outcome: StepOutcome, expected: Prediction) -> None:
        nonlocal num_steps
        num_steps += 1
        sink(
            {"step": num_steps, "policy": controller.policy.name, **_decision(controller, outcome, expected)}
        )

    controller.on_step = on_step


def declined_of(outcome: StepOutcome) -> Declined | None:
    """Returns why a step verified no guess; None if it verified some."""
    if any(share.num_nodes for share in outcome.rows):
        return None
    if any(share.offer.drafter is not None for share in outcome.rows):
        return Declined(Reason.SCORES)
    if outcome.plan is not None and outcome.plan.declined is not None:
        return outcome.plan.declined
    able = any(share.row.can_draft for share in outcome.rows)
    return Declined(Reason.RULE if able else Reason.NO_DRAFT)


def _decision(controller: Controller, outcome: StepOutcome, expected: Prediction) -> DecisionRecord:
    declined = declined_of(outcome)
    return {
        "rows": len(outcome.rows),
        "pending": sum(share.row.num_pending for share in outcome.rows),
        "drafters": sorted({share.offer.drafter for share in outcome.rows if share.offer.drafter}),
        "bet": sum(share.num_nodes for share in outcome.rows),
        "declined": None if declined is None else declined.reason.value,
        "best_gain": None if declined is None else round(declined.gain, 4),
        "best_price": None if declined is None else round(declined.price, 4),
        "predicted_tokens": round(expected.tokens, 4),
        "predicted_ms": round(expected.time_ms, 4),
        "actual_tokens": sum(share.accepted + share.row.emits for share in outcome.rows),
        "actual_ms": round(outcome.verify_ms + outcome.draft_ms, 4),
        "ledger_ms": round(controller.experience.ledger.total.balance_ms, 4),
    }
