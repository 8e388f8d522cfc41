"""`auto`: the bet that makes tokens per second highest over the long run and never loses to plain decoding.

One objective for any number of rows. A plan (who drafts, with which drafter, how many nodes are verified) has
the value

    V(plan) = sum over rows of E_r(plan) / S_r  -  R * T(plan) / c(R)

    E_r   expected tokens of row r beyond the one that plain decoding gives it        (yields.py)
    S_r   running speed-up of row r over plain decoding                               (pace.py)
    R     rows that emit a token
    T     predicted time of the step beyond a plain one: drafts, host, nodes          (costs.py)
    c(R)  time of a plain step of R rows                                              (costs.py)

which is 0 for plain decoding. For one row it is the classic rule, tokens minus the long-run rate times the
extra time; for several rows it is the gradient of the sum of the logarithms of their speeds. The best plan is
taken if its value is positive and the ledger allows its loss. A plan of negative value, or a plain step where
drafting pays, is taken when the exploration budget covers the expected loss (exploration.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wager.policy.allowance import Allowance, can_draft
from wager.policy.base import (
    PLAIN,
    Blind,
    Coming,
    Draft,
    FloatArray,
    Inquiry,
    Offer,
    Plan,
    Prediction,
    Row,
    StepOutcome,
)
from wager.policy.costs import MAX_TOKENS, DraftShape
from wager.policy.experience import Experience, longest_context
from wager.policy.exploration import Exploration
from wager.policy.nodes import best_nodes
from wager.policy.pace import Paces
from wager.policy.resting import Resting
from wager.policy.valuation import StepView, best_shares, limited, row_values, view_step
from wager.policy.yields import LEARNED_CURVES, YOUNG_STEPS, Yields
from wager.tree import Forest, build_forest

SAVED_SURPLUS = 1.25
"""Budget saved before drafters are asked again, relative to the price now, because prices move."""
FIRST_RUN = 16.0
"""Steps in a row that rows are taken to draft at first; they share the time of their start."""
RUN_RATE = 0.25
"""Share of the newest run in how long rows draft."""
SIZE_STEP = 2
"""Factor by which a pass may exceed the largest one measured: beyond it the cost is a guess."""
SMALLEST_PART = 4
"""Rows up to which all of them draft or none does: a draft of fewer takes about as long."""
INFORMATION = 0.5
"""Power of the number of its rows that an exploration is worth."""
STALE_STEPS = 256
"""Passes after which a plain pass should be timed again."""
UNSURE = 0.04
"""Standard error (log) of a plain pass above which it should be timed again sooner."""
WHOLE_EVERY = 8
"""Drafts after which a whole one is wanted again, which shows what short ones miss."""
DOUBTFUL_STEPS = 2
"""Plain steps without asking after the machine changed its level: plain decoding is timed anew in them."""
SINGLE_RISK = 0.5
"""Part of the ledger's allowance beyond one plain step that the nodes of one step may risk."""


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Settings of `auto`; the defaults are meant to be left alone."""

    max_nodes: int = 64
    """Most nodes for one row."""
    max_batch_nodes: int = 512
    """Most nodes for all rows together."""


class _Option(NamedTuple):
    """A draft of some rows with one drafter, and its value."""

    value: float
    drafter: str
    depth: int
    rows: tuple[int, ...]
    gains: dict[int, float]
    """What the draft is worth to each row that could have it, without the draft's own time."""
    draft_ms: float
    start_ms: float
    """The part of `draft_ms` that is due to rows which did not draft in the step before."""


class _Details(NamedTuple):
    """What `auto` decided in a plan, for `blind_bet`, `arrange` and `learn`."""

    step: StepView | None = None
    """None: no drafter was asked."""
    loss_ms: float = 0.0
    """Expected loss of this plan against the best one, paid by the exploration budget."""
    rest: int = 0
    """Plain steps behind this one for which no drafter need be asked."""
    considered_ms: float = 0.0
    """Price of an exploration that was wanted and not taken."""
    gain_ms: float = 0.0
    """Time that the best plan is expected to gain; 0 where drafting does not pay."""


