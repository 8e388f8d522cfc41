"""What has been learned whatever the policy: costs, the ledger, survival and counts.

Kept apart from the policies so that changing the policy in mid-run keeps it. The controller writes it after
every step; policies read it. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from wager.costs import MAX_TOKENS, SHIFT_STRIKES, CostModel, DraftShape
from wager.policy.base import Row, StepOutcome
from wager.policy.ledger import Ledger
from wager.policy.survival import Survival
from wager.stats import SpeculationStats


class _Prices(NamedTuple):
    """Plain decoding's time per pending token of a step, and per row for one plain step more."""

    pending_ms: float
    step_ms: float


class _Late(NamedTuple):
    """By how much a row's share of a step exceeded what was expected, and whether all bear it."""

    request_id: Hashable
    time_ms: float
    shared: bool


class StepShape(NamedTuple):
    """What the times of a step depend on beside its tokens."""

    num_rows: int
    context_len: int
    """That of the longest row."""
    native: bool
    """Whether native code can take the step."""


class Experience:
    """Costs, ledger, survival by drafter and phase, and statistics of all that ran."""

    def __init__(self, costs: CostModel | None = None, ledger: Ledger | None = None) -> None:
        self.costs = costs or CostModel()
        self.ledger = ledger or Ledger()
        self.survival = Survival()
        self.stats = SpeculationStats()
        self.stalled_ms = 0.0
        """Time that the machine stood still, or was slower than it was known to be."""
        self._late: list[_Late] = []
        self.running: dict[str, frozenset[Hashable]] = {}
        """The requests for which each drafter ran in the latest step."""
        self._stalls = 0
        """Steps that drafted and stalled, in a row."""

    def learn(self, *outcomes: StepOutcome) -> list[StepOutcome]:
        """Enter finished steps of one plan. Returns them as they were but for what the machine stood still.

        The costs learn the mean of each kind of step.
        """
        found, times = list[StepOutcome](), _MeanTimes()
        for outcome in outcomes:
            if not outcome.rows:
                continue
            shape, drafting = shape_of(outcome), self.draft_shapes(outcome)
            is_divided = self._is_divided(outcome, shape, drafting)
            if not is_divided:
                outcome = self._divided(outcome, shape)
            # Posted before the costs learn from it: a stalled step must not vouch for itself.
            moving = self._post(outcome, shape, drafting)
            is_pass_known = outcome.is_typical and is_divided and outcome.native == shape.native
            times.add(outcome, shape, drafting, is_pass_known=is_pass_known)
            self.running = _requests_by_drafter(outcome)
            if moving != 1.0:
                outcome = outcome._replace(
                    verify_ms=moving * outcome.verify_ms, draft_ms=moving * outcome.draft_ms
                )
            found.append(outcome)
            for item in outcome.evidence:
                stood = leading_hits(item.ranks.tolist())
                self.survival.observe(stood, len(item.ranks), (item.drafter, item.phase))
        for shift in times.enter(self.costs):
            if shift:
                self._refund(slower=shift > 0.0)
        return found

    def draft_shapes(self, outcome: StepOutcome) -> dict[str, DraftShape]:
        """The drafts of a step, by drafter."""
        found: dict[str, DraftShape] = {}
        for row, (drafter, depth) in [(share.row, share.offer) for share in outcome.rows]:
            if drafter is None:
                continue
            starts = row.request_id not in self.running.get(drafter, ())
            known = found.get(drafter)
            if known is None:
                found[drafter] = DraftShape(1, depth, int(starts), outcome.native)
            else:
                num_rows, deepest, num_starting, native = known
                deepest = max(deepest, depth) if deepest and depth else 0
                found[drafter] = DraftShape(num_rows + 1, deepest, num_starting + starts, native)
        return found

    def _is_divided(self, outcome: StepOutcome, shape: StepShape, drafting: Mapping[str, DraftShape]) -> bool:
        """Whether a step's times are those of its pass and its drafts.

        Of several rows that draft on a device they are not, and of many the difference is large: the pass
        runs while the host sees to them one by one, in whatever stage that is. Nor are they of a step that
        native code would have taken, had it another drafter: the host's part of it is a price of the draft.
        """
        overlaps = outcome.overlaps and len(outcome.rows) > 1
        if not drafting or not (overlaps or outcome.native != shape.native):
            return True
        return outcome.num_tokens > self.costs.largest_seen(*shape)

    def _divided(self, outcome: StepOutcome, shape: StepShape) -> StepOutcome:
        """With the pass as long as it is known to be; all else is the price of drafting."""
        took_ms = outcome.verify_ms + outcome.draft_ms
        pass_ms = min(float(self.costs.curve(*shape)[outcome.num_tokens]), took_ms)
        return outcome._replace(verify_ms=pass_ms, draft_ms=took_ms - pass_ms)

    def _post(self, outcome: StepOutcome, shape: StepShape, drafting: Mapping[str, DraftShape]) -> float:
        """Share the step's time among its rows by their tokens in the pass, on both sides of the account.

        Plain decoding would have run the same pass without the nodes, and one plain step more for every token
        accepted. A step in which nobody drafted is plain decoding: its two sides are equal whatever it took.
        Returns the part of its time in which the machine did not stand still.
        """
        spent_ms, num_tokens = outcome.verify_ms + outcome.draft_ms, max(outcome.num_tokens, 1)
        # A plain step that waited for drafters that were asked in vain is not what plain decoding takes.
        is_plain = not drafting and (outcome.is_typical or not outcome.overlaps)
        prices = None if is_plain or not self.costs.measured else self._prices(outcome, shape)
        late, took_ms = 0.0, spent_ms
        if prices is not None:
            expected = self._expected_ms(outcome, shape, drafting)
            spent_ms -= self._stalled_ms(spent_ms, expected, is_warming=self.costs.is_warming(drafting))
            late = max(0.0, spent_ms / expected - 1.0)
        for share in outcome.rows:
            row, emitted = share.row, share.emitted
            spent = plain = spent_ms * (row.num_pending + share.num_nodes) / num_tokens
            if outcome.num_steps > 1:
                spent = plain = spent * outcome.num_steps
            elif prices is not None:
                plain = prices.pending_ms * row.num_pending + prices.step_ms * max(emitted - 1, 0)
            # A bet that a request made for itself is not held against the others.
            self.ledger.post(row.request_id, spent, plain, emitted, shared=not row.nodes)
            if late:
                self._late.append(_Late(row.request_id, spent * late / (1.0 + late), not row.nodes))
            if outcome.num_steps > 1:
                self.stats.record_plain(outcome.num_steps, emitted, spent / 1e3, plain / 1e3)
            elif row.emits:
                self.stats.record(share.accepted, share.num_nodes, spent / 1e3, plain / 1e3)
        self._forget_late(len(outcome.rows))
        return spent_ms / took_ms if took_ms else 1.0

    def _forget_late(self, num_rows: int) -> None:
        """Keep the last few steps' lateness, as many as it takes to see that the machine has slowed down."""
        del self._late[: -SHIFT_STRIKES * num_rows]

    def _refund(self, *, slower: bool) -> None:
        """The machine was found to run at another level: it, not the bets, made the last steps late."""
        for late in self._late if slower else ():
            self.stalled_ms += late.time_ms
            self.ledger.refund(late.request_id, late.time_ms, shared=late.shared)
        self._late.clear()

    def _prices(self, outcome: StepOutcome, shape: StepShape) -> _Prices:
        """What plain decoding would have paid for this step's rows."""
        curve = self.costs.curve(*shape)
        base_tokens = sum([share.row.num_pending for share in outcome.rows])
        num_emitting = sum([share.row.emits for share in outcome.rows])
        if _is_priced(outcome):
            pending_ms = float(curve[base_tokens]) / base_tokens
        else:
            pending_ms = outcome.verify_ms / outcome.num_tokens
        step_ms = float(curve[min(num_emitting, MAX_TOKENS)]) / max(num_emitting, 1)
        return _Prices(pending_ms, step_ms)

    def _expected_ms(
        self, outcome: StepOutcome, shape: StepShape, drafting: Mapping[str, DraftShape]
    ) -> float:
        expected = outcome.verify_ms
        if _is_priced(outcome):
            expected = float(self.costs.curve(*shape)[outcome.num_tokens])
        return expected + sum([self.costs.draft_ms(name, shape) for name, shape in drafting.items()])

    def _stalled_ms(self, spent_ms: float, expected: float, *, is_warming: bool) -> float:
        """Time that the machine stood still: no bet made it, so no account pays for it.

        It stands still now and then, and longer in the first drafts of a drafter. Where as many steps in a
        row are late as tell of a change, that is what steps that draft take.
        """
        excess = spent_ms - expected
        if is_warming and excess > 0.0:
            self.stalled_ms += excess
            return excess
        self._stalls = self._stalls + 1 if excess > _STALL * expected else 0
        if not 0 < self._stalls < SHIFT_STRIKES:
            return 0.0
        self.stalled_ms += excess
        return excess


