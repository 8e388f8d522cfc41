"""`auto`: the bet that makes tokens per second highest over the long run, and never loses to plain decoding.

With lambda the long-run rate (tokens per millisecond), the best n nodes of a draft are worth

    sum of their path probabilities - lambda * (cost(n) - cost(0))

and the bet is the n where that is highest, over all n. A draft is made when what drafts have been worth
lately exceeds lambda * its time; while it does not, backed-off probes keep learning. The ledger caps what one
step may lose. Calibrated chances come from calibration.py, costs from cost.py, places from allocation.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from wager.policy.allocation import allocate
from wager.policy.base import (
    PLAIN,
    UNLIMITED,
    Draft,
    FloatArray,
    Offer,
    Prediction,
    Row,
    StepOutcome,
    limits_of,
    stack_scores,
)
from wager.policy.calibration import Calibrator
from wager.policy.cost import MAX_TOKENS
from wager.policy.experience import Experience, longest_context
from wager.policy.gain import Probe, SteadyMean
from wager.policy.ledger import Account
from wager.tree import Forest, build_forest

_RATE_MEMORY = 0.99  # per step, of the long-run speed-up
_STAKE_STEPS = 0.5  # plain steps that one bet may cost beyond what its accounts bear
_START_STEPS = 2.0  # plain steps that a request may be behind before it has had time to gain,
_BACKED_STEPS = 2.0  # and at most so many more
_BACKING = 0.05  # out of this share of what all requests together have saved
_OWN_STEPS = 8.0  # plain steps of its own after which a request's pace counts as much as the others'
_REFRESH = 64  # steps after which the plain pass is timed again,
_CHEAP = 0.3  # at a step whose best bet is worth no more than this many tokens
_WAKE = 2.5  # standard deviations of good surprise that end the waiting between probes
_SIZE_STEP = 2  # a pass may be at most this many times the largest one measured


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Settings of `auto`; the defaults are meant to be left alone."""

    max_nodes: int = 64
    """Most nodes for one row."""
    max_batch_nodes: int = 512
    """Most nodes for all rows together."""
    row_floor: int = 1
    """Places a drafted row keeps in a shared pass, where there are enough for all."""
    longest_probe: int = 48
    """Most steps between two looks at a drafter that is not worth running."""
    first_gain: float = 0.5
    """Tokens a draft is assumed to be worth before one was seen."""


@dataclass(slots=True)
class _Line:
    """What is known of one drafter in one phase."""

    calibrator: Calibrator
    gain: SteadyMean
    probe: Probe


@dataclass(slots=True)
class _Own:
    """What one request has shown so far; it starts as the others were lately, and soon goes by itself."""

    worth: float
    """Plain time of what it emitted, in plain steps,"""
    spent: float
    """and the time spent on that."""
    gains: dict[tuple[str, str], SteadyMean] = field(default_factory=dict)
    """What drafts were worth to it, by drafter and phase."""


@dataclass(slots=True)
class _Step:
    """The step under way, between offer and learn."""

    rate: float = 0.0
    base_tokens: int = 0
    base_ms: float = 0.0
    """The pass without any guess."""
    costs: FloatArray | None = None
    probing: set[str] = field(default_factory=set)
    """Drafters that run in this step only to see whether they are worth it again."""
    expected: dict[int, float] | None = None


def _argmax_nodes(values: FloatArray) -> int:
    """The number of nodes worth most; 0 where none is worth anything."""
    best = int(values.argmax()) if len(values) else -1
    return best + 1 if best >= 0 and values[best] > 0.0 else 0