class Auto:
    """The default policy."""

    name = "auto"

    def __init__(self, experience: Experience, config: AutoConfig | None = None) -> None:
        self.experience = experience
        self.config = config or AutoConfig()
        self.yields = Yields(experience.survival)
        self.paces = Paces()
        self.allowance = Allowance(experience.ledger)
        self.exploration = Exploration()
        self.resting = Resting(experience.costs.drafters)
        self._running: frozenset[str] = frozenset()
        """Drafters that ran in the latest step."""
        self._run_steps, self._run = FIRST_RUN, 0
        """How many steps runs of drafts last on the mean, and how many the present one has lasted."""
        self._since_whole: dict[str, int] = {}
        """Drafts since the last whole one, by drafter."""

    # -- before drafting

    def inquire(self, coming: Coming) -> Inquiry:
        is_small = coming.num_tokens < MAX_TOKENS and coming.max_depth > 0
        is_measured = self.experience.costs.measured
        return Inquiry(is_small and is_measured and not self.resting.holds(coming.num_rows, coming.ahead))

    def plan(self, rows: Sequence[Row]) -> Plan:
        plain, costs = (PLAIN,) * len(rows), self.experience.costs
        num_tokens = sum([row.num_pending for row in rows])
        coming = Coming(len(rows), num_tokens, max([row.max_depth for row in rows], default=0))
        if not self.inquire(coming).asks:
            return Plan(plain, None, _Details())
        step = self._view(rows)
        prediction, details = Prediction(step.num_emitting, step.base_ms), _Details(step)
        table = costs.shape(len(rows), step.context_len)
        if table.is_doubtful(step.base_tokens):
            return Plan(plain, prediction, details._replace(rest=DOUBTFUL_STEPS))
        options = self._options(step, rows)
        if not options:
            return Plan(plain, prediction, details._replace(rest=self.allowance.until_rows_may(step, rows)))
        best = max(options, key=_value)
        if best.value <= 0.0:
            # Nothing pays. An exploration teaches the more, the more rows draft.
            best = min(options, key=lambda one: _loss_ms(one, step) / len(one.rows) ** INFORMATION)
        loss_ms, rest = (
            _loss_ms(best, step),
            self.allowance.until_bearable(step, best.draft_ms),
        )
        if best.value > 0.0:
            details = details._replace(gain_ms=loss_ms)
            if table.age(step.base_tokens) > STALE_STEPS or (
                table.error(step.base_tokens) > UNSURE and table.age(step.base_tokens) > 2
            ):
                loss_ms += max(
                    [
                        costs.start_ms(name, len(ids), begins=True)
                        for name, ids in self.experience.running.items()
                    ],
                    default=0.0,
                )
                if self.exploration.affords(loss_ms):
                    return Plan(plain, prediction, details._replace(loss_ms=loss_ms))
                details = details._replace(considered_ms=loss_ms)
        elif self.exploration.affords(loss_ms):
            details = details._replace(loss_ms=loss_ms)
        else:
            details = details._replace(considered_ms=loss_ms)
            rest = max(rest, self.exploration.steps_until(SAVED_SURPLUS * loss_ms, step.plain_ms))
        if rest:
            if 2 * sum([self.yields.is_young(row.request_id) for row in rows]) > len(rows):
                rest = min(rest, YOUNG_STEPS)
            return Plan(plain, prediction, details._replace(rest=rest, loss_ms=0.0))
        offers = self._offers(step, rows, best, options)
        tokens = step.num_emitting + sum([best.gains[i] / float(step.weights[i]) for i in best.rows])
        return Plan(offers, Prediction(tokens, step.base_ms + best.draft_ms), details)

    def _view(self, rows: Sequence[Row]) -> StepView:
        """The step of these rows, with the prices of all numbers of nodes that it may have."""
        config, costs = self.config, self.experience.costs
        most = min(config.max_nodes * len(rows), config.max_batch_nodes)
        if len(rows) == 1:
            most = min(most, rows[0].max_nodes)
        step = view_step(costs, rows, self.paces.speedups(rows), most)
        seen = max(costs.largest_seen(len(rows), step.context_len), step.base_tokens)
        allowance_ms = self.allowance.of_all_ms(step)
        risk_ms = min(allowance_ms, step.plain_ms + SINGLE_RISK * (allowance_ms - step.plain_ms))
        return limited(step, SIZE_STEP * seen - step.base_tokens, risk_ms)

    def _options(self, step: StepView, rows: Sequence[Row]) -> list[_Option]:
        """The drafts that are possible: by drafter, depth, and number of rows."""
        able: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            if can_draft(row) and self.allowance.of_row_ms(row, step) > 0.0:
                for name in row.drafters:
                    able.setdefault(name, []).append(i)
        return [
            option for name, places in able.items() for option in self._options_of(step, rows, name, places)
        ]

    def _options_of(self, step: StepView, rows: Sequence[Row], name: str, places: list[int]) -> list[_Option]:
        costs, found = self.experience.costs, list[_Option]()
        groups = self.yields.groups(rows, places, name)
        ordered = [place for _, group in groups for place in group.places]
        running = self.experience.running.get(name, frozenset())
        runs = np.array([rows[place].request_id in running for place in ordered])
        # A row pays its start over the steps that it will draft, and so does it if it stops: it will start again.
        spread = step.rate * costs.start_ms(name, 1, begins=False) / self._run_steps
        begin_ms = costs.start_ms(name, 0, begins=True) / self._run_steps
        whole_ms = costs.draft_ms(name, DraftShape(len(places)))
        due = self._since_whole.get(name, 0) >= WHOLE_EVERY
        for depth in (0,) if due else (0, *self.yields.depths(name, groups[0][0][1])):
            if depth and costs.draft_ms(name, DraftShape(len(places), depth)) > 0.98 * whole_ms:
                continue  # A shorter draft that saves no time shows less for the same price.
            own = [self.yields.at_depth(key, group, depth) for key, group in groups]
            num = len(places)
            while num:
                values = row_values(step, own, num)
                worth = values + np.where(runs, spread, -spread)
                order = np.argsort(-worth, kind="stable")[:num]
                shape = DraftShape(num, depth, num - int(runs[order].sum()))
                start_ms = costs.start_ms(name, shape.num_starting, begins=shape.begins)
                draft_ms = costs.draft_ms(name, shape)
                spread_ms = draft_ms - start_ms + (begin_ms if shape.begins else -begin_ms)
                value = float(worth[order].sum()) - step.rate * spread_ms
                chosen = tuple(sorted([ordered[i] for i in order.tolist()]))
                gains = dict(zip(ordered, values.tolist(), strict=True))
                found.append(_Option(value, name, depth, chosen, gains, draft_ms, start_ms))
                num = num // 2 if num > SMALLEST_PART else 0
        return found

    def _offers(
        self, step: StepView, rows: Sequence[Row], best: _Option, options: Sequence[_Option]
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
            price_ms = self.experience.costs.draft_ms(other.drafter, DraftShape(max(len(moved), 1)))
            if moved and sum([more[i] for i in moved]) > step.rate * price_ms:
                for i in moved:
                    offers[i] = Offer(other.drafter)
                break
        return tuple(offers)

    # -- the number of nodes

    def blind_bet(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        step = _details(plan).step
        if step is None:
            return None
        curves: list[FloatArray] = []
        weights: list[tuple[float, float, float] | None] = []
        for row, draft in zip(rows, drafts, strict=True):
            if draft is None:
                curves.append(np.empty(0))
                weights.append(None)
                continue
            phase = row.phase_of(draft.drafter)
            calibrator = self.yields.calibrator(draft.drafter, phase)
            is_known = calibrator.keeps_order and self.yields.knows_scores(draft.drafter, phase)
            if not draft.has_come and not is_known:
                return None
            curve = np.minimum(self.yields.mean_curve(row, draft.drafter), draft.num_depths)
            most = min(row.max_nodes, self.config.max_nodes)
            curves.append(curve[: min(most, draft.num_depths) if draft.has_come else most])
            w = calibrator.weights
            weights.append(None if draft.has_come else (w[0], w[1], w[2]))
        nodes, value = best_shares(step, curves)
        return Blind(nodes, weights) if value > 0.0 else None

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        step = _details(plan).step
        if step is None or not any(drafts):
            return build_forest(np.empty((len(rows), 0, 0)), 0)
        forest = best_nodes(step, rows, drafts, self.yields, self.config.max_nodes)
        values = forest.path_probs.cumsum() - step.prices[1 : 1 + forest.num_nodes]
        count = int(values.argmax()) + 1 if len(values) and values.max() > 0.0 else 0
        row, depth, rank, parent, score = forest
        return Forest(row[:count], depth[:count], rank[:count], parent[:count], score[:count])

    # -- after the step

    def learn(self, outcome: StepOutcome) -> None:
        before, drafted = self._running, [share for share in outcome.rows if share.draft is not None]
        for item in outcome.evidence:
            self.yields.learn_evidence(item)
        for number, share in enumerate(drafted):
            assert share.draft is not None
            self.yields.learn_draft(share.row, share.draft, len(drafted), with_curve=number < LEARNED_CURVES)
        for share in outcome.rows:
            self.yields.step(share.row.request_id)
        self._running = frozenset([share.offer.drafter for share in outcome.rows if share.offer.drafter])
        for name in self._running:
            depths = [share.offer.depth for share in outcome.rows if share.offer.drafter == name]
            self._since_whole[name] = 0 if 0 in depths else self._since_whole.get(name, 0) + 1
        if self._running:
            self._run += 1
            self._run_steps = max(self._run_steps, self._run)
        elif self._run:
            self._run_steps += RUN_RATE * (self._run - self._run_steps)
            self._run = 0
        self.paces.learn(outcome, self.experience.costs)
        details = None if outcome.plan is None else outcome.plan.details
        if isinstance(details, _Details):
            self._learn_exploration(outcome, details, begins=bool(self._running - before))

    def _learn_exploration(self, outcome: StepOutcome, details: _Details, *, begins: bool) -> None:
        """What the step cost the exploration budget, and for how long no drafter need be asked."""
        rows, num_rows = [share.row for share in outcome.rows], len(outcome.rows)
        plain_ms = self.experience.costs.plain_ms(num_rows, longest_context(rows))
        vain_ms = 0.0
        if details.step is not None:
            is_vain = not self._running and not outcome.is_typical
            vain_ms = max(0.0, outcome.verify_ms - details.step.base_ms) if is_vain else 0.0
            self.resting.asked(rows, details.gain_ms, None if self._running else vain_ms, plain_ms)
        if details.considered_ms or details.loss_ms:
            self.exploration.consider(max(details.considered_ms, details.loss_ms))
        self.exploration.earn(outcome.verify_ms + outcome.draft_ms, plain_ms)
        self.exploration.spend(self._explored_ms(outcome, details) + vain_ms)
        rest = self._affordable(num_rows, plain_ms, details.rest)
        self.resting.step(num_rows, rest if details.step is not None else None)
        if self.resting.holds(num_rows) or (self._running and not begins and not details.loss_ms):
            return
        # Drafters that can mostly propose need not be asked to know that nothing would come of it.
        again = self.plan([self.resting.assumed(row) for row in rows]).details
        if isinstance(again, _Details) and again.considered_ms:
            self.exploration.consider(again.considered_ms)
        if isinstance(again, _Details) and again.step is not None and again.rest:
            self.resting.extend(num_rows, self._affordable(num_rows, plain_ms, again.rest))

    def _explored_ms(self, outcome: StepOutcome, details: _Details) -> float:
        """What an exploration really lost: what was expected of it may be wrong for long."""
        step = details.step
        if step is None or not details.loss_ms or not self._running:
            return details.loss_ms
        nodes = sum([share.num_nodes for share in outcome.rows])
        weights: list[float] = step.weights.tolist()
        gained = sum([weight * s.accepted for weight, s in zip(weights, outcome.rows, strict=True)])
        price = float(step.prices[min(nodes, len(step.prices) - 1)])
        return outcome.draft_ms + (price - gained) / step.rate

    def _affordable(self, num_rows: int, plain_ms: float, rest: int) -> int:
        """A shorter rest where asking drafters that can propose only now and then pays."""
        asking_ms = self.resting.worth_asking(num_rows, plain_ms)
        if asking_ms is None:
            return rest
        return min(rest, self.exploration.steps_until(SAVED_SURPLUS * asking_ms, plain_ms))

    def forget(self, request_id: Hashable) -> None:
        self.yields.forget(request_id)
        self.paces.forget(request_id)


def _details(plan: Plan) -> _Details:
    assert isinstance(plan.details, _Details)
    return plan.details


def _value(option: _Option) -> float:
    return option.value


def _loss_ms(option: _Option, step: StepView) -> float:
    """Time that is lost by taking this option where it does not pay, or by not taking it where it does."""
    if option.value > 0.0:
        return option.value / step.rate
    return option.start_ms - option.value / step.rate
