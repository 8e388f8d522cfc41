"""`auto`: the bet that makes tokens per second highest over the long run, and never loses to plain decoding.

With lambda the long-run rate (tokens per millisecond), the best n nodes of a draft are worth

    sum of their path probabilities - lambda * (cost(n) - cost(0))

and the bet is the n where that is highest, over all n. Several rows are counted by the logarithm of their
speed, sum of log(1 + expected tokens) - rows * log(time), or the easy ones would take it all. A draft is made
when what drafts have been worth lately exceeds the price of its time, as deep as pays best (worth.py); while
it does not, backed-off probes keep learning. The ledger caps what one step may lose. What drafters have shown
is in known.py, costs are in cost.py; places come from allocation.py; what a step teaches is in lessons.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence

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
    StepOutcome,
)
from wager.policy.blind import MOST, MOST_OF_MANY, Foresight, blind_bet
from wager.policy.cost import MAX_TOKENS
from wager.policy.experience import Experience, longest_context
from wager.policy.forethought import Forethought
from wager.policy.gain import TRIED
from wager.policy.known import Known
from wager.policy.lessons import Lessons
from wager.policy.nodes import Nodes
from wager.policy.overrun import Overrun
from wager.policy.rest import Rest
from wager.policy.stake import AutoConfig, Stake
from wager.policy.worth import Worth
from wager.tree import Forest

_REFRESH = 64  # steps after which the plain pass is timed again,
_CHEAP = 0.3  # at a step whose best bet is worth no more than this many tokens a row
_LEAST_LEFT = 8  # guesses that somebody in a crowd must be able to take, or asking is not worth it


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
        self._overlaps = False
        """Whether a device runs beside the host."""
        self._was_typical = True
        """Whether the step before ran as its kind does; a plain one may need another in front of it."""
        self._stake = Stake(experience, self.config)
        self._overrun = Overrun()
        self._asking = Asking()
        self._worth = Worth(experience, self._known, self._overrun)
        self._lessons = Lessons(experience, self._known, self._worth, self._overrun)
        self._nodes = Nodes(experience, self._known, self.config.max_nodes)
        self._foresight: Foresight | None = None
        """Where somebody can bet blindly."""
        self._forethought = Forethought(experience, self._worth, self._offers, self._blind)

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

    def suffices(self, drafter: str, coming: Coming) -> bool:
        return coming.num_rows >= MANY and self._forethought.suffices(drafter, coming.num_rows)

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        thought = self._forethought.take(rows)
        if thought is not None:
            self._install(thought.step, rows)
            self._known.skip(self._rest.end(), len(rows))
            return thought.offers
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
        offers = self._offers(step, rows)
        if step.room is not None and not step.room.places:
            return offers
        if step.base_tokens == len(rows) and not step.num_worthy:
            if step.postponed and not step.depths:
                self._rest.pause(len(rows), step.postponed - 1)
            elif not step.depths:
                recovery, again = self._stake.recovery(step, rows), self._asking.pays(len(rows))
                self._rest.begin(rows, step.probes, recovery, ask_again=again)
            elif len(rows) > TRIED:
                self._rest.begin(rows, ())  # a look, and on at once
        return offers

    def _offers(self, step: Step, rows: Sequence[Row]) -> list[Offer]:
        """What is drafted for whom; the step is told how deep, and what room there is for guesses."""
        step.rate = self._known.pace(rows) / step.plain_ms
        offers, by_drafter = [PLAIN] * len(rows), dict[str, list[int]]()
        many = len(rows) >= MANY  # where the account of all decides: who bets is not who waits
        step.begun = self._begun(step)
        for i, names in enumerate(self._worth.drafters(rows, step.rate, step.begun)):
            if names and (many or self._stake.bears_row(rows[i], step)):
                for name in names:
                    by_drafter.setdefault(name, []).append(i)
        begins_ms = 0.0 if self._worth.drafting else self._overrun.of_first(len(rows))
        if not by_drafter or not self._stake.bears_all(step, begins_ms):
            return offers
        weigh = self._worth.weigh_crowd if many else self._worth.weigh
        made = dict[Offer, int]()
        for drafter, depth, chosen in weigh(step, rows, by_drafter):
            for i in chosen:
                step.depths[drafter] = depth
                offers[i] = Offer(drafter, depth)
            if chosen:
                made[Offer(drafter, depth)] = len(chosen)
        step.drafts_ms = self._overrun.of(len(rows))
        step.drafts_ms += self.experience.costs.drafts_ms(made, longest_context(rows))
        if step.depths:
            step.room = self._stake.room(step, rows)  # now, while the draft may be under way
            if not step.room.places:
                step.depths.clear()
                return [PLAIN] * len(rows)  # a prompt has taken all places: no guess could be verified
        return offers

    def _begun(self, step: Step) -> Collection[str]:
        """Drafters of the step in front of this one: on a device their next drafts follow its pass."""
        before = self._before if step is self._step else self._step
        return before.depths if self._overlaps else ()

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
        if foreseen is not None and foreseen.drafts == drafts:
            return foreseen.bet
        if step.probing and len(rows) < MANY:
            return None
        return self._blind(step, rows, drafts)

    def _blind(self, step: Step, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        if step.room is None or self._foresight is None:
            return None
        bet, value = blind_bet(rows, drafts, step.room, self._foresight, self._known, self._nodes.chain_worth)
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
        most = MOST_OF_MANY if len(rows) >= MANY else MOST
        forest = self._nodes.best(rows, drafts, most * len(rows))
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

    # -- after the step

    def learn(self, outcome: StepOutcome) -> None:
        step = self._step_of(outcome)
        self._forethought.drop()
        self._rest.tick()
        self._was_typical, self._overlaps = outcome.is_typical, outcome.overlaps
        if step.costs is None:
            return
        arranged = step.arranged
        if arranged is not None and not step.was_blind and self._foresight is not None:
            self._foreseen(arranged.rows, arranged.drafts, self._foresight)
        self._asking.learn(outcome, step)
        if self._lessons.learn(outcome, step, step.costs):
            self._rest.cut(len(outcome.rows))
        step.costs = None
        under_way = self._step.arranged
        if step is self._before and under_way is not None:
            # The verdict of the step under way is still to come, and then a device waits.
            self._forethought.think(under_way.rows, under_way.drafts)

    def _step_of(self, outcome: StepOutcome) -> Step:
        """The step under way, or the one before it: where a device drafts, learning comes a step later."""
        mark = _mark(outcome.rows[0].row) if outcome.rows else None
        return self._before if mark == self._before.mark != self._step.mark else self._step

    def forget(self, request_id: Hashable) -> None:
        self._known.forget(request_id)
        if self._foresight is not None:
            self._foresight.forget(request_id)