def _is_priced(outcome: StepOutcome) -> bool:
    """Whether the pass had guesses, and is of a size whose time is kept.

    Without guesses it was plain decoding's own pass, unless it waited; a larger one goes by its tokens.
    """
    has_waited = outcome.overlaps and not outcome.is_typical
    return outcome.num_tokens <= MAX_TOKENS and (has_waited or any(share.num_nodes for share in outcome.rows))


_STALL = 2.0  # beyond three times what was expected, a step has stalled


def _requests_by_drafter(outcome: StepOutcome) -> dict[str, frozenset[Hashable]]:
    found: dict[str, list[Hashable]] = {}
    for share in outcome.rows:
        if share.offer.drafter is not None:
            found.setdefault(share.offer.drafter, []).append(share.row.request_id)
    return {name: frozenset(ids) for name, ids in found.items()}


def leading_hits(ranks: list[int]) -> int:
    """How many depths, from the first, had the emitted token at rank 0."""
    for index, rank in enumerate(ranks):
        if rank != 0:
            return index
    return len(ranks)


class _PassKind(NamedTuple):
    """What the time of a pass depends on."""

    num_tokens: int
    shape: StepShape
    num_read: int
    is_bare: bool


class _MeanTimes:
    """The times of steps by what they depend on, to be entered as means."""

    def __init__(self) -> None:
        self._passes: dict[_PassKind, list[float]] = {}
        self._drafts: dict[tuple[tuple[str, DraftShape], ...], list[float]] = {}

    def add(
        self, outcome: StepOutcome, shape: StepShape, drafting: dict[str, DraftShape], *, is_pass_known: bool
    ) -> None:
        if is_pass_known:
            num_read = sum([share.row.num_pending - 1 for share in outcome.rows])
            is_bare = not drafting or not outcome.overlaps
            kind = _PassKind(outcome.num_tokens, shape, num_read, is_bare)
            self._passes.setdefault(kind, []).append(outcome.verify_ms)
        if drafting:
            self._drafts.setdefault(tuple(drafting.items()), []).append(outcome.draft_ms)

    def enter(self, costs: CostModel) -> list[float]:
        """Tell the costs; returns by how much the machine was found to have changed its level with each."""
        shifts = []
        for (num_tokens, shape, num_read, is_bare), times in self._passes.items():
            shifts.append(
                costs.observe_pass(
                    num_tokens,
                    *shape[:2],
                    sum(times) / len(times),
                    num_read=num_read,
                    is_bare=is_bare,
                    native=shape.native,
                )
            )
        for drafting, times in self._drafts.items():
            costs.observe_drafts(dict(drafting), sum(times) / len(times))
        return shifts


def shape_of(outcome: StepOutcome) -> StepShape:
    """The shape of a step that was taken."""
    return shape_of_rows([share.row for share in outcome.rows])


def shape_of_rows(rows: Sequence[Row]) -> StepShape:
    """The shape of a step of these rows."""
    if len(rows) == 1:
        return StepShape(1, rows[0].context_len, rows[0].native)
    context_len = max([row.context_len for row in rows], default=0)
    return StepShape(max(len(rows), 1), context_len, bool(rows) and all(row.native for row in rows))
