"""Several steps of a few rows in one native call, where the host has nothing to say about any of them.

On a CPU a pass of a small model takes a millisecond, and the host needs a part of that for every step. So a
plan that the policy allows for several steps is applied by native code: it drafts, arranges, verifies,
accepts and commits (nn/native/steps.py). What is left are the stages at both ends: the plan and the bet
before, and for each step taken its events and what the policy learns from it. step.py calls this; no text
depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import lru_cache, partial
from weakref import WeakKeyDictionary

import numpy as np

from wager.draft.base import Drafter, KeptTokens, Proposal
from wager.engine.context import EngineParts
from wager.engine.drafting import Drafting
from wager.engine.rows import StepRow, draft_row
from wager.engine.sequence import Sequence
from wager.engine.taken import StepTaken
from wager.engine.telemetry import StageClock
from wager.errors import OutOfPages
from wager.nn.native.choose import sampling_of
from wager.nn.native.steps import (
    BlockModel,
    NativeSteps,
    StepRule,
    StepText,
    TakenSteps,
    TextBuffer,
    Trust,
)
from wager.policy import Draft, MultiStep, NodeRule, Offer, Plan
from wager.records import Verdict
from wager.tree import Tree

LONGEST_RUN_MS = 40.0
"""Time for which native code runs at most: that long a new request may wait, and tokens come at once."""
MOST_STEPS = 128
"""The most steps of one call."""
UNKNOWN_STEPS = 4
"""Steps of a call while it is not known how long one takes."""
MOST_ROWS = 8
"""The most rows: with more of them a pass takes so long that the host's part is small."""


class MultiSteps:
    """Takes several steps at once."""

    def __init__(self, parts: EngineParts, drafting: Drafting) -> None:
        self._parts, self._drafting = parts, drafting
        self._native: NativeSteps | None = None
        self._native_of: object = None
        self._taps = np.array([], np.int64)
        self._buffers: WeakKeyDictionary[Sequence, TextBuffer] = WeakKeyDictionary()
        self._is_interrupted = False

    def interrupt(self) -> None:
        """Ends the call in progress after its present step; another thread may call this."""
        self._is_interrupted = True
        if self._native is not None:
            self._native.stop.value = 1

    def resume(self) -> None:
        """Allows further calls."""
        self._is_interrupted = False
        if self._native is not None:
            self._native.stop.value = 0

    def take(self, rows: Many[StepRow], bets: Plan, clock: StageClock) -> list[StepTaken]:
        """Take the steps that this plan allows; [] where this step has to be taken in the ordinary way.

        `clock` has the times of the stages before, which the steps share.
        """
        if self._is_interrupted or not all(row.view.native for row in rows):
            return []
        allowed = self._parts.controller.multi_step(bets, [row.view for row in rows])
        if allowed is None:
            return []
        native = self._steps()
        taken = None if native is None else self._run(native, rows, bets, allowed)
        return [] if taken is None or not taken.num_steps else _steps_of(rows, taken, clock)

    def is_possible(self, num_rows: int) -> bool:
        """Whether there are native passes for so many rows, and nobody waits to join them."""
        parts = self._parts
        if parts.runner.decoder.native is None or num_rows > MOST_ROWS:
            return False
        return not parts.scheduler.waiting and not parts.wants_p1

    def _steps(self) -> NativeSteps | None:
        """The native code for the target's present passes."""
        runner, native = self._parts.runner, self._parts.runner.decoder.native
        if native is None:
            return None
        if self._native_of is not native or self._native is None:
            self._taps = np.array(runner.feature_layers, np.int64)
            model = native.step_model(runner.pool, self._taps)
            self._native = NativeSteps(
                native.library, model, native.rotary, len(self._taps) * runner.hidden_size
            )
            self._native_of = native
        return self._native

    def _run(
        self, native: NativeSteps, rows: Many[StepRow], bets: Plan, allowed: MultiStep
    ) -> TakenSteps | None:
        block = self._block(rows)
        drafts = any(row.offer.drafter is not None for row in rows)
        if drafts and (block is None or allowed.rule is None):
            return None
        num_steps = min(allowed.num_steps, self._most_steps(rows, bets))
        rule = allowed.rule if drafts else None
        texts = [
            self._text(row, place, num_steps, rule, 0 if block is None else block.num_depths)
            for place, row in enumerate(rows)
        ]
        found = [text for text in texts if text is not None]
        if len(found) < len(rows):
            return None
        taken = native.take(found, num_steps, block, None if rule is None else _step_rule(rule))
        if drafts:
            self._drafting.compare_unchosen(rows)
        self._take_over(rows, taken)
        return taken

    def _most_steps(self, rows: Many[StepRow], bets: Plan) -> int:
        """As many steps as take LONGEST_RUN_MS."""
        costs = self._parts.controller.experience.costs
        if bets.prediction is not None:
            step_ms = bets.prediction.time_ms
        elif costs.measured:
            step_ms = costs.plain_ms(len(rows), max(row.view.context_len for row in rows), native=True)
        else:
            return UNKNOWN_STEPS
        return max(1, min(int(LONGEST_RUN_MS / max(step_ms, 1e-3)), MOST_STEPS))

    def _block(self, rows: Many[StepRow]) -> BlockModel | None:
        """What the library drafts with; None where nobody drafts, or not with the same native drafter."""
        offers = {row.offer for row in rows if row.offer.drafter is not None}
        if len(offers) != 1:
            return None
        ((name, depth),) = offers
        native = self._parts.drafters[name].native if name is not None else None
        if native is None:
            return None
        drafting = [row for row in rows if row.offer.drafter is not None]
        asked = [draft_row(row.sequence, row.num_tokens, depth) for row in drafting]
        found: list[BlockModel | None] = []
        self._drafting.guard(
            [row.sequence for row in drafting],
            lambda: found.append(native.begin(asked, max(row.sequence.max_len for row in rows))),
        )
        return found[0] if found else None

    def _text(
        self, row: StepRow, place: int, num_steps: int, rule: NodeRule | None, num_depths: int
    ) -> StepText | None:
        """The row as native code sees it, with pages for its steps; None where there are none."""
        sequence, request = row.sequence, row.sequence.request
        drafts = rule is not None and row.offer.drafter is not None
        most_nodes = min(row.view.max_nodes, rule.max_nodes) if drafts and rule is not None else 0
        per_step = 1 + (num_depths if drafts else 0)
        wanted = min(len(sequence.tokens) + num_steps * per_step, sequence.max_len) + most_nodes
        try:
            self._parts.scheduler.grow(sequence, wanted)
        except OutOfPages:
            return None
        buffer = self._buffers.get(sequence)
        if buffer is None:
            buffer = self._buffers[sequence] = TextBuffer(sequence.max_len)
        return StepText(
            buffer,
            sequence.tokens,
            sequence.max_len,
            sequence.pages,
            request.end_ids,
            sampling_of(sequence.params, request.seed),
            drafts,
            most_nodes,
            float(np.log(rule.weights[place])) if rule is not None else 0.0,
            self._match_length(row),
            sequence.may_draft and bool(self._parts.runner.feature_layers),
        )

    def _match_length(self, row: StepRow) -> int:
        """The shortest repeated tail behind which a drafter that copies would propose something better."""
        if not row.sequence.may_draft or row.sequence.drafting_failed or not row.view.drafters:
            return 0
        asked = draft_row(row.sequence, row.num_tokens)
        lengths = [drafter.better_match(asked) for drafter in self._copying()]
        return min([length for length in lengths if length], default=0)

    def _copying(self) -> list[Drafter]:
        return [drafter for drafter in self._parts.drafters.values() if drafter.runs_no_network]

    def _take_over(self, rows: Many[StepRow], taken: TakenSteps) -> None:
        """Bring the caches' accounts up to date: the target's tokens, and the contexts of the drafters."""
        kept = []
        for place, row in enumerate(rows):
            sequence, waiting = row.sequence, taken.waiting[place]
            num_waiting = 0 if waiting is None else len(waiting)
            sequence.num_cached += len(taken.tokens[place])
            if row.offer.drafter is not None:
                native = self._parts.drafters[row.offer.drafter].native
                assert native is not None
                read = sequence.num_cached - num_waiting
                self._drafting.guard([sequence], partial(native.end, sequence.request_id, read))
            if sequence.may_draft and num_waiting:
                start = sequence.num_cached - num_waiting
                kept.append(KeptTokens(sequence.request_id, start, waiting, sequence.pages))
        sequences = [row.sequence for row in rows]
        for drafter in self._parts.drafters.values() if kept else ():
            self._drafting.guard(sequences, partial(drafter.keep, kept))


