"""The object that applies a policy: asks it, and feeds what was learned.

One controller per engine (or replay). The policy can be changed while running; costs, ledger, survival and
statistics stay, since they belong to the machine and the requests, not to the rule. Callers are the engine's
bet, arrange and learn stages, and the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from wager.costs import context_range
from wager.policy.base import (
    Blind,
    Coming,
    Draft,
    Inquiry,
    MultiStep,
    Plan,
    Policy,
    Prediction,
    Row,
    StepOutcome,
)
from wager.policy.experience import Experience, shape_of_rows
from wager.policy.fixed_requests import (
    any_sized,
    as_plain,
    joined,
    others_only,
    own_forest,
    own_offers,
    without_own,
)
from wager.policy.ledger import Account
from wager.policy.names import PolicySettings, make_policy
from wager.policy.survival import MAX_DEPTH as DEEPEST
from wager.tree import Forest

StepListener = Callable[[StepOutcome, Prediction], None]


class _Prepared(NamedTuple):
    """A plan made before its step, and what it depends on."""

    version: int
    keys: list[Row]
    plan: Plan
    drafts: Sequence[Draft | None] | None = None
    blind: Blind | None = None


class Controller:
    """Applies a policy by name. `settings` hold for every policy it is changed to.

    `on_step` is told every step and what was expected of it, before anything is learned from the step.
    """

    def __init__(
        self,
        policy: str = "auto",
        experience: Experience | None = None,
        on_step: StepListener | None = None,
        settings: PolicySettings | None = None,
    ) -> None:
        self.experience = experience or Experience()
        self.settings = settings or PolicySettings()
        self.policy: Policy = make_policy(policy, self.experience, self.settings)
        self._made = {policy: self.policy}
        self.on_step = on_step
        self._version = 0
        """Changes with everything that may change a plan."""
        self._prepared: _Prepared | None = None

    def set_policy(self, name: str) -> None:
        """Change the rule from the next step on; one that was used before goes on with what it had learned.

        Raises ConfigError on a bad name, keeping the old one.
        """
        if name not in self._made:
            self._made[name] = make_policy(name, self.experience, self.settings)
        self.policy = self._made[name]
        self._version += 1

    def inquire(self, coming: Coming) -> Inquiry:
        """Which drafters to ask before the step is planned."""
        return self.policy.inquire(coming)

    def prepare(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> None:
        """Plan the step behind the one of these rows early, with its blind bet where drafts are alike.

        Called while a pass is in flight. `plan` uses the result if the rows come as expected and nothing was
        learned in between, so that it is what `plan` would have found.
        """
        if any_sized(rows) or not all(row.emits for row in rows):
            return
        rows = [row._replace(num_pending=1) for row in rows]
        plan = self.policy.plan(rows)
        self._prepared = _Prepared(self._version, _keys(rows), plan)
        if not plan.drafts:
            return
        drafter_of = [draft and draft.drafter for draft in drafts]
        if [offer.drafter for offer in plan.offers] == drafter_of:
            alike = [
                draft and Draft(draft.drafter, draft.num_depths, has_come=draft.logprobs is None)
                for draft in drafts
            ]
            blind = self.policy.blind_bet(plan, rows, alike)
            self._prepared = self._prepared._replace(drafts=alike, blind=blind)

    def plan(self, rows: Sequence[Row]) -> Plan:
        """The first decision for these rows."""
        if any_sized(rows):
            plan = self.policy.plan(as_plain(rows))
            return plan._replace(offers=tuple(own_offers(rows, plan.offers)))
        prepared = self._prepared
        if prepared is not None and prepared.version == self._version and prepared.keys == _keys(rows):
            return prepared.plan
        return self.policy.plan(rows)

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        """The nodes to verify, best first."""
        if not any_sized(rows):
            return self.policy.arrange(plan, rows, drafts)
        own, others = own_forest(rows, drafts), others_only(rows, drafts)
        if all(draft is None for draft in others):
            return own
        return joined(self.policy.arrange(plan, as_plain(rows), others), own)

    def blind_bet(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        """The number of nodes to verify of drafts that are in flight; None: that waits for `arrange`."""
        if any_sized(rows):
            return None
        prepared = self._prepared
        if prepared is not None and prepared.plan is plan and prepared.drafts == drafts:
            return prepared.blind
        return self.policy.blind_bet(plan, rows, drafts)

    def multi_step(self, plan: Plan, rows: Sequence[Row]) -> MultiStep | None:
        """How this plan may be applied in several steps without asking again; None: in one step only."""
        return None if any_sized(rows) else self.policy.multi_step(plan, rows)

    def learn(self, *outcomes: StepOutcome) -> None:
        """Take in finished steps of one plan, in their order."""
        self._version += 1
        if self.on_step is not None:
            for outcome in outcomes:
                self.on_step(outcome, self._prediction(outcome))
        entered = self.experience.learn(*outcomes)
        sized = any(any_sized([share.row for share in outcome.rows]) for outcome in entered)
        self.policy.learn(*[without_own(outcome) for outcome in entered] if sized else entered)

    def forget(self, request_id: Hashable) -> Account:
        """The request has ended: returns its account."""
        self._version += 1
        self.policy.forget(request_id)
        return self.experience.ledger.close(request_id)

    def _prediction(self, outcome: StepOutcome) -> Prediction:
        """What was expected of a step; without a prediction one token per row, in the usual time."""
        if outcome.plan is not None and outcome.plan.prediction is not None:
            return outcome.plan.prediction
        rows = [share.row for share in outcome.rows]
        curve = self.experience.costs.curve(*shape_of_rows(rows))
        return Prediction(float(len(rows)), float(curve[min(outcome.num_tokens, len(curve) - 1)]))


def _keys(rows: Sequence[Row]) -> list[Row]:
    """All of a row that a plan depends on: of the context its cost range, of the depth only if it binds."""
    return [
        row._replace(context_len=context_range(row.context_len), max_depth=min(row.max_depth, DEEPEST))
        for row in rows
    ]
