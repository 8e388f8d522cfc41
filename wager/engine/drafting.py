"""What the engine does for its drafters: asks them, hands them what stands, begins their next draft early.

The stages of step.py call it. Which drafter runs is the policy's decision, which guesses stand the target's;
a drafter that fails costs its rows their bets, and is not asked for them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING

from torch import Tensor

from wager.draft.base import DraftRow, KeptTokens, Proposal, Verified, VerifiedRow
from wager.engine.rows import StepRow, any_broken, draft_row, draft_row_behind, within_grammar
from wager.engine.scheduler import Planned
from wager.engine.sequence import Sequence
from wager.errors import DrafterError, OutOfPages, one_line
from wager.policy import MANY, PLAIN
from wager.records import Verdict
from wager.target import RunResult

if TYPE_CHECKING:
    from wager.engine.engine import Engine

log = logging.getLogger("wager.engine")

DRAFT_ROOM = 16
"""Tokens behind the pending ones for which pages are kept while a drafter runs."""
_WATCHED = 4  # steps: at every so many those that nobody chose show what they would have guessed


class Drafting:
    """The drafters of an engine, as its steps use them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._opening: str | None = None
        """Who drafted first for the latest request that ran alone."""

    def able(self, planned: Planned, enough: Collection[str] = ()) -> dict[str, str]:
        """Drafters that can propose for this row now, and the grades of what they would.

        enough: behind one of these that can, no other is asked.
        """
        sequence = planned.sequence
        if sequence.drafting_failed or not self._engine.drafters:
            return {}
        asked, able = draft_row(sequence, planned.num_tokens), dict[str, str]()
        try:
            for name, drafter in self._engine.drafters.items():
                if drafter.can_draft(asked):
                    able[name] = drafter.grade(asked)
                    if name in enough:
                        break
        except Exception as error:
            self.lose([sequence], error)
            return {}
        return able

    def propose(self, rows: Many[StepRow]) -> list[Proposal | None]:
        """What each row's drafter guesses. One that fails costs its rows their bets, no more."""
        by_drafter: dict[str, list[StepRow]] = {}
        for row in rows:
            if row.offer.drafter is not None and row.proposal is None:
                by_drafter.setdefault(row.offer.drafter, []).append(row)
        for name, own in by_drafter.items():
            for row, proposal in zip(own, self._ask(name, own), strict=True):
                row.proposal = proposal
                if proposal is None:
                    row.offer = PLAIN
        return [row.proposal for row in rows]

    def _ask(self, name: str, rows: list[StepRow]) -> list[Proposal | None]:
        """Run a drafter; if it fails, its rows go on plainly and it is not asked for them again."""
        try:
            for row in rows:
                self.make_room(row)
            proposals = self._engine.drafters[name].draft(
                [row.draft_row() for row in rows], self._engine.parts.noise
            )
        except Exception as error:
            self.lose([row.sequence for row in rows], error)
            return [None] * len(rows)
        if any_broken(proposals):
            broken = [row.sequence for row, p in zip(rows, proposals, strict=True) if p and p.is_broken]
            self.lose(broken, DrafterError(f"{name}: its scores are not numbers"))
        return [
            None if row.sequence.drafting_failed else within_grammar(row.sequence, p)
            for row, p in zip(rows, proposals, strict=True)
        ]

    def remember(self, row: StepRow, proposal: Proposal | None) -> None:
        """Keep a draft until the tokens that come show what it was worth."""
        if proposal is not None and row.offer.drafter is not None:
            phase = row.view.phase_of(row.offer.drafter)
            self._engine.hindsight.add(row.sequence.request_id, row.offer.drafter, phase, proposal)

    def watch(self, rows: Many[StepRow]) -> None:
        """Now and then, what others would have guessed for rows that draft, if that takes no time.

        Or a drafter that was not worth much at first would never be found to be worth more than another.
        A crowd has one drafter, and no time for this.
        """
        engine = self._engine
        if engine.telemetry.steps % _WATCHED or len(rows) >= MANY:
            return
        for row in rows:
            chosen, view = row.offer.drafter, row.view
            others = [name for name in view.drafters if name != chosen and engine.drafters[name].is_instant]
            for name in others if chosen is not None else ():
                asked = draft_row(row.sequence, row.num_tokens)
                try:
                    (proposal,) = engine.drafters[name].draft([asked], engine.parts.noise)
                except Exception as error:
                    self.lose([row.sequence], error)
                    break
                proposal = within_grammar(row.sequence, proposal)
                if proposal is not None:
                    phase = view.phase_of(name)
                    engine.hindsight.add(row.sequence.request_id, name, phase, proposal, is_bet=False)

    def keep(self, rows: Many[StepRow], result: RunResult, kept: Many[Many[int]]) -> None:
        """Tell the drafters what now stands in the target's cache."""
        if not self._engine.drafters or self._engine.ahead.has_begun:
            return  # before a pass began behind this one, its features were kept
        if all(row.followed_by is not None for row in rows):
            return
        tokens, shares = [], self._engine.scheduler.memory.index is not None
        wanted = [own if row.followed_by is None else () for row, own in zip(rows, kept, strict=True)]
        found = self._engine.runner.kept_features(result, wanted)
        for row, (features, lines) in zip(rows, found, strict=True):
            if row.followed_by is not None:
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
        for drafter in self._engine.drafters.values():
            try:
                drafter.keep(tokens)
            except Exception as error:
                self.lose([row.sequence for row in rows], error)

    def following(self, rows: list[StepRow], result: RunResult) -> Callable[[Tensor], None] | None:
        """What begins the next drafts behind this pass, or the next plain pass, on the device.

        None where the host has a word in a verdict. A drafter in use begins for all rows that drafted: one
        may change from another to it.
        """
        names, tokens = {row.offer.drafter for row in rows if row.offer.drafter is not None}, result.token_ids
        if not names:
            return self._engine.ahead.following(rows, result)
        if tokens is None or not all(row.is_settled for row in rows):
            return None
        drafted, places, first_choice = list[StepRow](), list[VerifiedRow](), 0
        for row, first_token in zip(rows, result.inputs.starts, strict=False):
            if row.offer.drafter is not None:
                self.make_room(row, row.tree.num_nodes)
                drafted.append(row)
                places.append(row.verified(first_token, first_choice))
            first_choice += row.tree.num_nodes + 1

        def follow(chosen: Tensor) -> None:
            verified = Verified(places, chosen, tokens)
            for name in names:
                drafter = self._engine.drafters[name]
                try:
                    kept = drafter.follow(verified)
                except Exception as error:
                    self.lose([row.sequence for row in drafted], error)
                    return
                if kept is not None:
                    for row in drafted:
                        row.followed_by = drafter
                    self._engine.runner.commit_behind(kept)
                    return

        return follow

    def start(self, rows: list[StepRow], verdicts: Many[Verdict | None]) -> None:
        """Begin the drafts that the next step will probably ask for: those of rows that drafted in this one.

        A device drafts then while tokens are handed out; elsewhere nothing happens. Every drafter in use
        begins for all of them: a row may change from one to another, and a draft that lacks it is made anew.
        For a prompt that is read alone the one begins that did so for the request before.
        """
        if not self._engine.runner.has_kernels:
            return
        if len(rows) == 1 and rows[0].sequence.stats.steps == 1:
            self._opening = rows[0].offer.drafter
        owners, asked, opening = dict[str, list[Sequence]](), list[DraftRow](), self._opens(rows)
        for row, verdict in zip(rows, verdicts, strict=True):
            name, sequence = row.offer.drafter or opening, row.sequence
            if name is None or verdict is None or row.close is not None:
                continue
            if row.followed_by is not None:
                row.followed_by.confirm(sequence.request_id, sequence.num_cached, verdict.target_token)
                continue
            num_tokens = len(sequence.tokens) + len(verdict.accepted) + 1
            if verdict.target_token in sequence.request.end_ids or num_tokens >= sequence.max_len:
                continue
            self.make_room(row)
            owners.setdefault(name, []).append(sequence)
            asked.append(draft_row_behind(sequence, verdict))
        for name, own in owners.items():
            try:
                self._engine.drafters[name].start(asked)
            except Exception as error:
                self.lose(own, error)

    def _opens(self, rows: list[StepRow]) -> str | None:
        """Who is to draft first for a row that has just read its prompt alone, if that is known."""
        if len(rows) != 1 or not rows[0].is_judged or self._engine.ahead.has_begun:
            return None
        sequence = rows[0].sequence
        is_first = not sequence.stats.steps and sequence.nodes is None and not sequence.drafting_failed
        return self._opening if is_first and self._opening in self._engine.drafters else None

    def make_room(self, row: StepRow, more: int = 0) -> None:
        """Pages behind the pending tokens for what a drafter lays there; it takes less if there are none."""
        sequence = row.sequence
        most = sequence.num_cached + row.num_tokens + DRAFT_ROOM + more
        try:
            self._engine.scheduler.grow(sequence, most)
        except OutOfPages:
            log.debug("no spare pages for the draft of %r", sequence.request_id)

    def lose(self, sequences: Many[Sequence], error: Exception) -> None:
        """Drafting failed for these: they go on plainly, and it is counted."""
        self._engine.telemetry.drafter_failures += 1
        log.warning("drafting failed, %d rows go on plainly: %s", len(sequences), one_line(error))
        for sequence in sequences:
            sequence.drafting_failed = True
