"""`auto`: the bet that makes tokens per second highest over the long run, and never loses to plain decoding.

With lambda the long-run rate (tokens per millisecond), the best n nodes of a draft are worth

    sum of their path probabilities - lambda * (cost(n) - cost(0))

and the bet is the n where that is highest, over all n. Several rows are counted by the logarithm of their
speed, sum of log(1 + expected tokens) - rows * log(time), or the easy ones would take it all. A draft is made
when what drafts have been worth lately exceeds the price of its time, as deep as pays best (worth.py); while
it does not, backed-off probes keep learning. The ledger caps what one step may lose. What drafters have shown
is in known.py, costs are in cost.py; places come from allocation.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from wager.policy.allocation import allocate, firsts
from wager.policy.asking import Asking
from wager.policy.auto_step import Arranged, Step, StepMark, open_step
from wager.policy.base import (
    MANY,
    PLAIN,
    Blind,
    Coming,
    Draft,
    FloatArray,
    Offer,
    Prediction,
    Row,
    RowOutcome,
    StepOutcome,
    crowd_of,
)
from wager.policy.blind import MOST, Foresight, blind_bet
from wager.policy.cost import MAX_TOKENS
from wager.policy.experience import Experience, longest_context
from wager.policy.forethought import Forethought
from wager.policy.known import Known
from wager.policy.nodes import Nodes
from wager.policy.overrun import Overrun
from wager.policy.reach import options
from wager.policy.rest import Rest
from wager.policy.stake import AutoConfig, Stake
from wager.policy.worth import Worth
from wager.tree import Forest

_REFRESH = 64  # steps after which the plain pass is timed again,
_CHEAP = 0.3  # at a step whose best bet is worth no more than this many tokens a row
_LEAST_LEFT = 8  # guesses that somebody in a crowd must be able to take, or asking is not worth it
_WAKE = 2.5  # standard deviations of good surprise that end the waiting between probes


def _argmax_nodes(values: FloatArray) -> int:
    """The number of nodes worth most; 0 where none is worth anything."""
    best = int(values.argmax()) if len(values) else -1
    return best + 1 if best >= 0 and values[best] > 0.0 else 0


def _mark(row: Row) -> StepMark:
    return row.request_id, row.context_len


class Auto:
    """The default policy."""

    name = "auto"
    learns_late = True

    def __init__(self, experience: Experience, config: AutoConfig | None = None) -> None:
        self.experience = experience
        self.config = config or AutoConfig()
        self._known = Known(self.config.first_gain, self.config.longest_probe)
        self._step = self._before = Step()
        self._rest = Rest()
        self._waking_ms = 0.0
        """By how much plain passes took longer since the last look, having been planned one by one."""
        self._was_typical = True
        """Whether the step before ran as its kind does; a plain one may need another in front of it."""
        self._stake = Stake(experience, self.config)
        self._overrun = Overrun()
        self._asking = Asking()
        self._worth = Worth(experience, self._known, self._overrun)
        self._nodes = Nodes(experience, self._known, self.config.max_nodes)
        self._foresight: Foresight | None = None
        """Where somebody can bet blindly."""
        self._forethought = Forethought(experience, self._known, self._worth, self._stake)

    @property
    def prediction(self) -> Prediction:
        """Of the step under way."""
        step, arranged = self._step, self._step.arranged
        if step.costs is None or arranged is None or not arranged.num_nodes:
            return Prediction(step.num_emitting, step.base_ms)
        _, _, _, worth, num_nodes = arranged
        pass_ms = float(step.costs[step.base_tokens + num_nodes])
        return Prediction(
            step.num_emitting + float(worth[num_nodes - 1]), pass_ms + self._drafts_ms(arranged)
        )

    # -- before drafting

    def rests(self, coming: Coming) -> bool:
        if self._rest.holds(coming.num_rows, coming.ahead) or coming.num_tokens >= MAX_TOKENS:
            return True
        if coming.left < (_LEAST_LEFT if coming.num_rows >= MANY else 1):
            return True
        return self._step.plain_ms > 0.0 and not self._stake.bears_all(self._step)

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        thought = self._forethought.take(rows)
        if thought is not None:
            self._install(thought.step, rows)
            self._known.skip(self._rest.end(), len(rows))
            return [thought.offer]
        step, plain = self._begin(rows), [PLAIN] * len(rows)
        left = max([row.max_depth for row in rows], default=0)
        if self.rests(Coming(len(rows), sum([row.num_pending for row in rows]), left)):
            step.has_rested = True
            return plain
        self._known.skip(self._rest.end(), len(rows))
        costs = self.experience.costs
        if not costs.measured or costs.shape(len(rows), longest_context(rows)).is_doubtful(step.base_tokens):
            if not self._was_typical:
                self._rest.pause(len(rows))
            return plain  # plain passes tell what plain decoding costs, at first and on a changed machine
        step.rate = self._known.pace(rows) / step.plain_ms
        offers = self._offers(rows, plain)
        if step.depths:
            step.room = self._stake.room(step, rows)  # now, while the draft may be under way
            if not step.room.places:
                step.depths.clear()
                return plain  # a prompt has taken all places: no guess could be verified
        if step.base_tokens == len(rows) and not step.num_worthy:
            if step.postponed and not step.depths:
                self._rest.pause(len(rows), step.postponed - 1)
            elif not step.depths:
                recovery, again = self._stake.recovery(step, rows), self._asking.pays(len(rows))
                self._rest.begin(rows, step.probes, recovery, ask_again=again)
            elif len(rows) >= MANY:
                self._rest.begin(rows, ())  # a look, and on at once
        return offers

    def _offers(self, rows: Sequence[Row], plain: list[Offer]) -> list[Offer]:
        step, offers, by_drafter = self._step, list(plain), dict[str, list[int]]()
        for i, row in enumerate(rows):
            name = self._worth.best_drafter(row, len(rows), step.rate)
            if name and self._stake.bears_row(row, step):
                by_drafter.setdefault(name, []).append(i)
        begins_ms = 0.0 if self._worth.is_drafting else self._overrun.of_first(len(rows))
        if not by_drafter or not self._stake.bears_all(step, begins_ms):
            return offers
        for drafter, places in by_drafter.items():
            depth, chosen = self._worth.weigh(step, drafter, rows, places)
            for i in chosen:
                step.depths[drafter] = depth
                offers[i] = Offer(drafter, depth)
            if chosen:
                step.drafts_ms += self.experience.costs.draft_ms(
                    drafter, len(chosen), longest_context([rows[i] for i in chosen]), depth
                )
        return offers

    def _begin(self, rows: Sequence[Row]) -> Step:
        return self._install(open_step(self.experience.costs, rows), rows)

    def _install(self, step: Step, rows: Sequence[Row]) -> Step:
        self._before, self._step = self._step, step
        step.mark = _mark(rows[0]) if rows else None
        return step

    def blind(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        step, foreseen = self._step, self._step.foreseen
        if self._foresight is None:
            self._foresight = Foresight()
        if foreseen is not None and foreseen.is_for(drafts):
            return foreseen.bet
        if step.probing or len(rows) >= MANY:
            return None
        return self._blind(step, rows, drafts)

    def _blind(self, step: Step, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        if step.room is None or self._foresight is None:
            return None
        bet, value = blind_bet(rows, drafts, step.room, self._foresight, self._known)
        if value < _CHEAP * step.num_emitting and self._plain_is_stale(rows, step):
            return None
        return bet

    # -- after drafting

    def arrange(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        step = self._step
        forest, worth, values = self._nodes.weigh(rows, drafts, step.room or self._stake.room(step, rows))
        num_nodes = _argmax_nodes(values)
        if (
            num_nodes
            and values[num_nodes - 1] < _CHEAP * step.num_emitting
            and self._plain_is_stale(rows, step)
        ):
            num_nodes = 0
        step.arranged = Arranged(rows, drafts, forest, worth, num_nodes)
        self._stake.took(len(rows), num_nodes)
        floor = 0
        if len(rows) > 1 and num_nodes >= sum(draft is not None for draft in drafts):
            floor = self.config.row_floor
        return allocate(forest, num_nodes, floor)

    def saw(self, rows: Sequence[Row], drafts: Sequence[Draft | None], nodes: Sequence[int]) -> None:
        if self._foresight is None or all(draft is None for draft in drafts):
            return
        forest = self._foreseen(rows, drafts, self._foresight)
        if len(rows) > 1:
            forest = firsts(forest, nodes)
        num_nodes = min(sum(nodes), forest.num_nodes)
        self._step.arranged = Arranged(rows, drafts, forest, forest.path_probs.cumsum(), num_nodes)
        self._step.was_blind = True
        self._stake.took(len(rows), num_nodes)

    def _foreseen(self, rows: Sequence[Row], drafts: Sequence[Draft | None], foresight: Foresight) -> Forest:
        """The best nodes of every row, by which it foresees the next."""
        forest = self._nodes.best(rows, drafts, MOST * len(rows))
        foresight.learn(rows, drafts, forest)
        return forest

    def _plain_is_stale(self, rows: Sequence[Row], step: Step) -> bool:
        """Whether a pass without guesses was timed too long ago to be trusted as the measure of all bets."""
        table = self.experience.costs.shape(len(rows), longest_context(rows))
        base = step.base_tokens
        unsure = table.error(base) > 0.04
        return table.age(base) > (2 if unsure else _REFRESH)

    def _drafts_ms(self, arranged: Arranged) -> float:
        names = Counter(draft.drafter for draft in arranged.drafts if draft is not None)
        offers = {Offer(name, self._step.depths.get(name, 0)): num for name, num in names.items()}
        return self.experience.costs.drafts_ms(offers, longest_context(arranged.rows))

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
            self._known.line(draft.drafter, row.phase).reach.learn(full, found)
            self._known.reach(row, draft.drafter).learn(full, found)

    # -- after the step

    def learn(self, outcome: StepOutcome) -> None:
        step = self._step_of(outcome)
        self._forethought.drop()
        costs = step.costs
        self._rest.tick()
        self._was_typical = outcome.is_typical
        if costs is None:
            return
        if not outcome.is_typical:
            self._waking_ms += max(0.0, outcome.verify_ms - step.base_ms)
        arranged = step.arranged
        if arranged is not None:
            self._learn_reach(step, arranged, costs)
        self._learn_rate(outcome, costs)
        self._asking.learn(outcome, step)
        if arranged is not None:
            if self._foresight is not None and not step.was_blind and len(arranged.rows) < MANY:
                self._foreseen(arranged.rows, arranged.drafts, self._foresight)
            self._learn_overrun(outcome, step, costs)
            self._learn_gains(outcome, step, costs)
            self._learn_survival(outcome, arranged)
        for item in outcome.evidence:
            line = self._known.line(item.drafter, item.phase)
            surprise = line.calibrator.learn(item)
            if surprise.shifted:
                self._known.restart(item.drafter, item.phase)
            if surprise.deviation > _WAKE:
                self._rest.cut()
                for probe in line.probes.values():
                    probe.result(won=True)  # far better than thought: look again at once
        step.costs = None
        self._worth.is_drafting = any(share.offer.drafter is not None for share in outcome.rows)
        under_way = self._step.arranged
        if step is self._before and under_way is not None and len(under_way.rows) == 1:
            # The verdict of the step under way is still to come, and then a device waits.
            self._forethought.think(under_way.rows[0], under_way.drafts[0], self._blind)

    def _learn_overrun(self, outcome: StepOutcome, step: Step, costs: FloatArray) -> None:
        drafting = Counter(share.offer for share in outcome.rows if share.offer.drafter is not None)
        context_len = max(share.row.context_len for share in outcome.rows)
        # By now that draft has been learned from: what is late is late beyond it.
        expected_ms = self.experience.costs.drafts_ms(drafting, context_len)
        expected_ms += float(costs[min(outcome.num_tokens, MAX_TOKENS)])
        self._overrun.learn(
            len(outcome.rows),
            outcome.draft_ms + outcome.verify_ms,
            expected_ms,
            step.plain_ms,
            is_first=not self._worth.is_drafting,
        )

    def _step_of(self, outcome: StepOutcome) -> Step:
        """The step under way, or the one before it: where a device drafts, learning comes a step later."""
        mark = _mark(outcome.rows[0].row) if outcome.rows else None
        return self._before if mark == self._before.mark != self._step.mark else self._step

    def _learn_survival(self, outcome: StepOutcome, arranged: Arranged) -> None:
        """How far guesses without probabilities stood."""
        for i, draft in enumerate(arranged.drafts):
            if draft is None or draft.logprobs is not None:
                continue
            share = outcome.rows[i]
            if share.num_nodes and share.offer.drafter is not None:
                key = (share.offer.drafter, share.row.phase)
                self._known.survival(share.row).observe(share.accepted, share.num_nodes, key)

    def _learn_gains(self, outcome: StepOutcome, step: Step, costs: FloatArray) -> None:
        """What each drafted row's bet was worth: half as expected, half as it came.

        Guesses without probabilities are judged by how it came: what is expected of them is how others fared.
        """
        arranged = step.arranged
        assert arranged is not None
        expected = step.expected(arranged, costs)
        has_word = [draft is not None and draft.logprobs is not None for draft in arranged.drafts]
        looked: dict[tuple[Offer, str], list[float]] = {}
        total_nodes = sum([share.num_nodes for share in outcome.rows])
        price = 0.0
        if not total_nodes:
            self._waking_ms += max(0.0, outcome.verify_ms - step.base_ms)
        else:
            tokens = min(step.base_tokens + total_nodes, MAX_TOKENS)
            price = step.rate * (float(costs[tokens]) - step.base_ms) / total_nodes
        for i, share in enumerate(outcome.rows):
            if share.offer.drafter is None or i not in expected:
                continue
            line = self._known.line(share.offer.drafter, share.row.phase)
            gain = share.accepted - price * share.num_nodes
            if has_word[i]:
                gain = 0.5 * (expected[i] + gain)
            gain = self._as_whole(share, gain)
            own = self._known.gain(share.row, share.offer.drafter, len(outcome.rows))
            own.add(gain)
            line.gain(crowd_of(len(outcome.rows))).add(gain)
            if i in step.probing:
                looked.setdefault((share.offer, share.row.phase), []).append(gain)
        for (offer, phase), gains in looked.items():
            self._end_look(outcome, step, offer, phase, gains)
        if looked:
            self._waking_ms = 0.0

    def _end_look(
        self, outcome: StepOutcome, step: Step, offer: Offer, phase: str, gains: Sequence[float]
    ) -> None:
        """A drafter ran to see whether it is worth it again: what its drafts gained, and what they cost."""
        assert offer.drafter is not None
        same = [share.row.context_len for share in outcome.rows if share.offer == offer]
        draft_ms = self.experience.costs.draft_ms(offer.drafter, len(same), max(same))
        price_ms, num_rows = draft_ms, len(outcome.rows)
        won = sum(gains) * len(same) > step.rate * draft_ms * len(gains)
        if num_rows >= MANY:
            # A few were looked at: what they show holds for all of them, who would share one draft.
            won = self._worth.is_worth(step.rate, offer.drafter, [share.row for share in outcome.rows])
            if not won:
                self._overrun.fade(num_rows)
        if num_rows >= MANY and not step.num_worthy:  # all that the step lost was lost by looking
            accepted = sum([share.accepted for share in outcome.rows])
            worth_ms = step.base_ms + step.plain_ms * accepted / step.num_emitting
            price_ms = max(draft_ms, outcome.draft_ms + outcome.verify_ms - worth_ms)
        price = (price_ms + self._waking_ms) / step.base_ms
        if won:
            self._rest.cut()
        probe = self._known.line(offer.drafter, phase).probe(num_rows)
        probe.result(won=won, price=price, num_rows=num_rows)

    def _as_whole(self, share: RowOutcome, gain: float) -> float:
        """What a whole draft would have been worth where a shorter one was worth `gain`."""
        assert share.offer.drafter is not None
        reach, depth = self._known.reach(share.row, share.offer.drafter), share.offer.depth
        reach.drafted(depth, to_its_end=0 < depth <= share.accepted)
        return gain / reach.share(depth) if gain > 0.0 else gain

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
        spent_ms += self.experience.costs.drafts_ms(drafting, context_len)
        self._known.enter(
            {share.row.request_id: share.accepted + 1 for share in outcome.rows}, spent_ms / plain_ms
        )

    def forget(self, request_id: Hashable) -> None:
        self._known.forget(request_id)
        if self._foresight is not None:
            self._foresight.forget(request_id)