class Auto:
    """The default policy."""

    name = "auto"
    never_drafts = False

    def __init__(self, experience: Experience, config: AutoConfig | None = None) -> None:
        self.experience = experience
        self.config = config or AutoConfig()
        self.prediction = Prediction(1.0, 0.0)
        self._lines: dict[tuple[str, str], _Line] = {}
        self._own: dict[Hashable, _Own] = {}
        self._plain_worth = 20.0  # discounted plain time of what was emitted,
        self._spent = 20.0  # and discounted time spent, in plain steps
        self._step = _Step()

    # -- before drafting

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        step, offers = self._begin(rows), [PLAIN] * len(rows)
        if not self.experience.costs.measured:
            return offers  # the first passes tell what plain decoding costs
        ledger, tokens = self.experience.ledger, max(step.base_tokens, 1)
        by_drafter: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            name = self._best_drafter(row)
            if name and self._may_bet(
                ledger.account(row.request_id), self._start_steps() * row.num_pending / tokens
            ):
                by_drafter.setdefault(name, []).append(i)
        if not by_drafter or not self._may_bet(ledger.total, 1.0):
            return offers
        for drafter, places in by_drafter.items():
            if self._worth_drafting(drafter, [rows[i] for i in places], step):
                for i in places:
                    offers[i] = Offer(drafter)
        return offers

    def _begin(self, rows: Sequence[Row]) -> _Step:
        context_len = tokens = num_emitting = 0
        for row in rows:
            context_len = max(context_len, row.context_len)
            tokens += row.num_pending
            num_emitting += row.emits
        costs = self.experience.costs.curve(len(rows), context_len)
        tokens, num_emitting = min(tokens, MAX_TOKENS), max(num_emitting, 1)
        base_ms = plain_ms = float(costs[tokens])
        if num_emitting != tokens:
            plain_ms = float(costs[min(num_emitting, MAX_TOKENS)])
        self._step = _Step(self._pace(rows) / plain_ms, tokens, base_ms, costs)
        self.prediction = Prediction(float(num_emitting), base_ms)
        return self._step

    def _pace(self, rows: Sequence[Row]) -> float:
        """Tokens per plain step that these rows make together: what a millisecond is worth to them."""
        total = 0.0
        for row in rows:
            if row.emits:
                own = self._of(row.request_id)
                total += max(1.0, own.worth / own.spent)
        return max(total, 1.0)

    def _of(self, request_id: Hashable) -> _Own:
        own = self._own.get(request_id)
        if own is None:
            speedup = max(1.0, self._plain_worth / self._spent)
            own = self._own[request_id] = _Own(_OWN_STEPS * speedup, _OWN_STEPS)
        return own

    def _gain(self, row: Row, drafter: str) -> SteadyMean:
        """What drafts have been worth to this request, starting from what they were worth to all."""
        gains, key = self._of(row.request_id).gains, (drafter, row.phase)
        gain = gains.get(key)
        if gain is None:
            gain = gains[key] = self._line(drafter, row.phase).gain.copy()
        return gain

    def _best_drafter(self, row: Row) -> str | None:
        if row.max_depth <= 0 or row.max_nodes <= 0 or not row.drafters or not row.emits:
            return None
        if len(row.drafters) == 1:
            return row.drafters[0]
        rate, costs = self._step.rate, self.experience.costs

        def net(drafter: str) -> float:
            draft_ms = costs.draft_ms(drafter, 1, row.context_len)
            return self._gain(row, drafter).value - rate * draft_ms

        return max(row.drafters, key=net)

    def _worth_drafting(self, drafter: str, rows: list[Row], step: _Step) -> bool:
        gross, context_len = 0.0, 0
        probes: dict[str, Probe] = {}
        for row in rows:
            gross += max(0.0, self._gain(row, drafter).value)
            context_len = max(context_len, row.context_len)
            probes[row.phase] = self._line(drafter, row.phase).probe
        if gross > step.rate * self.experience.costs.draft_ms(drafter, len(rows), context_len):
            return True
        due = False
        for probe in probes.values():
            due = probe.due() or due  # each one counts this step
        if due:
            step.probing.add(drafter)
        return due

    def _start_steps(self) -> float:
        """Plain steps that a request may be behind at first: more where all together are well ahead."""
        saved = max(0.0, self.experience.ledger.total.balance_ms) / self._step.base_ms
        return _START_STEPS + min(_BACKED_STEPS, _BACKING * saved)

    def _may_bet(self, account: Account, start_steps: float) -> bool:
        """Whether an account bears one more step.

        `start_steps`: plain steps that it may be behind whatever the floor. Were every guess refused, it
        would end at most the cost of that one step below the floor.
        """
        return self.experience.ledger.allowance_ms(account, self._step.base_ms * start_steps) > 0.0

    # -- after drafting

    def arrange(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        step, costs = self._step, self._step.costs
        assert costs is not None
        scores = stack_scores(drafts, lambda i, draft: self._increments(rows[i], draft))
        room = self._room(rows, drafts)
        alone = len(rows) == 1  # then the room is its cap
        limits = limits_of(rows, drafts, UNLIMITED if alone else self.config.max_nodes)
        forest = build_forest(
            scores,
            room,
            row_caps=None if alone else limits.row_caps,
            max_depths=limits.max_depths,
            spine_only=limits.spine_only,
        )
        base = step.base_tokens
        worth = forest.path_probs.cumsum()
        values = worth - step.rate * (costs[base + 1 : base + 1 + len(worth)] - costs[base])
        num_nodes = _argmax_nodes(values)
        if num_nodes and values[num_nodes - 1] < _CHEAP and self._plain_is_stale(rows):
            num_nodes = 0
        drafted = sum(draft is not None for draft in drafts)
        floor = self.config.row_floor if len(rows) > 1 and num_nodes >= drafted else 0
        self._note_expected(forest, worth, num_nodes, drafts)
        if num_nodes:
            self.prediction = Prediction(
                self.prediction.tokens + float(worth[num_nodes - 1]),
                float(costs[base + num_nodes]) + self._draft_ms(rows, drafts),
            )
        return allocate(forest, num_nodes, floor)

    def _plain_is_stale(self, rows: Sequence[Row]) -> bool:
        """Whether a pass without guesses was timed too long ago to be trusted as the measure of all bets."""
        table = self.experience.costs.shape(len(rows), longest_context(rows))
        base = self._step.base_tokens
        unsure = table.error(base) > 0.04
        return table.age(base) > (2 if unsure else _REFRESH)

    def _increments(self, row: Row, draft: Draft) -> FloatArray:
        if draft.logprobs is None:
            return self.experience.survival.log_rates(draft.num_depths, (draft.drafter, row.phase))
        return self._line(draft.drafter, row.phase).calibrator.log_acceptance(draft.logprobs)

    def _room(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> int:
        """Places that may be used: by configuration, by what has been measured, by what may be lost."""
        step, costs = self._step, self._step.costs
        assert costs is not None
        config, base = self.config, step.base_tokens
        most = min(config.max_nodes * len(rows), config.max_batch_nodes, MAX_TOKENS - base)
        if len(rows) == 1:
            most = min(most, rows[0].max_nodes)
        seen = max(self.experience.costs.largest_seen(len(rows), longest_context(rows)), base)
        most = max(0, min(most, _SIZE_STEP * seen - base))
        dearest = costs[base] + self._stake_ms(rows)
        if costs[base + most] <= dearest:
            return most
        return int(np.searchsorted(costs[base + 1 : base + 1 + most], dearest, "right"))

    def _stake_ms(self, rows: Sequence[Row]) -> float:
        """What the guesses of a step may cost if all are refused: what the accounts bear, and a little."""
        costs, ledger = self._step.costs, self.experience.ledger
        assert costs is not None
        plain_ms = float(costs[self._step.base_tokens])
        bearable = ledger.allowance_ms(ledger.total, plain_ms)
        if len(rows) == 1:
            own = ledger.account(rows[0].request_id)
            bearable = min(bearable, ledger.allowance_ms(own, self._start_steps() * plain_ms))
        return bearable + _STAKE_STEPS * plain_ms

    def _draft_ms(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> float:
        names = [draft.drafter for draft in drafts if draft is not None]
        context_len = longest_context(rows)
        return sum(
            self.experience.costs.draft_ms(name, names.count(name), context_len) for name in set(names)
        )

    def _note_expected(
        self, forest: Forest, worth: FloatArray, num_nodes: int, drafts: Sequence[Draft | None]
    ) -> None:
        """Each drafted row's expected gain: its nodes' worth, less its share of what they cost."""
        step, costs = self._step, self._step.costs
        assert costs is not None
        step.expected = {}
        base = step.base_tokens
        price = 0.0
        if num_nodes:
            price = step.rate * float(costs[base + num_nodes] - costs[base]) / num_nodes
        if len(drafts) == 1 and drafts[0] is not None:
            step.expected[0] = float(worth[num_nodes - 1]) - price * num_nodes if num_nodes else 0.0
            return
        probs, places = forest.path_probs[:num_nodes], forest.row[:num_nodes]
        for i, draft in enumerate(drafts):
            if draft is not None:
                own = places == i
                step.expected[i] = float(probs[own].sum()) - price * int(own.sum())

    # -- after the step

    def learn(self, outcome: StepOutcome) -> None:
        step, costs = self._step, self._step.costs
        if costs is None:
            return
        self._learn_rate(outcome, costs)
        if step.expected:
            self._learn_gains(outcome, step.expected, costs)
        for item in outcome.evidence:
            line = self._line(item.drafter, item.phase)
            surprise = line.calibrator.learn(item)
            if surprise.shifted:
                self._restart(item.drafter, item.phase)
            if surprise.deviation > _WAKE:
                line.probe.result(won=True)  # far better than thought: look again at once
        step.costs = None

    def _restart(self, drafter: str, phase: str) -> None:
        """The drafter has changed: what its drafts were worth before says little, to anyone."""
        self._line(drafter, phase).gain.restart()
        for own in self._own.values():
            gain = own.gains.get((drafter, phase))
            if gain is not None:
                gain.restart()

    def _learn_gains(self, outcome: StepOutcome, expected: dict[int, float], costs: FloatArray) -> None:
        """What each drafted row's bet was worth: half as expected, half as it came."""
        step = self._step
        total_nodes = sum([share.num_nodes for share in outcome.rows])
        price = 0.0
        if total_nodes:
            tokens = min(step.base_tokens + total_nodes, MAX_TOKENS)
            price = step.rate * (float(costs[tokens]) - step.base_ms) / total_nodes
        for i, share in enumerate(outcome.rows):
            if share.offer.drafter is None or i not in expected:
                continue
            line = self._line(share.offer.drafter, share.row.phase)
            gain = 0.5 * (expected[i] + share.accepted - price * share.num_nodes)
            line.gain.add(gain)
            self._gain(share.row, share.offer.drafter).add(gain)
            if share.offer.drafter in step.probing:
                draft_ms = self.experience.costs.draft_ms(share.offer.drafter, 1, share.row.context_len)
                line.probe.result(won=gain > step.rate * draft_ms, price=draft_ms / step.base_ms)

    def _learn_rate(self, outcome: StepOutcome, costs: FloatArray) -> None:
        """The speed-up over plain decoding, on the model's own costs so that a stall does not sway it."""
        num_rows, emitted, context_len = len(outcome.rows), 0, 0
        drafting: dict[str, int] = {}
        for share in outcome.rows:
            row, drafter = share.row, share.offer.drafter
            if not row.emits:
                return  # a prompt chunk's time belongs to no bet
            context_len = max(context_len, row.context_len)
            emitted += share.accepted + 1
            if drafter is not None:
                drafting[drafter] = drafting.get(drafter, 0) + 1
        plain_ms = spent_ms = float(costs[min(num_rows, MAX_TOKENS)])
        if outcome.num_tokens != num_rows:
            spent_ms = float(costs[min(outcome.num_tokens, MAX_TOKENS)])
        for drafter, num in drafting.items():
            spent_ms += self.experience.costs.draft_ms(drafter, num, context_len)
        spent = spent_ms / plain_ms
        self._plain_worth = _RATE_MEMORY * self._plain_worth + emitted / num_rows
        self._spent = _RATE_MEMORY * self._spent + spent
        for share in outcome.rows:
            own = self._of(share.row.request_id)
            own.worth = _RATE_MEMORY * own.worth + share.accepted + 1
            own.spent = _RATE_MEMORY * own.spent + spent

    def forget(self, request_id: Hashable) -> None:
        self._own.pop(request_id, None)

    def _line(self, drafter: str, phase: str) -> _Line:
        line = self._lines.get((drafter, phase))
        if line is None:
            kin = next((known for (name, _), known in self._lines.items() if name == drafter), None)
            if kin is None:
                calibrator, gain = Calibrator(), SteadyMean(self.config.first_gain)
            else:
                calibrator, gain = kin.calibrator.copy(), kin.gain.copy()
            line = self._lines[drafter, phase] = _Line(calibrator, gain, Probe(self.config.longest_probe))
        return line
