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
_START_STEPS = 2.0  # plain steps that a request may be behind before it has had time to gain
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
class _Step:
    """The step under way, between offer and learn."""

    rate: float = 0.0
    base_tokens: int = 0
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
        self._plain_worth = 20.0  # discounted plain time of what was emitted,
        self._spent = 20.0  # and discounted time spent, in plain steps
        self._step = _Step()

    # -- before drafting

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        step = self._begin(rows)
        if not self.experience.costs.measured:
            return [PLAIN] * len(rows)  # the first passes tell what plain decoding costs
        names = [self._best_drafter(row) for row in rows]
        ledger, tokens = self.experience.ledger, max(step.base_tokens, 1)
        drafting = [
            i
            for i, name in enumerate(names)
            if name
            and self._may_bet(ledger.account(rows[i].request_id), _START_STEPS * rows[i].num_pending / tokens)
        ]
        if not drafting or not self._may_bet(ledger.total, 1.0):
            return [PLAIN] * len(rows)
        by_drafter: dict[str, list[int]] = {}
        for i in drafting:
            by_drafter.setdefault(names[i] or "", []).append(i)
        offers = [PLAIN] * len(rows)
        for drafter, places in by_drafter.items():
            if self._worth_drafting(drafter, [rows[i] for i in places], step):
                for i in places:
                    offers[i] = Offer(drafter)
        return offers

    def _begin(self, rows: Sequence[Row]) -> _Step:
        context_len = longest_context(rows)
        costs = self.experience.costs.curve(len(rows), context_len)
        tokens = min(sum(row.num_pending for row in rows), MAX_TOKENS)
        speedup = max(1.0, self._plain_worth / self._spent)
        num_emitting = max(sum(row.emits for row in rows), 1)
        plain_ms = float(costs[min(num_emitting, MAX_TOKENS)])
        self._step = _Step(speedup * num_emitting / plain_ms, tokens, costs)
        self.prediction = Prediction(float(num_emitting), float(costs[tokens]))
        return self._step

    def _best_drafter(self, row: Row) -> str | None:
        if row.max_depth <= 0 or row.max_nodes <= 0 or not row.drafters or not row.emits:
            return None
        if len(row.drafters) == 1:
            return row.drafters[0]
        rate, costs = self._step.rate, self.experience.costs

        def net(drafter: str) -> float:
            draft_ms = costs.draft_ms(drafter, 1, row.context_len)
            return self._line(drafter, row.phase).gain.value - rate * draft_ms

        return max(row.drafters, key=net)

    def _worth_drafting(self, drafter: str, rows: list[Row], step: _Step) -> bool:
        draft_ms = self.experience.costs.draft_ms(drafter, len(rows), longest_context(rows))
        gross = sum(max(0.0, self._line(drafter, row.phase).gain.value) for row in rows)
        if gross > step.rate * draft_ms:
            return True
        probes = {row.phase: self._line(drafter, row.phase).probe for row in rows}
        due = [probe.due() for probe in probes.values()]  # each one counts this step
        if any(due):
            step.probing.add(drafter)
        return any(due)

    def _may_bet(self, account: Account, start_steps: float) -> bool:
        """Whether an account bears one more step.

        `start_steps`: plain steps that it may be behind whatever the floor. Were every guess refused, it
        would end at most the cost of that one step below the floor.
        """
        costs, step = self._step.costs, self._step
        assert costs is not None
        plain_ms = float(costs[step.base_tokens]) * start_steps
        return self.experience.ledger.allowance_ms(account, plain_ms) > 0.0

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
            bearable = min(bearable, ledger.allowance_ms(own, _START_STEPS * plain_ms))
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
        total_nodes = sum(share.num_nodes for share in outcome.rows)
        price = 0.0
        if total_nodes:
            tokens = min(step.base_tokens + total_nodes, MAX_TOKENS)
            price = step.rate * float(costs[tokens] - costs[step.base_tokens]) / total_nodes
        for i, share in enumerate(outcome.rows):
            if share.offer.drafter is None or step.expected is None or i not in step.expected:
                continue
            line = self._line(share.offer.drafter, share.row.phase)
            gain = 0.5 * (step.expected[i] + share.accepted - price * share.num_nodes)
            line.gain.add(gain)
            if share.offer.drafter in step.probing:
                draft_ms = self.experience.costs.draft_ms(share.offer.drafter, 1, share.row.context_len)
                price = draft_ms / float(costs[step.base_tokens])
                line.probe.result(won=gain > step.rate * draft_ms, price=price)
        for item in outcome.evidence:
            line = self._line(item.drafter, item.phase)
            surprise = line.calibrator.learn(item)
            if surprise.shifted:
                line.gain.restart()
            if surprise.deviation > _WAKE:
                line.probe.result(won=True)  # far better than thought: look again at once
        self._step = _Step()

    def _learn_rate(self, outcome: StepOutcome, costs: FloatArray) -> None:
        """The speed-up over plain decoding, on the model's own costs so that a stall does not sway it."""
        rows = [share.row for share in outcome.rows]
        if not all(row.emits for row in rows):
            return  # a prompt chunk's time belongs to no bet
        plain_ms = float(costs[min(len(rows), MAX_TOKENS)])
        drafters = {share.offer.drafter for share in outcome.rows if share.offer.drafter}
        spent = float(costs[min(outcome.num_tokens, MAX_TOKENS)])
        for drafter in drafters:
            num = sum(share.offer.drafter == drafter for share in outcome.rows)
            spent += self.experience.costs.draft_ms(drafter, num, longest_context(rows))
        emitted = sum(share.accepted + 1 for share in outcome.rows)
        self._plain_worth = _RATE_MEMORY * self._plain_worth + emitted / len(rows)
        self._spent = _RATE_MEMORY * self._spent + spent / plain_ms

    def forget(self, request_id: Hashable) -> None:
        pass

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
