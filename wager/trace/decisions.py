"""Records of what a policy decided, step by step, for debugging a gate. `wager simulate` writes them."""

from __future__ import annotations

from collections.abc import Callable

from wager.policy import Controller, Prediction, StepOutcome

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


def _decision(controller: Controller, outcome: StepOutcome, expected: Prediction) -> DecisionRecord:
    return {
        "rows": len(outcome.rows),
        "drafters": sorted({share.offer.drafter for share in outcome.rows if share.offer.drafter}),
        "bet": sum(share.num_nodes for share in outcome.rows),
        "predicted_tokens": round(expected.tokens, 4),
        "predicted_ms": round(expected.time_ms, 4),
        "actual_tokens": sum(share.accepted + share.row.emits for share in outcome.rows),
        "actual_ms": round(outcome.verify_ms + outcome.draft_ms, 4),
        "ledger_ms": round(controller.experience.ledger.total.balance_ms, 4),
    }