def _step_rule(rule: NodeRule) -> StepRule:
    if rule.calibration is not None:
        slope, offsets, lowest, highest = rule.calibration
        return StepRule(rule.prices, Trust.CALIBRATED, slope, offsets, (lowest, highest), rule.is_chain)
    return StepRule(rule.prices, Trust.CERTAIN if rule.is_chain else Trust.AS_GIVEN, is_chain=rule.is_chain)


def _steps_of(rows: Many[StepRow], taken: TakenSteps, clock: StageClock) -> list[StepTaken]:
    """The steps one by one; plain ones are one record."""
    if taken.draft_tokens is None:
        (own_clock,) = clock.divided([(0.0, float(taken.times_ms.sum()))])
        own = [_plain_row(row, tokens) for row, tokens in zip(rows, taken.tokens, strict=True)]
        verdicts = [Verdict((), (), tokens[-1], 0) for tokens in taken.tokens]
        return [StepTaken(own, verdicts, own_clock, num_steps=taken.num_steps, native=True)]
    found, starts = list[StepTaken](), [0] * len(rows)
    counts: list[list[list[int]]] = taken.counts.tolist()
    for step, own_clock in enumerate(clock.divided(taken.times_ms.tolist())):
        own, verdicts = [], []
        for place, row in enumerate(rows):
            num_nodes, num_accepted, num_depths = counts[step][place]
            start, stop = starts[place], starts[place] + num_accepted + 1
            tokens, starts[place] = taken.tokens[place][start:stop], stop
            own.append(_drafted_row(row, taken, step, place, num_nodes, num_depths))
            verdicts.append(Verdict(tuple(tokens[:-1]), (), tokens[-1], num_nodes))
        found.append(StepTaken(own, verdicts, own_clock, native=True))
    return found


def _plain_row(row: StepRow, tokens: Many[int]) -> StepRow:
    return StepRow(row.sequence, 1, True, row.view, row.tree, plain_tokens=tokens)


def _drafted_row(
    row: StepRow, taken: TakenSteps, step: int, place: int, num_nodes: int, num_depths: int
) -> StepRow:
    own = StepRow(row.sequence, 1, True, row.view, _tree_of(num_nodes))
    if num_depths and taken.draft_tokens is not None and taken.draft_logprobs is not None:
        own.offer = row.offer
        own.proposal = Proposal(taken.draft_tokens[step, place], taken.draft_logprobs[step, place])
        own.draft = Draft(row.offer.drafter or "", num_depths, own.proposal.logprobs)
    else:
        own.offer = Offer()
    return own


@lru_cache(maxsize=256)
def _tree_of(num_nodes: int) -> Tree:
    """A tree of that size, of which nothing but the size is read."""
    return Tree.chain(np.zeros(num_nodes, np.int64))
