"""A row of one step, and the small records made of rows: the pass's input, the policy's outcome, the report.

Lives for one step only. It joins what the rooms need to know of a sequence, each in its own words; it decides
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wager.draft.base import DraftRow, Proposal
from wager.engine.sequence import Sequence
from wager.engine.telemetry import StepReport
from wager.policy import PLAIN, Evidence, Offer, Row, RowOutcome, StepOutcome
from wager.records import Verdict
from wager.target import ChoiceRow, RunRow
from wager.tree import Tree

_NO_TREE = Tree.empty()


@dataclass(slots=True)
class StepRow:
    """A sequence's place in this step."""

    sequence: Sequence
    num_tokens: int
    """Pending tokens in the pass."""
    is_judged: bool
    view: Row
    """What the policy sees."""
    offer: Offer = PLAIN
    tree: Tree = field(default_factory=lambda: _NO_TREE)
    verdict: Verdict | None = None
    emitted: int = 0

    def run_row(self) -> RunRow:
        sequence = self.sequence
        stop = sequence.num_cached + self.num_tokens
        pending = sequence.tokens[sequence.num_cached : stop]
        return RunRow(pending, self.tree, sequence.num_cached, sequence.pages, self.is_judged)

    def kept(self, verdict: Verdict | None) -> npt.NDArray[np.int64]:
        """Which of the row's pass tokens stand, ascending: all pending ones, then the accepted path."""
        if verdict is None or not verdict.path:
            return np.arange(self.num_tokens)
        return np.array([*range(self.num_tokens), *(self.num_tokens + node for node in verdict.path)])

    def choice_row(self) -> ChoiceRow:
        sequence = self.sequence
        request = sequence.request
        return ChoiceRow(
            request.params, request.seed, sequence.tokens, sequence.num_prompt, self.tree, request.end_ids
        )

    def draft_row(self) -> DraftRow:
        return draft_row(self.sequence, self.num_tokens, self.offer.depth)


def draft_row(sequence: Sequence, num_pending: int, depth: int = 0) -> DraftRow:
    """A sequence as a drafter sees it."""
    return DraftRow(
        sequence.request_id,
        sequence.tokens,
        num_pending,
        sequence.pages,
        sequence.params.temperature,
        sequence.request.seed,
        depth,
    )


def stacked_tokens(proposals: Many[Proposal | None]) -> npt.NDArray[np.int64]:
    """[rows, depths, ranks], as the policy's scores are laid out."""
    if len(proposals) == 1 and proposals[0] is not None:
        return proposals[0].token_ids[None]
    depths = max(p.token_ids.shape[0] for p in proposals if p is not None)
    ranks = max(p.token_ids.shape[1] for p in proposals if p is not None)
    tokens = np.zeros((len(proposals), depths, ranks), np.int64)
    for i, proposal in enumerate(proposals):
        if proposal is not None:
            ids = proposal.token_ids
            tokens[i, : ids.shape[0], : ids.shape[1]] = ids
    return tokens


def outcome_of(rows: Many[StepRow], stage_ms: dict[str, float], evidence: list[Evidence]) -> StepOutcome:
    """The step in the policy's words. Work around the passes is charged to the bet that caused it."""
    shares = []
    for row in rows:
        verdict = row.verdict
        accepted = 0 if verdict is None else verdict.num_accepted
        at_leaf = verdict is None or verdict.first_rejection is None
        shares.append(RowOutcome(row.view, row.offer, row.tree.num_nodes, accepted, row.emitted, at_leaf))
    num_tokens = sum([row.num_tokens + row.tree.num_nodes for row in rows])
    verify_ms = stage_ms["verify"] + stage_ms["accept"] + stage_ms["commit"]
    drafted = any(row.offer.drafter is not None for row in rows)
    draft_ms = stage_ms["draft"] + stage_ms["arrange"] if drafted else 0.0
    return StepOutcome(shares, num_tokens, verify_ms, draft_ms, evidence)


def report_of(rows: Many[StepRow], outcome: StepOutcome, stage_ms: dict[str, float]) -> StepReport:
    bets = [share.num_nodes for share in outcome.rows]
    drafters = [share.offer.drafter or "" for share in outcome.rows]
    return StepReport(
        num_rows=len(rows),
        num_tokens=outcome.num_tokens,
        num_nodes=sum(bets),
        num_drafting=len(drafters) - drafters.count(""),
        accepted=sum([share.accepted for share in outcome.rows]),
        emitted=sum([share.emitted for share in outcome.rows]),
        stage_ms=stage_ms,
        bets=bets,
        drafters=drafters,
    )
