"""What a finished step teaches `auto`: what drafts gained, how deep, how late, and whether a look has won.

Called once for every step, when its outcome is known. It writes what is known of drafters (known.py) and of
crowds (overrun.py), and decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from wager.policy.auto_step import Arranged, Step, gained
from wager.policy.base import MANY, Evidence, FloatArray, Offer, RowOutcome, StepOutcome, crowd_of
from wager.policy.cost import MAX_TOKENS
from wager.policy.experience import Experience
from wager.policy.gain import TRIED
from wager.policy.known import Known
from wager.policy.overrun import Overrun
from wager.policy.reach import options
from wager.policy.worth import Worth

_WAKE = 2.5  # standard deviations of good surprise that end the waiting between probes
_WATCHED_DEPTH = 32  # guesses of a chain that nobody bet on, of which so many are weighed


class Lessons:
    """Kept by `auto`."""

    def __init__(self, experience: Experience, known: Known, worth: Worth, overrun: Overrun) -> None:
        self._experience, self._known, self._worth, self._overrun = experience, known, worth, overrun
        self._waking_ms = 0.0
        """By how much plain passes took longer since the last look, having been planned one by one."""

    def learn(self, outcome: StepOutcome, step: Step, costs: FloatArray) -> bool:
        """A finished step, and the costs it went by. Returns whether there is news worth a look at once."""
        if not outcome.is_typical and step.arranged is None:
            self._waking_ms += max(0.0, outcome.verify_ms - step.base_ms)
        arranged, news = step.arranged, False
        if arranged is not None:
            self._learn_reach(step, arranged, costs)
        self._learn_rate(outcome, costs)
        if arranged is not None:
            self._learn_overrun(outcome, step, costs)
            news = self._learn_gains(outcome, step, arranged, costs)
            self._learn_survival(outcome, arranged)
        self._worth.drafting = _drafters(outcome)
        return self._learn_evidence(outcome, step, costs) or news

    def _learn_evidence(self, outcome: StepOutcome, step: Step, costs: FloatArray) -> bool:
        """What became of drafts. Returns whether one was far better than thought."""
        surprised = False
        for item in outcome.evidence:
            if item.watched is not None:
                self._learn_watched(item, outcome, step, costs)
                continue
            line = self._known.line(item.drafter, item.phase)
            surprise = line.calibrator.learn(item)
            if surprise.shifted:
                self._known.restart(item.drafter, item.phase)
            if surprise.deviation > _WAKE:
                surprised = True
                for probe in line.probes.values():
                    probe.result(won=True)
        return surprised

    def _learn_watched(self, item: Evidence, outcome: StepOutcome, step: Step, costs: FloatArray) -> None:
        """What a chain that nobody bet on would have been worth, had it been verified as far as it pays."""
        num_rows, stood = len(outcome.rows), int(np.count_nonzero(item.ranks == 0))
        rates = self._experience.survival.rates(_WATCHED_DEPTH, (item.drafter, item.phase))
        expected = np.cumsum(np.cumprod(rates)).tolist()
        paid = [num * step.price(num, costs, num_rows) for num in range(1, len(expected) + 1)]
        values = [gained(tokens, price, num_rows) for tokens, price in zip(expected, paid, strict=True)]
        best = max(range(len(values)), key=values.__getitem__)
        gain = gained(min(stood, best + 1), paid[best], num_rows) if values[best] > 0.0 else 0.0
        if any(share.row.request_id == item.watched for share in outcome.rows):
            self._known.gain_of(item.watched, item.drafter, item.phase, num_rows).add(gain)
        self._known.line(item.drafter, item.phase).gain(crowd_of(num_rows)).add(gain)

    def _learn_reach(self, step: Step, arranged: Arranged, costs: FloatArray) -> None:
        """Whole drafts show what shorter ones would have been worth; in a batch, to all rows together."""
        rows, drafts, forest, *_ = arranged
        taught = [
            (row, draft)
            for row, draft in zip(rows, drafts, strict=True)
            if draft is not None and draft.logprobs is not None and not step.depths.get(draft.drafter)
        ]
        # A row near its end shows less than a whole draft.
        if not taught or any(row.max_depth < draft.num_depths for row, draft in taught):
            return
        base, probs = step.base_tokens, forest.path_probs

        def worth(depth: int) -> float:
            reached = probs[forest.depth <= depth]
            values = reached.cumsum() - step.rate * (costs[base + 1 : base + 1 + len(reached)] - costs[base])
            return max(0.0, float(values.max())) if len(values) else 0.0

        full = max(draft.num_depths for _, draft in taught)
        found = {depth: worth(depth) for depth in (full, *options(full))}
        for row, draft in taught:
            self._known.line(draft.drafter, row.phase_of(draft.drafter)).reach.learn(full, found)
            self._known.reach(row, draft.drafter).learn(full, found)

    def _learn_rate(self, outcome: StepOutcome, costs: FloatArray) -> None:
        """The speed-up over plain decoding, on the model's own costs so that a stall does not sway it."""
        num_rows, context_len = len(outcome.rows), 0
        drafting: dict[Offer, int] = {}
        for share in outcome.rows:
            row = share.row
            if not row.emits:
                return  # a prompt chunk's time belongs to no bet
            context_len = max(context_len, row.context_len)
            if share.offer.drafter is not None:
                drafting[share.offer] = drafting.get(share.offer, 0) + 1
        plain_ms = spent_ms = float(costs[min(num_rows, MAX_TOKENS)])
        if outcome.num_tokens != num_rows:
            spent_ms = float(costs[min(outcome.num_tokens, MAX_TOKENS)])
        spent_ms += self._experience.costs.drafts_ms(drafting, context_len)
        self._known.enter(
            {share.row.request_id: share.accepted + 1 for share in outcome.rows}, spent_ms / plain_ms
        )

    def _learn_overrun(self, outcome: StepOutcome, step: Step, costs: FloatArray) -> None:
        """What a crowd's step took beyond its pass and its drafts."""
        if crowd_of(len(outcome.rows)) < crowd_of(MANY):
            return
        drafting = Counter(share.offer for share in outcome.rows if share.offer.drafter is not None)
        context_len = max(share.row.context_len for share in outcome.rows)
        # By now that draft has been learned from: what is late is late beyond it.
        expected_ms = self._experience.costs.drafts_ms(drafting, context_len)
        expected_ms += float(costs[min(outcome.num_tokens, MAX_TOKENS)])
        self._overrun.learn(
            len(outcome.rows),
            outcome.draft_ms + outcome.verify_ms,
            expected_ms,
            step.plain_ms,
            is_first=not _drafters(outcome) <= self._worth.drafting,
        )

    def _learn_gains(self, outcome: StepOutcome, step: Step, arranged: Arranged, costs: FloatArray) -> bool:
        """What each drafted row's bet was worth: half as expected, half as it came.

        Guesses without probabilities are judged by how it came: what is expected of them is how others fared.
        Returns whether a look has won.
        """
        expected = step.expected(arranged, costs)
        has_word = [draft is not None and draft.logprobs is not None for draft in arranged.drafts]
        looked: dict[tuple[Offer, str], list[float]] = {}
        total_nodes = sum([share.num_nodes for share in outcome.rows])
        if not total_nodes:
            self._waking_ms += max(0.0, outcome.verify_ms - step.base_ms)
        price = step.price(total_nodes, costs, len(outcome.rows))
        for i, share in enumerate(outcome.rows):
            if share.offer.drafter is None or i not in expected:
                continue
            phase = share.row.phase_of(share.offer.drafter)
            line = self._known.line(share.offer.drafter, phase)
            gain = gained(share.accepted, price * share.num_nodes, len(outcome.rows))
            if has_word[i]:
                gain = 0.5 * (expected[i] + gain)
            gain = self._as_whole(share, gain)
            own = self._known.gain(share.row, share.offer.drafter, len(outcome.rows))
            own.add(gain)
            line.gain(crowd_of(len(outcome.rows))).add(gain)
            if i in step.probing:
                looked.setdefault((share.offer, phase), []).append(gain)
        if step.num_worthy and len(outcome.rows) >= MANY and _gained_ms(outcome, step) > 0.0:
            ran = [share for i, share in enumerate(outcome.rows) if i not in step.probing]
            for drafter, phase in {_key(share) for share in ran if share.offer.drafter is not None}:
                self._known.line(drafter, phase).probe(len(outcome.rows)).paid()
        won = [self._end_look(outcome, step, offer, phase, gains) for (offer, phase), gains in looked.items()]
        if looked:
            self._waking_ms = 0.0
        return any(won)

    def _end_look(
        self, outcome: StepOutcome, step: Step, offer: Offer, phase: str, gains: Sequence[float]
    ) -> bool:
        """A drafter ran to see whether it is worth it again: what its drafts gained, and what they cost."""
        assert offer.drafter is not None
        same = [share.row.context_len for share in outcome.rows if share.offer == offer]
        draft_ms = self._experience.costs.draft_ms(offer.drafter, len(same), max(same))
        price_ms, num_rows = draft_ms, len(outcome.rows)
        won = sum(gains) * len(same) > step.rate * draft_ms * len(gains)
        if num_rows >= MANY:
            # A few were looked at: what they show holds for all of them, who would share one draft.
            won = self._worth.is_worth(step, offer.drafter, [share.row for share in outcome.rows])
            if not won:
                self._overrun.fade(num_rows)
        if num_rows >= MANY and not step.num_worthy:  # all that the step lost was lost by looking
            price_ms = -_gained_ms(outcome, step)
            if num_rows > TRIED:
                price_ms = max(draft_ms, price_ms)
        price = (price_ms + self._waking_ms) / step.base_ms
        probe = self._known.line(offer.drafter, phase).probe(num_rows)
        probe.result(won=won, price=price, num_rows=num_rows, tries=not step.num_worthy)
        return won

    def _as_whole(self, share: RowOutcome, gain: float) -> float:
        """What a whole draft would have been worth where a shorter one was worth `gain`."""
        assert share.offer.drafter is not None
        reach, depth = self._known.reach(share.row, share.offer.drafter), share.offer.depth
        reach.drafted(depth, to_its_end=0 < depth <= share.accepted)
        return gain / reach.share(depth) if gain > 0.0 else gain

    def _learn_survival(self, outcome: StepOutcome, arranged: Arranged) -> None:
        """How far guesses without probabilities stood."""
        for i, draft in enumerate(arranged.drafts):
            if draft is None or draft.logprobs is not None:
                continue
            share = outcome.rows[i]
            if share.num_nodes and share.offer.drafter is not None:
                key = _key(share)
                self._known.survival(share.row).observe(share.accepted, share.num_nodes, key)


def _key(share: RowOutcome) -> tuple[str, str]:
    """Under which a drafted row's drafts are known."""
    assert share.offer.drafter is not None
    return share.offer.drafter, share.row.phase_of(share.offer.drafter)


def _drafters(outcome: StepOutcome) -> frozenset[str]:
    return frozenset([share.offer.drafter for share in outcome.rows if share.offer.drafter is not None])


def _gained_ms(outcome: StepOutcome, step: Step) -> float:
    """By how much plain decoding would have taken longer for the tokens of a step."""
    accepted = sum([share.accepted for share in outcome.rows])
    worth_ms = step.base_ms + step.plain_ms * accepted / step.num_emitting
    return worth_ms - outcome.draft_ms - outcome.verify_ms
