"""Prelaunches the verify pass of a step behind its draft, before the host has read the draft.

Between a draft and the pass that verifies it a device would be idle while the host chooses the nodes.
Assumption: the policy can fix the number of nodes of every row beforehand (`Controller.blind_bet`), and the
device builds the most probable trees of that size itself. The host reads draft and trees while the pass runs.
Rows whose guesses the host has already copied take part with those.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Many

from wager.draft.base import UnreadDraft
from wager.engine.context import EngineParts
from wager.engine.drafting import Drafting
from wager.engine.pipeline import InFlight, Pipeline, Strategy
from wager.engine.rows import NO_TREE, StepRow
from wager.engine.scheduler import Planned
from wager.errors import OutOfPages, one_line
from wager.policy import Blind, Draft, Plan
from wager.target import BlindRow
from wager.tree import Tree

log = logging.getLogger("wager.engine")


class BlindPrelaunch:
    """Launches verify passes over drafts that the host has not read."""

    def __init__(self, parts: EngineParts, drafting: Drafting, pipeline: Pipeline) -> None:
        self._parts, self._drafting, self._pipeline = parts, drafting, pipeline
        self._launched: list[BlindRow] = []

    def launch(self, rows: Many[StepRow], bets: Plan) -> None:
        """Launch the draft of these rows and their verify pass behind it, if the policy bets blindly."""
        parts = self._parts
        name = self._unread_drafter(rows)
        if name is None or len(rows) > parts.runner.max_blind_rows or not all(map(_is_free, rows)):
            return
        draft = self._launch_draft(name, [row for row in rows if row.offer.drafter == name])
        if draft is None:
            return
        self._drafting.propose([row for row in rows if row.offer.drafter != name])
        shares = iter(zip(draft.lines, draft.depths, strict=True))
        lines = [next(shares) if row.offer.drafter == name else (0, _num_proposed(row)) for row in rows]
        # No guess may be deeper than its row may still write.
        lines = [
            (line, min(depth, row.view.max_depth)) for row, (line, depth) in zip(rows, lines, strict=True)
        ]
        drafts = [
            Draft(row.offer.drafter, depth, has_come=row.proposal is not None)
            if row.offer.drafter is not None
            else None
            for row, (_, depth) in zip(rows, lines, strict=True)
        ]
        blind = parts.controller.blind_bet(bets, [row.view for row in rows], drafts)
        asked = [] if blind is None else self._blind_rows(rows, lines, draft.top.shape[2], blind)
        if asked and parts.runner.can_build_trees(asked) and self._has_pages(rows, asked):
            # Growing may have moved a sequence to other pages.
            asked = [own._replace(pages=row.sequence.pages) for row, own in zip(rows, asked, strict=True)]
            result = parts.runner.run_blind(asked, draft.top)
            self._launched = asked
            planned = [Planned(row.sequence, row.num_tokens) for row in rows]
            self._pipeline.add(InFlight(Strategy.BLIND, planned, result, lambda taken: taken is rows))

    def read_trees(self) -> list[Tree]:
        """The trees in the pass that was launched last; waits until the device has built them."""
        return self._parts.runner.read_trees(self._launched)

    def _unread_drafter(self, rows: Many[StepRow]) -> str | None:
        """The drafter whose draft takes a pass; None where there is none, or several."""
        names = {row.offer.drafter for row in rows if row.offer.drafter is not None}
        waited_for = [name for name in names if not self._parts.drafters[name].runs_no_network]
        return waited_for[0] if len(waited_for) == 1 else None

    def _launch_draft(self, name: str, rows: Many[StepRow]) -> UnreadDraft | None:
        """The draft of these rows, launched and not read."""
        try:
            for row in rows:
                self._drafting.reserve_room(row)
            device = self._parts.drafters[name].device
            return None if device is None else device.begin_unread([row.draft_row() for row in rows])
        except Exception as error:
            # The draft stage asks for this draft again, meets the error and counts it.
            log.debug("%s: no draft for a blind bet: %s", name, one_line(error))
            return None

    def _blind_rows(
        self, rows: Many[StepRow], lines: Many[tuple[int, int]], ranks: int, blind: Blind
    ) -> list[BlindRow]:
        asked, ranks = [], 1 if blind.is_chain else ranks
        shares = zip(rows, lines, blind.nodes, blind.weights, strict=True)
        for row, (line, depth), nodes, weights in shares:
            pending, _, start, pages, _, _ = row.run_row()
            if row.proposal is not None:
                tree = Tree.chain(row.proposal.token_ids[: min(nodes, depth), 0])
                asked.append(BlindRow(pending, start, pages, tree.num_nodes, line, depth, tree=tree))
            else:
                most = min(nodes, self._parts.runner.max_built_nodes(depth, ranks))
                asked.append(BlindRow(pending, start, pages, most, line, depth, weights, blind.is_chain))
        return asked

    def _has_pages(self, rows: Many[StepRow], asked: Many[BlindRow]) -> bool:
        try:
            for row, own in zip(rows, asked, strict=True):
                most = own.context_len + len(own.pending) + own.num_nodes
                self._parts.scheduler.grow(row.sequence, most)
        except OutOfPages:
            return False
        return True


def _num_proposed(row: StepRow) -> int:
    """Number of guesses of the row that the host already has."""
    return 0 if row.proposal is None else len(row.proposal.token_ids)


def _is_free(row: StepRow) -> bool:
    """Whether any guess of its draft may be verified: no grammar restricts it, and it is judged."""
    return row.is_judged and row.sequence.constraint is None and row.tree is NO_TREE
