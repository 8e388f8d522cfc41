"""Which drafter to run, for whom and how deep: what drafts have been worth lately, against what they cost.

Of one row tokens are counted. Of several it is the logarithm of each one's speed: who gains nothing by a bet
waits as long for it as who gains. Few rows may have several drafters in a step, a crowd has one. Called by
`auto` before every draft; what guesses are verified is decided when the draft is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from wager.policy.auto_step import Step
from wager.policy.base import MANY, Offer, Row
from wager.policy.experience import Experience, longest_context
from wager.policy.gain import TRIED, SteadyMean
from wager.policy.known import Known
from wager.policy.overrun import Overrun
from wager.policy.reach import best_draft

_LOOKED_AT = 4  # rows for which a draft is made only to see whether it is worth it again, but for a trial
_BEGIN = 0.05  # by how much (log) a crowd must become faster to begin drafting, which has its price,
_GO_ON = 0.02  # and a large one to go on: some of its rows wait for the others;
_LARGE = 16  # rows beyond which both grow with them


_NOBODY: Mapping[Offer, int] = {}


class Chosen(NamedTuple):
    """A drafter, how deep it drafts (0: in full), and the places of the rows it drafts for."""

    drafter: str
    depth: int
    places: list[int]


class _Weighed(NamedTuple):
    """A draft: how deep, for the rows at which places, and what it is worth beyond what it must be."""

    depth: int
    places: list[int]
    net: float


class Worth:
    """Reads what is known and what things cost."""

    def __init__(self, experience: Experience, known: Known, overrun: Overrun) -> None:
        self._experience, self._known, self._overrun = experience, known, overrun
        self.drafting: frozenset[str] = frozenset()
        """Drafters that ran in the step before."""

    def drafters(
        self, rows: Sequence[Row], rate: float, begun: Collection[str] = ()
    ) -> list[tuple[str, ...]]:
        """Which may draft for each row: of few rows the one that is worth most, whatever that is.

        begun: drafters whose drafts are under way already; where one is worth its time, that is spent.
        """
        num_rows, found, prices = len(rows), list[tuple[str, ...]](), dict[str, float]()

        def net(row: Row, drafter: str) -> float:
            price = prices.get(drafter)
            if price is None:
                draft_ms = self._experience.costs.draft_ms(drafter, num_rows, longest_context(rows))
                price = prices[drafter] = rate * draft_ms / num_rows
            gain = self._known.gain(row, drafter, num_rows).value
            return gain if drafter in begun and gain > price else gain - price

        for row in rows:
            if row.max_depth <= 0 or row.max_nodes <= 0 or not row.emits:
                found.append(())
            elif len(row.drafters) <= 1 or num_rows >= MANY:
                found.append(row.drafters)
            else:
                found.append((max(row.drafters, key=partial(net, row)),))
        return found

    def weigh(self, step: Step, rows: Sequence[Row], by_drafter: Mapping[str, Sequence[int]]) -> list[Chosen]:
        """Which drafters to run, how deep, and for which of the rows at these places.

        For those to whom it is worth its time; of the others for a few, where it is time to look at them
        again: at the depth that would pay first, so that its price is found out. The step is told of all
        that.
        """
        known = {
            name: {i: self._known.gain(rows[i], name, len(rows)) for i in places}
            for name, places in by_drafter.items()
        }
        found, ran = list[Chosen](), dict[Offer, int]()
        while known:
            weighed = {name: self._best(step, name, rows, gains, ran) for name, gains in known.items()}
            name = next(iter(weighed)) if len(weighed) == 1 else _best_of(weighed)
            best, gains = weighed[name], known.pop(name)
            chosen = best.places if best.net > 0.0 else []
            step.num_worthy += len(chosen)
            if chosen:  # whoever comes next finds a step that takes so much longer already
                ran[Offer(name, best.depth)] = len(chosen)
            others = {i: gains[i] for i in gains if i not in chosen} if len(chosen) < len(gains) else {}
            if others:
                chosen = chosen + self._looks(step, name, rows, others, _LOOKED_AT)
            found.append(Chosen(name, best.depth, chosen))
        return found

    def weigh_crowd(
        self, step: Step, rows: Sequence[Row], by_drafter: Mapping[str, Sequence[int]]
    ) -> list[Chosen]:
        """The same for a crowd, where a place may be of several drafters: one of them runs.

        Each takes the host a time of its own, and one that has not run for a while has to read in what it
        missed: a crowd in which some copied and others drafted, now these and now those, would pay for all of
        that.
        """
        known = {name: self._known_gains(step, name, rows, places) for name, places in by_drafter.items()}
        known = {name: gains for name, gains in known.items() if gains}
        weighed = {name: self._best(step, name, rows, gains) for name, gains in known.items()}
        names = sorted(weighed, key=lambda name: -weighed[name].net)
        runs = names[0] if names else ""
        chosen = weighed[runs].places if runs and weighed[runs].net > 0.0 else []
        step.num_worthy += len(chosen)
        found, looked = list[Chosen](), set[int]()
        tries = not chosen and len(rows) <= TRIED
        for name in names:
            gains = known[name]
            others = {i: gains[i] for i in gains if i not in looked and not (name == runs and i in chosen)}
            most = _LOOKED_AT if not tries else 0 if looked else len(rows)  # one drafter is tried at a time
            looks = self._looks(step, name, rows, others, most)
            looked.update(looks)
            found.append(Chosen(name, weighed[name].depth, looks))
        own = [i for i in chosen if i not in looked]
        return [one._replace(places=[*own, *one.places]) if one.drafter == runs else one for one in found]

    def _looks(
        self, step: Step, drafter: str, rows: Sequence[Row], others: Mapping[int, SteadyMean], most: int
    ) -> list[int]:
        """Places of rows that are looked at again, of those for whom it does not draft."""
        if not self._is_due(step, drafter, rows, list(others)):
            return []
        looks = sorted(others, key=lambda i: others[i].count)[:most]
        step.probing.update(looks)
        return looks

    def _known_gains(
        self, step: Step, drafter: str, rows: Sequence[Row], places: Sequence[int]
    ) -> dict[int, SteadyMean]:
        """What drafts are worth to each row of whom that is known; the step is told where all are young."""
        young = self._young(drafter, rows, places)
        if len(young) == len(places):
            if self._is_due(step, drafter, rows, places):
                step.postponed = max(step.postponed, min(young.values()))
            return {}
        return {i: self._known.gain(rows[i], drafter, len(rows)) for i in places if i not in young}

    def is_worth(self, step: Step, drafter: str, rows: Sequence[Row]) -> bool:
        """Whether it would be worth its time to draft for some of these rows, with what is known by now."""
        able = [i for i, row in enumerate(rows) if row.emits and drafter in row.drafters]
        gains = {i: self._known.gain(rows[i], drafter, len(rows)) for i in able}
        return bool(gains) and self._best(step, drafter, rows, gains).net > 0.0

    def _best(
        self,
        step: Step,
        drafter: str,
        rows: Sequence[Row],
        gains: Mapping[int, SteadyMean],
        ran: Mapping[Offer, int] = _NOBODY,
    ) -> _Weighed:
        """The best depth, the rows to whom it is worth most, and by how much beyond what it must be.

        ran: other drafts that the step has already.
        """
        num_rows = len(rows)
        ordered = sorted(gains, key=lambda i: -gains[i].value) if len(gains) > 1 else list(gains)
        best = best_draft(
            [self._known.reach(rows[i], drafter) for i in ordered],
            [_counted(max(0.0, gains[i].value), num_rows) for i in ordered],
            self._price(step, drafter, num_rows, longest_context([rows[i] for i in gains]), ran),
        )
        least = 0.0
        if num_rows >= MANY:
            goes_on = drafter in self.drafting
            share = _BEGIN if not goes_on else _GO_ON if num_rows > _LARGE else 0.0
            least = num_rows * share * max(1.0, num_rows / _LARGE)
        return _Weighed(best.depth, ordered[: best.num_rows], best.net - least)

    def _is_due(self, step: Step, drafter: str, rows: Sequence[Row], places: Sequence[int]) -> bool:
        """Whether it is time to look at some of these rows, for whom it does not draft."""
        phases = {rows[i].phase_of(drafter) for i in places}
        probes = {phase: self._known.line(drafter, phase).probe(len(rows)) for phase in phases}
        step.probes += probes.values()
        if step.is_thought:
            return False
        return any([probe.due() for probe in probes.values()])  # noqa: C419 (each one counts this step)

    def _price(
        self, step: Step, drafter: str, num_rows: int, context_len: int, ran: Mapping[Offer, int] = _NOBODY
    ) -> Callable[[int, int], float]:
        """By depth and rows drafted for, what a draft's time is worth, counted as gains are.

        Of one row in tokens, at the rate that it has in the long run. Of several by how much longer the step
        takes for all of them than a plain one, or one with those drafts that it has already.
        """
        costs, more_ms = self._experience.costs, self._overrun.of(num_rows)
        if num_rows == 1:
            return lambda depth, num: step.rate * (costs.draft_ms(drafter, num, context_len, depth) + more_ms)
        before_ms = step.base_ms + costs.drafts_ms(ran, context_len)

        def price(depth: int, num: int) -> float:
            drafts_ms = costs.drafts_ms({**ran, Offer(drafter, depth): num}, context_len)
            return num_rows * math.log((step.base_ms + drafts_ms + more_ms) / before_ms)

        return price

    def _young(self, drafter: str, rows: Sequence[Row], places: Sequence[int]) -> dict[int, int]:
        """Rows whose answers have just begun, where a crowd is not known yet, and for how long to wait."""
        known, phases = self._known, {rows[i].phase_of(drafter) for i in places}
        if all(known.knows_crowd(drafter, phase, len(rows)) for phase in phases):
            return {}
        return {i: youth for i in places if (youth := known.youth(rows[i]))}


def _best_of(weighed: Mapping[str, _Weighed]) -> str:
    return max(weighed, key=lambda name: weighed[name].net)


def _counted(tokens: float, num_rows: int) -> float:
    """What tokens that a row gains count for."""
    return math.log1p(tokens) if num_rows > 1 else tokens
