"""The object that applies a policy: asks it, feeds what was learned, keeps the decision trace.

One controller per engine (or replay). The policy can be changed while running; costs, ledger, survival and
statistics stay, since they belong to the machine and the requests, not to the rule. Callers are the engine's
bet, arrange and learn stages, and the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from wager.policy.asked import any_asked, as_plain, joined, others_only, own_forest, own_offers, without_own
from wager.policy.base import Blind, Draft, Offer, Policy, Prediction, Row, StepOutcome
from wager.policy.experience import Experience, longest_context
from wager.policy.ledger import Account
from wager.policy.names import make_policy
from wager.policy.settings import PolicySettings
from wager.tree import Forest

DecisionSink = Callable[[dict[str, object]], None]


class Controller:
    """Applies a policy by name; `on_decision` receives one record per step, for debugging a gate.

    `settings` hold for every policy it is changed to.
    """

    def __init__(
        self,
        policy: str = "auto",
        experience: Experience | None = None,
        on_decision: DecisionSink | None = None,
        settings: PolicySettings | None = None,
    ) -> None:
        self.experience = experience or Experience()
        self.settings = settings or PolicySettings()
        self.policy: Policy = make_policy(policy, self.experience, self.settings)
        self._made = {policy: self.policy}
        self.on_decision = on_decision
        self._steps = 0

    def set_policy(self, name: str) -> None:
        """Change the rule from the next step on; one that was used before goes on with what it had learned.

        Raises ConfigError on a bad name, keeping the old one.
        """
        if name not in self._made:
            self._made[name] = make_policy(name, self.experience, self.settings)
        self.policy = self._made[name]

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        if any_asked(rows):
            return own_offers(rows, self.policy.offer(as_plain(rows)))
        return self.policy.offer(rows)

    def arrange(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        if not any_asked(rows):
            return self.policy.arrange(rows, drafts)
        own, others = own_forest(rows, drafts), others_only(rows, drafts)
        if all(draft is None for draft in others):
            return own
        return joined(self.policy.arrange(as_plain(rows), others), own)

    def blind(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        """What to verify of drafts under way that nobody has seen; None: that waits for `arrange`."""
        return None if any_asked(rows) else self.policy.blind(rows, drafts)

    def saw(self, rows: Sequence[Row], drafts: Sequence[Draft | None], nodes: Sequence[int]) -> None:
        """The drafts that were bet on blindly."""
        self.policy.saw(rows, drafts, nodes)

    def learn(self, outcome: StepOutcome) -> None:
        self._steps += 1
        if self.on_decision is not None:
            self.on_decision(self._decision(outcome))
        outcome = self.experience.learn(outcome)
        asked = any_asked([share.row for share in outcome.rows])
        self.policy.learn(without_own(outcome) if asked else outcome)

    def forget(self, request_id: Hashable) -> Account:
        """The request has ended: returns its account."""
        self.policy.forget(request_id)
        return self.experience.ledger.close(request_id)

    def _decision(self, outcome: StepOutcome) -> dict[str, object]:
        rows = [share.row for share in outcome.rows]
        nodes = sum(share.num_nodes for share in outcome.rows)
        predicted = getattr(self.policy, "prediction", None) or self._plain_prediction(outcome)
        return {
            "step": self._steps,
            "policy": self.policy.name,
            "rows": len(rows),
            "drafters": sorted({share.offer.drafter for share in outcome.rows if share.offer.drafter}),
            "bet": nodes,
            "predicted_tokens": round(predicted.tokens, 4),
            "predicted_ms": round(predicted.time_ms, 4),
            "actual_tokens": sum(share.accepted + share.row.emits for share in outcome.rows),
            "actual_ms": round(outcome.verify_ms + outcome.draft_ms, 4),
            "ledger_ms": round(self.experience.ledger.total.balance_ms, 4),
        }

    def _plain_prediction(self, outcome: StepOutcome) -> Prediction:
        """For policies that predict nothing: one token per row, at the cost model's time of such a pass."""
        rows = [share.row for share in outcome.rows]
        curve = self.experience.costs.curve(max(len(rows), 1), longest_context(rows))
        return Prediction(float(len(rows)), float(curve[min(outcome.num_tokens, len(curve) - 1)]))
