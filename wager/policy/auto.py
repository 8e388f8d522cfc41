"""`auto`: the bet that makes tokens per second highest over the long run and never loses to plain decoding.

One objective for any number of rows. A plan (who drafts, with which drafter, how many nodes are verified) has
the value

    V(plan) = sum over rows of E_r(plan) / S_r  -  R * T(plan) / c(R)

    E_r   expected tokens of row r beyond the one that plain decoding gives it        (yields.py)
    S_r   running speed-up of row r over plain decoding                               (pace.py)
    R     rows that emit a token
    T     predicted time of the step beyond a plain one: drafts, host, nodes          (costs/)
    c(R)  time of a plain step of R rows                                              (costs/)

which is 0 for plain decoding. For one row it is the classic rule, tokens minus the long-run rate times the
extra time; for several rows it is the gradient of the sum of the logarithms of their speeds. options.py turns
the objective into numbers. The best plan is taken if its value is positive and the ledger allows its loss
(ledger.py). A plan of negative value, or a plain step where drafting pays, is taken when the exploration
budget covers the expected loss (exploration.py).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wager.costs import MAX_TOKENS, DraftShape, octave_of
from wager.policy.base import (
    PLAIN,
    Blind,
    Coming,
    Declined,
    Draft,
    FloatArray,
    Inquiry,
    MultiStep,
    NodeRule,
    Offer,
    Plan,
    Prediction,
    Reason,
    Row,
    StepOutcome,
)
from wager.policy.experience import Experience, shape_of_rows
from wager.policy.exploration import EXPLORED_SHARE, Exploration
from wager.policy.ledger import START_ALLOWANCE
from wager.policy.options import Option, StepView, best_nodes, best_shares, options_of, view_step
from wager.policy.pace import Paces
from wager.policy.standing import CLEARLY, Price, StandingPlan
from wager.policy.yields import LEARNED_CURVES, Yields
from wager.tree import Forest, build_forest

SIZE_STEP = 2
"""Factor by which a pass may exceed the largest one measured: beyond it the cost is a guess."""
INFORMATION = 0.5
"""Power of the number of its rows that an exploration is worth."""
STALE_STEPS, SOON_STEPS = 256, 32
"""Passes after which a plain pass should be timed again: usually, and while its time is uncertain."""
UNCERTAIN = 0.04
"""Standard error (log) of the time of a plain pass from which it is uncertain."""
SURPRISE = 4.0
"""Standard deviations by which an exploration's draft must have been better than expected to cost nothing."""
LONG_PLAIN = 256
"""Plain steps in a row in which the pauses between asking many rows grow by their first length."""
FEW_OCTAVES = 4
"""Octaves of rows, up to 16 rows, that are asked about even if that delays a step: they draft too often."""
MOST_LATE = 0.5
"""Plain steps of delay by asking that are remembered: one long delay may have been chance."""
WHOLE_EVERY = 8
"""Drafts after which a whole one is wanted again, which shows what short ones miss."""

PLAIN_STEPS, DRAFTED_STEPS, TIMING_STEPS = 128, 8, 2
"""Steps for which a plain plan may be applied, one that drafts, and one that is there to time plain decoding:
what is learned in them hardly changes the plan."""
YOUNG_PART = 2
"""An answer of so many steps is asked about again after each; after twice as many steps, every second time.
"""

