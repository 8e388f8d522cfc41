"""Asks the drafters for proposals and tells them which tokens were accepted.

The stages of step.py call it. The policy decides which drafter runs, and the target which guesses are
accepted. A drafter that fails costs its rows their bets, and those rows do not draft again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial

from wager.draft.base import DraftRow, KeptTokens, Proposal
from wager.draft.checked import checked
from wager.engine.context import EngineParts
from wager.engine.rows import StepRow, draft_row, permitted_tree, within_grammar
from wager.engine.scheduler import Planned
from wager.engine.sequence import Sequence
from wager.errors import DrafterError, OutOfPages, one_line
from wager.policy import PLAIN, Inquiry
from wager.target import RunResult
from wager.tree import Tree

log = logging.getLogger("wager.engine")

DRAFT_ROOM = 16
"""Tokens behind the pending ones for which pages are kept while a drafter runs."""
_COMPARED_EVERY = 4
"""Steps between two drafts of drafters that were not chosen, which keep the policy's estimates current."""
COMPARED_BELOW = 8
"""Number of rows from which on drafters that were not chosen are not asked: it would take too much time."""


class Drafting:
    """The drafters of an engine, as its steps use them."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts

    def able(self, planned: Planned, inquiry: Inquiry) -> dict[str, str]:
        """The drafters that can propose for this row now, with the grade of what each would propose."""
        sequence = planned.sequence
        if sequence.drafting_failed or not self._parts.drafters:
            return {}
        asked, able = draft_row(sequence, planned.num_tokens), dict[str, str]()
        try:
            for name, drafter in self._parts.drafters.items():
                if drafter.can_propose(asked):
                    able[name] = drafter.grade(asked)
                    if inquiry.first_suffices:
                        break
        except Exception as error:
            self.fail([sequence], error)
            return {}
        return able

    def propose(self, rows: Many[StepRow]) -> None:
        """Set the proposal of every row that drafts and has none yet: one pass per drafter for all its rows.

        A drafter that fails costs its rows their bets and nothing else.
        """
        by_drafter: dict[str, list[StepRow]] = {}
        for row in rows:
            if row.offer.drafter is not None and row.proposal is None:
                by_drafter.setdefault(row.offer.drafter, []).append(row)
        for name, own in by_drafter.items():
            for row, proposal in zip(own, self._ask(name, own), strict=True):
                row.proposal = proposal
                if proposal is None:
                    row.offer = PLAIN

    def _ask(self, name: str, rows: list[StepRow]) -> list[Proposal | None]:
        """The proposals of one drafter; rows for which it fails do not draft again."""
        for row in rows:
            self.reserve_room(row)
        proposals = self._checked(name, [row.sequence for row in rows], [row.draft_row() for row in rows])
        return [
            None if row.sequence.drafting_failed else within_grammar(row.sequence, p)
            for row, p in zip(rows, proposals, strict=True)
        ]

    def _checked(self, name: str, sequences: Many[Sequence], rows: Many[DraftRow]) -> list[Proposal | None]:
        """Ask a drafter for proposals and drop unusable ones; both kinds of failure are counted."""
        try:
            answer = self._parts.drafters[name].propose(rows, self._parts.noise)
        except Exception as error:
            self.fail(sequences, error)
            return [None] * len(rows)
        proposals, faults = checked(answer, rows, self._parts.runner.vocab_size)
        if faults:
            reason = next(iter(faults.values()))
            self.fail([sequences[index] for index in faults], DrafterError(f"{name}: {reason}"))
        return proposals

    def fit_tree(self, row: StepRow, tree: Tree) -> Tree:
        """The nodes that the row's grammar permits, with pages for them.

        Where there are too few pages, the least likely nodes are removed.
        """
        sequence = row.sequence
        tree = permitted_tree(sequence, tree)
        base = sequence.num_cached + row.num_tokens
        try:
            self._parts.scheduler.grow(sequence, base + tree.num_nodes)
        except OutOfPages:
            room = len(sequence.pages) * self._parts.scheduler.memory.allocator.page_size - base
            return tree.prefix(max(room, 0))
        return tree

    def track_outcomes(self, rows: Many[StepRow]) -> None:
        """Keep the rows' drafts until the tokens that are emitted from now on show how good they were."""
        for row in rows:
            drafter, proposal = row.offer.drafter, row.proposal
            if proposal is not None and drafter is not None:
                phase = row.view.phase_of(drafter)
                self._parts.draft_outcomes.add(row.sequence.request_id, drafter, phase, proposal)

    def compare_unchosen(self, rows: Many[StepRow]) -> None:
        """Every few steps, track what drafters that were not chosen would have proposed, if that is instant.

        Otherwise the policy would never find that a drafter which was poor at first has become the better
        one.
        """
        parts = self._parts
        if parts.telemetry.steps % _COMPARED_EVERY or len(rows) >= COMPARED_BELOW:
            return
        for row in rows:
            chosen, view = row.offer.drafter, row.view
            others = [one for one in view.drafters if one != chosen and parts.drafters[one].runs_no_network]
            for name in others if chosen is not None else ():
                asked = draft_row(row.sequence, row.num_tokens)
                (proposal,) = self._checked(name, [row.sequence], [asked])
                if row.sequence.drafting_failed:
                    break
                proposal = within_grammar(row.sequence, proposal)
                if proposal is not None:
                    phase = view.phase_of(name)
                    parts.draft_outcomes.add(row.sequence.request_id, name, phase, proposal, is_bet=False)

    def keep(self, rows: Many[StepRow], result: RunResult, kept: Many[Many[int]]) -> None:
        """Hand the drafters the features of the tokens that stay in the target's cache.

        `kept` are the places of these tokens in each row. Rows that never draft are left out, and rows whose
        next draft was launched behind the pass: their drafter has read the features on the device.
        """
        if not self._parts.drafters or not any(map(_is_kept, rows)):
            return
        tokens, shares = [], self._parts.scheduler.memory.index is not None
        wanted = [own if _is_kept(row) else () for row, own in zip(rows, kept, strict=True)]
        found = self._parts.runner.kept_features(result, wanted)
        for row, (features, lines) in zip(rows, found, strict=True):
            if not _is_kept(row):
                continue
            sequence = row.sequence
            tokens.append(
                KeptTokens(
                    sequence.request_id,
                    sequence.num_cached,
                    features,
                    sequence.pages,
                    lines,
                    shares and row.is_judged and not sequence.stats.steps,
                )
            )
        for drafter in self._parts.drafters.values():
            self.guard([row.sequence for row in rows if _is_kept(row)], partial(drafter.keep, tokens))

    def reserve_room(self, row: StepRow, more: int = 0) -> None:
        """Pages behind the pending tokens for what a drafter writes there; it writes less without them."""
        sequence = row.sequence
        most = sequence.num_cached + row.num_tokens + DRAFT_ROOM + more
        try:
            self._parts.scheduler.grow(sequence, most)
        except OutOfPages:
            log.debug("no spare pages for the draft of %r", sequence.request_id)

    def guard(self, sequences: Many[Sequence], call: Callable[[], object]) -> None:
        """Call a drafter; if it raises, these sequences go on without drafts, and the failure is counted."""
        try:
            call()
        except Exception as error:
            self.fail(sequences, error)

    def fail(self, sequences: Many[Sequence], error: Exception) -> None:
        """Drafting failed for these sequences: they go on without drafts, and the failure is counted."""
        self._parts.telemetry.drafter_failures += 1
        log.warning("drafting failed, %d rows go on plainly: %s", len(sequences), one_line(error))
        for sequence in sequences:
            sequence.drafting_failed = True


def _is_kept(row: StepRow) -> bool:
    """Whether the drafters take in what the pass knows of the row's tokens."""
    return row.next_draft_by is None and row.sequence.may_draft
