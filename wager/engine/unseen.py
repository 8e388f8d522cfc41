"""A bet sight unseen: the pass begins behind its draft, on the device, before the host has seen the guesses.

Between a draft's candidates and the pass that verifies them a device stands idle for as long as the host
decides. Where the policy says beforehand how many guesses to take (`Policy.blind`) and the device can build
their trees, the pass is queued behind the draft, and the host sees both while the pass runs. Rows for which
the host copies its guesses take part with those. The stages of step.py know of it in three places: `draft`
begins such a pass, `arrange` takes its trees, `verify` what it gave.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, NamedTuple

from wager.draft.base import Unseen
from wager.engine.rows import NO_TREE, StepRow
from wager.errors import OutOfPages, one_line
from wager.policy import Blind, Draft
from wager.target import RunResult, UnseenRow
from wager.tree import Tree

if TYPE_CHECKING:
    from wager.engine.engine import Engine

log = logging.getLogger("wager.engine")


class _Begun(NamedTuple):
    """A pass under way: its rows, and what it will give."""

    rows: list[UnseenRow]
    result: RunResult


class SightUnseen:
    """The pass that was begun before its draft was seen, if any."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._begun: _Begun | None = None

    @property
    def has_begun(self) -> bool:
        return self._begun is not None

    def begin(self, rows: Many[StepRow]) -> None:
        """Queue the pass of these rows behind the draft they are offered, if the policy bets on that."""
        engine = self._engine
        name = self._drafter(rows)
        if name is None or len(rows) > engine.runner.max_unseen or not all(map(_is_free, rows)):
            return
        draft = self._draft(name, [row for row in rows if row.offer.drafter == name])
        if draft is None:
            return
        engine.drafting.propose([row for row in rows if row.offer.drafter != name])
        shares = iter(zip(draft.lines, draft.depths, strict=True))
        lines = [next(shares) if row.offer.drafter == name else (0, _num_known(row)) for row in rows]
        # No guess is deeper than its row may still write.
        lines = [
            (line, min(depth, row.view.max_depth)) for row, (line, depth) in zip(rows, lines, strict=True)
        ]
        drafts = [
            Draft(row.offer.drafter, depth, has_come=row.proposal is not None)
            if row.offer.drafter is not None
            else None
            for row, (_, depth) in zip(rows, lines, strict=True)
        ]
        blind = engine.controller.blind([row.view for row in rows], drafts)
        asked = [] if blind is None else self._rows(rows, lines, draft.top.shape[2], blind)
        if asked and engine.runner.can_build(asked) and self._has_pages(rows, asked):
            # Growing may have moved a sequence to other pages.
            asked = [own._replace(pages=row.sequence.pages) for row, own in zip(rows, asked, strict=True)]
            self._begun = _Begun(asked, engine.runner.run_unseen(asked, draft.top))

    def _drafter(self, rows: Many[StepRow]) -> str | None:
        """The one whose draft is not there yet; None where there is none, or several."""
        names = {row.offer.drafter for row in rows if row.offer.drafter is not None}
        waited_for = [name for name in names if not self._engine.drafters[name].is_instant]
        return waited_for[0] if len(waited_for) == 1 else None

    def see(self, rows: Many[StepRow], drafts: Many[Draft | None]) -> list[Tree]:
        """The trees in the pass under way; the policy is told what drafts it has bet on."""
        assert self._begun is not None
        trees = self._engine.runner.unseen_trees(self._begun.rows)
        self._engine.controller.saw([row.view for row in rows], drafts, [tree.num_nodes for tree in trees])
        return trees

    def take(self) -> RunResult | None:
        """The pass under way."""
        begun, self._begun = self._begun, None
        return None if begun is None else begun.result

    def drop(self) -> None:
        """What is under way concerns nobody any more."""
        self._begun = None

    def _draft(self, name: str, rows: Many[StepRow]) -> Unseen | None:
        """The draft of these rows, under way."""
        try:
            for row in rows:
                self._engine.drafting.make_room(row)
            return self._engine.drafters[name].unseen([row.draft_row() for row in rows])
        except Exception as error:
            # Whoever asks for the draft meets it again, and counts it.
            log.debug("%s: no draft to bet on unseen: %s", name, one_line(error))
            return None

    def _rows(
        self, rows: Many[StepRow], lines: Many[tuple[int, int]], ranks: int, blind: Blind
    ) -> list[UnseenRow]:
        asked, ranks = [], 1 if blind.is_chain else ranks
        shares = zip(rows, lines, blind.nodes, blind.weights, strict=True)
        for row, (line, depth), nodes, weights in shares:
            pending, _, start, pages, _ = row.run_row()
            if row.proposal is not None:
                tree = Tree.chain(row.proposal.token_ids[: min(nodes, depth), 0])
                asked.append(UnseenRow(pending, start, pages, tree.num_nodes, line, depth, tree=tree))
            else:
                most = min(nodes, self._engine.runner.unseen_nodes(depth, ranks))
                asked.append(UnseenRow(pending, start, pages, most, line, depth, weights, blind.is_chain))
        return asked

    def _has_pages(self, rows: Many[StepRow], asked: Many[UnseenRow]) -> bool:
        try:
            for row, own in zip(rows, asked, strict=True):
                most = own.context_len + len(own.pending) + own.num_nodes
                self._engine.scheduler.grow(row.sequence, most)
        except OutOfPages:
            return False
        return True


def _num_known(row: StepRow) -> int:
    """Guesses of its draft that are there."""
    return 0 if row.proposal is None else len(row.proposal.token_ids)


def _is_free(row: StepRow) -> bool:
    """Whether any guess of its draft may be verified: no grammar bends it, and it is judged."""
    return row.is_judged and row.sequence.constraint is None and row.tree is NO_TREE