_UNMEASURED, _NO_DRAFT, _NO_ROOM = (
    Declined(reason) for reason in (Reason.UNMEASURED, Reason.NO_DRAFT, Reason.NO_ROOM)
)
_LEDGER, _TIMING = Declined(Reason.LEDGER), Declined(Reason.TIMING)


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Settings of `auto`; the defaults are meant to be left alone."""

    max_nodes: int = 64
    """Most nodes for one row."""
    max_batch_nodes: int = 512
    """Most nodes for all rows together."""


class _Details(NamedTuple):
    """What `auto` decided in a plan, for `blind_bet`, `arrange` and `learn`."""

    step: StepView | None = None
    """None: no drafter could propose."""
    value: float = 0.0
    """V of the best plan."""
    loss_ms: float = 0.0
    """Expected loss of an exploration; 0 for the best plan."""
    price: Price | None = None
    """Set for a plain plan that may stand: the price of an exploration."""


class Auto:
    """The default policy."""

    name = "auto"

    def __init__(self, experience: Experience, config: AutoConfig | None = None) -> None:
        self.experience = experience
        self.config = config or AutoConfig()
        self.yields = Yields(experience.survival)
        self.paces = Paces()
        self.exploration = Exploration()
        self.standing = StandingPlan()
        self._explored_ms = 0.0
        """What the latest exploration has lost, until its draft is compared with the text."""
        self._balance_ms = 0.0
        """The account of all requests after the latest step."""
        self._late_ms = 0.0
        """Time by which asking drafters has delayed plain steps, less the share of time that it may take."""
        self._since_whole: dict[str, int] = {}
        """Drafts since the last whole one, by drafter."""

    # -- before drafting

    def inquire(self, coming: Coming) -> Inquiry:
        if coming.num_tokens >= MAX_TOKENS or coming.max_depth <= 0 or not self.experience.costs.measured:
            return Inquiry(asks=False)
        # Asking many rows takes the host some time, and the longer they have been plain the longer they stay.
        octave = octave_of(coming.num_rows)
        pause = octave * (1 + coming.num_plain // LONG_PLAIN) if octave > 1 else 1
        is_due = coming.num_plain <= pause or coming.num_plain % pause == 0
        return Inquiry(is_due and (octave <= FEW_OCTAVES or self._late_ms <= 0.0))

    def plan(self, rows: Sequence[Row]) -> Plan:
        """Draft where that pays, and explore where the budget allows it."""
        costs, offers = self.experience.costs, (PLAIN,) * len(rows)
        if not costs.measured or not any(row.can_draft for row in rows):
            return Plan(offers, None, _Details(), _NO_DRAFT if costs.measured else _UNMEASURED)
        standing = self.standing.plan_of(rows)
        if standing is not None and not self._can_explore(_details(standing).step, rows, self.standing.price):
            return standing
        step = self._view(rows)
        plain = Plan(offers, Prediction(step.num_emitting, step.base_ms), _Details(step), _TIMING)
        options = self._options(step, rows) if len(step.prices) > 1 else []
        if not options:
            return plain._replace(declined=_LEDGER if len(step.prices) > 1 else _NO_ROOM)
        if costs.shape(*step.shape).needs_plain(step.base_tokens):
            return plain
        best, allowance_ms = max(options, key=_value), self._allowance_ms(step)
        details = _Details(step, max(best.value, 0.0))
        plain = plain._replace(details=details)
        if best.value > 0.0:
            plain_loss_ms = self._plain_loss_ms(step, best)
            if plain_loss_ms and self.exploration.affords(plain_loss_ms):
                return plain._replace(details=details._replace(loss_ms=plain_loss_ms))
            if best.risk_ms > 0.0:  # It pays only if rows go on drafting, so part of the allowance is kept.
                allowance_ms -= START_ALLOWANCE * step.plain_ms
        else:
            value, best = best.value, min(options, key=_price_of_information)
            price = Price(best.risk_ms, best.draft_ms)
            if not self._can_explore(step, rows, price):
                plain = plain._replace(declined=_declined(Reason.PRICE, step, best))
                return plain._replace(details=details._replace(price=price)) if value < -CLEARLY else plain
            details = details._replace(loss_ms=best.risk_ms)
        if best.draft_ms > allowance_ms:
            return plain._replace(declined=_declined(Reason.LEDGER, step, best))
        tokens = step.num_emitting + sum([best.gains[i] / float(step.weights[i]) for i in best.rows])
        prediction = Prediction(tokens, step.base_ms + best.draft_ms)
        return Plan(self._offers(step, rows, best, options), prediction, details)

    def _can_explore(self, step: StepView | None, rows: Sequence[Row], price: Price) -> bool:
        """Whether another exploration is due, and the budget and the ledger cover it.

        Many rows show at once what one row shows in time, so only one row has to pause.
        """
        is_due = len(rows) > 1 or self.exploration.is_due
        if step is None or not is_due or not self.exploration.affords(price.risk_ms):
            return False
        return price.draft_ms <= self._allowance_ms(step)

    def _view(self, rows: Sequence[Row]) -> StepView:
        """The step of these rows, with the prices of all numbers of nodes that it may have."""
        config, costs = self.config, self.experience.costs
        most = min(config.max_nodes * len(rows), config.max_batch_nodes)
        if len(rows) == 1:
            most = min(most, rows[0].max_nodes)
        step = view_step(costs, rows, self.paces.speedups(rows), most)
        seen = max(costs.largest_seen(*step.shape), step.base_tokens)
        return step.limited(SIZE_STEP * seen - step.base_tokens, self._allowance_ms(step))

    def _options(self, step: StepView, rows: Sequence[Row]) -> list[Option]:
        """The drafts that are possible, of rows whose own account allows it where others pay for them."""
        able: dict[str, list[int]] = {}
        ledger = self.experience.ledger
        for i, row in enumerate(rows):
            share_ms = step.plain_ms * row.num_pending / max(step.base_tokens, 1)
            own_ms = ledger.allowance_ms(ledger.account(row.request_id), share_ms)
            if row.can_draft and (own_ms > 0.0 or len(rows) == 1):
                for name in row.drafters:
                    able.setdefault(name, []).append(i)
        found = list[Option]()
        for name, places in able.items():
            is_due = self._since_whole.get(name, 0) >= WHOLE_EVERY
            found += options_of(step, rows, name, places, self.yields, self.experience, whole_only=is_due)
        return found

    def _allowance_ms(self, step: StepView) -> float:
        """Time that bets may still lose by the account of all requests."""
        ledger = self.experience.ledger
        return ledger.allowance_ms(ledger.total, step.plain_ms, step.shape.num_rows)

    def _plain_loss_ms(self, step: StepView, best: Option) -> float:
        """What a plain step would lose where drafting pays; 0 if its time is known well enough."""
        costs = self.experience.costs
        table = costs.shape(*step.shape)
        is_uncertain = table.error(step.base_tokens) > UNCERTAIN
        if table.age(step.base_tokens) <= (SOON_STEPS if is_uncertain else STALE_STEPS):
            return 0.0
        running = self.experience.running.items()
        native = step.shape.native
        restart_ms = [costs.start_ms(name, len(ids), begins=True, native=native) for name, ids in running]
        return best.value / step.rate + max(restart_ms, default=0.0)

    def _offers(
        self, step: StepView, rows: Sequence[Row], best: Option, options: Sequence[Option]
    ) -> tuple[Offer, ...]:
        """The offers of the best option, and of another drafter for rows to which that is worth more."""
        offers = [PLAIN] * len(rows)
        for place in best.rows:
            offers[place] = Offer(best.drafter, best.depth)
        if best.value <= 0.0 or len(rows) == 1:
            return tuple(offers)
        for other in {one.drafter: one for one in reversed(options) if one.drafter != best.drafter}.values():
            more = {i: gain - (best.gains[i] if i in best.rows else 0.0) for i, gain in other.gains.items()}
            moved = [i for i, gain in more.items() if gain > 0.0]
            shape = DraftShape(max(len(moved), 1), native=step.shape.native)
            price_ms = self.experience.costs.draft_ms(other.drafter, shape)
            if moved and sum([more[i] for i in moved]) > step.rate * price_ms:
                for i in moved:
                    offers[i] = Offer(other.drafter)
                break
        return tuple(offers)

    # -- the number of nodes

    def blind_bet(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        """The best numbers of nodes on the expected curves; None where the order of nodes is not known."""
        step = _details(plan).step
        if step is None:
            return None
        curves = [np.empty(0)] * len(rows)
        weights: list[tuple[float, float, float] | None] = [None] * len(rows)
        for i, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            if draft is None:
                continue
            most = min(row.max_nodes, self.config.max_nodes)
            if draft.has_come:
                most = min(most, draft.num_depths)
            else:
                calibrator = self.yields.calibrator_of(row, draft)
                if calibrator is None or not calibrator.keeps_order:
                    return None
                weights[i] = calibrator.weights[0], calibrator.weights[1], calibrator.weights[2]
            curves[i] = np.minimum(self.yields.mean_curve(row, draft.drafter), draft.num_depths)[:most]
        nodes, value = best_shares(step, curves)
        return Blind(nodes, weights) if value > 0.0 else None

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        """The best number of nodes on these drafts' own curves."""
        step = _details(plan).step
        if step is None or not any(drafts):
            return build_forest(np.empty((len(rows), 0, 0)), 0)
        forest = best_nodes(step, rows, drafts, self.yields, self.config.max_nodes)
        values: FloatArray = forest.path_probs.cumsum() - step.prices[1 : 1 + forest.num_nodes]
        count = int(values.argmax()) + 1 if len(values) and values.max() > 0.0 else 0
        return forest.first(count)

    def multi_step(self, plan: Plan, rows: Sequence[Row]) -> MultiStep | None:
        """A plain plan, or one that is expected to pay, may be applied for some steps; what it risks is less
        than the ledger allows. An exploration is one step.
        """
        step, loss_ms = _details(plan).step, _details(plan).loss_ms
        if not plan.drafts:
            return MultiStep(TIMING_STEPS if step is None or loss_ms else PLAIN_STEPS)
        drafting = [row for row, offer in zip(rows, plan.offers, strict=True) if offer.drafter is not None]
        offers = {offer for offer in plan.offers if offer.drafter is not None}
        calibrations = {
            self.yields.calibration(row, offer.drafter or "") for row in drafting for offer in offers
        }
        calibrator = next(iter(calibrations))
        if len(offers) > 1 or len(calibrations) > 1 or calibrator is None:
            return None
        assert step is not None and plan.prediction is not None
        draft_ms = max(plan.prediction.time_ms - step.base_ms, 1e-6)
        youngest = min(self.yields.num_steps(row.request_id) for row in drafting)
        num_steps = min(1 + youngest // YOUNG_PART, DRAFTED_STEPS, int(self._allowance_ms(step) / draft_ms))
        rule = NodeRule(step.prices, step.weights, self.config.max_nodes, calibrator.log_odds_map)
        return MultiStep(1 if loss_ms else max(num_steps, 1), rule)

    # -- after the step

    def learn(self, *outcomes: StepOutcome) -> None:
        for outcome in outcomes:
            self._learn_drafts(outcome)
        self.paces.learn(outcomes, self.experience.costs)

    def _learn_drafts(self, outcome: StepOutcome) -> None:
        drafted = [share for share in outcome.rows if share.draft is not None]
        plan = outcome.plan
        price = plan.details.price if plan and isinstance(plan.details, _Details) else None
        self.standing.learn(outcome, price, has_learned=bool(drafted or outcome.evidence))
        deviations = [self.yields.learn_evidence(item) for item in outcome.evidence]
        for number, share in enumerate(drafted):
            assert share.draft is not None
            with_curve = number < LEARNED_CURVES
            self.yields.learn_draft(share.row, share.draft, len(drafted), with_curve=with_curve)
        for share in outcome.rows:
            self.yields.step(share.row.request_id, outcome.num_steps)
        for name in {share.offer.drafter for share in outcome.rows if share.offer.drafter}:
            depths = [share.offer.depth for share in outcome.rows if share.offer.drafter == name]
            self._since_whole[name] = 0 if 0 in depths else self._since_whole.get(name, 0) + 1
        self._settle(outcome, max(deviations, default=0.0))

    def _settle(self, outcome: StepOutcome, deviation: float) -> None:
        """Credit the exploration budget with the time of the step, and charge it with what it explored.

        What an exploration is charged with is what it has really lost: expectations may be wrong for long.
        If its draft proves much better than expected, it is not charged, so that the next one comes soon. A
        plain step in which drafters were asked in vain is charged with the time for which it waited.
        """
        costs, budget, rows = self.experience.costs, self.exploration, [share.row for share in outcome.rows]
        if not costs.measured:
            return
        curve = costs.curve(*shape_of_rows(rows))
        plain_ms = float(curve[min(len(rows), MAX_TOKENS)])
        elapsed_ms = (outcome.verify_ms + outcome.draft_ms) * outcome.num_steps
        budget.earn(elapsed_ms, plain_ms, self._gained_ms(), outcome.num_steps)
        if deviation > SURPRISE:
            budget.settle(self._explored_ms, plain_ms)
            self._explored_ms = 0.0
        details = None if outcome.plan is None else outcome.plan.details
        if not isinstance(details, _Details):
            return
        step, waited_ms, drafts = details.step, 0.0, any(share.offer.drafter for share in outcome.rows)
        if not drafts and not outcome.is_typical:
            waited_ms = max(0.0, outcome.verify_ms - float(curve[min(outcome.num_tokens, MAX_TOKENS)]))
        # Asking drafters behind a pass in flight, whose step has no plan of its own, may delay that step.
        late_ms = waited_ms if step is None else 0.0
        self._late_ms = min(self._late_ms + late_ms, MOST_LATE * plain_ms)
        self._late_ms = max(0.0, self._late_ms - EXPLORED_SHARE * elapsed_ms)
        if step is None:
            return
        if not drafts:
            budget.settle(-details.loss_ms - waited_ms, plain_ms)
        elif details.loss_ms:
            nodes = sum([share.num_nodes for share in outcome.rows])
            accepted = np.array([share.accepted for share in outcome.rows])
            price = step.prices[min(nodes, len(step.prices) - 1)]
            gained_ms = float(step.weights @ accepted - price) / step.rate - outcome.draft_ms
            budget.settle_draft(gained_ms, plain_ms)
            self._explored_ms = max(-gained_ms, 0.0)

    def _gained_ms(self) -> float:
        """By how much the account of all requests rose in the latest step."""
        before, self._balance_ms = self._balance_ms, self.experience.ledger.total.balance_ms
        return max(0.0, self._balance_ms - before)

    def forget(self, request_id: Hashable) -> None:
        self.yields.forget(request_id)
        self.paces.forget(request_id)


def _declined(reason: Reason, step: StepView, best: Option) -> Declined:
    return Declined(reason, sum([best.gains[i] for i in best.rows]), step.rate * best.draft_ms)


def _details(plan: Plan) -> _Details:
    assert isinstance(plan.details, _Details)
    return plan.details


def _value(option: Option) -> float:
    return option.value


def _price_of_information(option: Option) -> float:
    """What an exploration loses for what it teaches: the more, the more rows draft."""
    return option.risk_ms / math.pow(len(option.rows), INFORMATION)
