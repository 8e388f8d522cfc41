"""A row of one step, and the small records made of rows: the pass's input, the policy's outcome, the report.

A row lives for one step only. It says what each room needs to know about a sequence in that room's records,
and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from wager.draft.base import DeviceDrafting, DraftRow, InFlightRow, Proposal
from wager.engine.sequence import Sequence
from wager.engine.telemetry import StepReport
from wager.policy import PLAIN, Draft, Offer, Plan, Row, RowOutcome, StepOutcome
from wager.records import CloseKind, Verdict
from wager.target import ChoiceRow, Choices, RunRow
from wager.tree import Tree

NO_TREE = Tree.empty()
"""The tree of every row until a draft is arranged."""


@dataclass(slots=True)
class StepRow:
    """A sequence's place in this step."""

    sequence: Sequence
    num_tokens: int
    """Number of its pending tokens in the pass."""
    is_judged: bool
    view: Row
    """What the policy sees of the row."""
    tree: Tree
    offer: Offer = PLAIN
    draft: Draft | None = None
    """The draft as the policy was shown it."""
    verdict: Verdict | None = None
    emitted: int = 0
    """Number of tokens that were chosen, without forced ones."""
    close: CloseKind | None = None
    """How its thinking is closed in this step; None where it is not closed."""
    proposal: Proposal | None = None
    next_draft_by: DeviceDrafting | None = None
    """The drafter's device part that has launched the row's next draft behind the pass."""

    def run_row(self) -> RunRow:
        sequence = self.sequence
        start = sequence.num_cached
        pending = sequence.tokens[start : start + self.num_tokens]
        return RunRow(pending, self.tree, start, sequence.pages, self.is_judged, sequence.may_draft)

    def kept_places(self, verdict: Verdict | None) -> Many[int]:
        """Places of the pass tokens that stay in the cache: the pending ones, then the accepted path."""
        if verdict is None or not verdict.path:
            return range(self.num_tokens)
        return [*range(self.num_tokens), *[self.num_tokens + node for node in verdict.path]]

    def choice_row(self) -> ChoiceRow:
        sequence = self.sequence
        request = sequence.request
        return ChoiceRow(
            sequence.params,
            request.seed,
            sequence.tokens,
            sequence.num_prompt,
            self.tree,
            request.end_ids,
            sequence.bare,
            None if sequence.constraint is None else grammar_masks(sequence, self.tree),
        )

    @property
    def needs_no_host(self) -> bool:
        """Whether the device's choices alone make the verdict: the host processes no logits, cuts no path."""
        sequence, thinking = self.sequence, self.sequence.thinking
        free = sequence.constraint is None and (thinking is None or thinking.is_closed)
        return self.is_judged and free and (sequence.bare or not self.choice_row().has_processing)

    def in_flight_row(self, first_token: int, first_choice: int) -> InFlightRow:
        """The row while its pass is in flight; its tokens and its choices begin at these places."""
        asked, tree = draft_row(self.sequence, self.num_tokens), self.tree
        return InFlightRow(asked, tree.parents.tolist(), tree.max_depth, first_token, first_choice)

    def draft_row(self) -> DraftRow:
        return draft_row(self.sequence, self.num_tokens, self.offer.depth)


class ConcatenatedTokens(Many[int]):
    """Two lists of tokens read as one; a slice at the end does not copy the whole text."""

    __slots__ = ("_first", "_more")

    def __init__(self, first: list[int], more: Many[int]) -> None:
        self._first, self._more = first, more

    def __len__(self) -> int:
        return len(self._first) + len(self._more)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice) and place.step is None and place.stop is None:
            behind = (place.start or 0) - len(self._first)
            if behind >= 0:
                return list(self._more[behind:])
        return [*self._first, *self._more][place]


def draft_row_behind(sequence: Sequence, verdict: Verdict) -> DraftRow:
    """A sequence as a drafter will see it once a verdict's tokens are appended."""
    return draft_row(sequence, 1, tokens=ConcatenatedTokens(sequence.tokens, verdict.emitted))


def draft_row(
    sequence: Sequence, num_pending: int, depth: int = 0, tokens: Many[int] | None = None
) -> DraftRow:
    """A sequence as a drafter sees it; `tokens` replaces its tokens by those that it will have."""
    return DraftRow(
        sequence.request_id,
        sequence.tokens if tokens is None else tokens,
        num_pending,
        sequence.pages,
        sequence.params.temperature,
        sequence.request.seed,
        depth,
    )


def within_grammar(sequence: Sequence, proposal: Proposal | None) -> Proposal | None:
    """A draft restricted to the sequence's grammar, which drafters do not know."""
    constraint = sequence.constraint
    if constraint is None or proposal is None:
        return proposal
    constraint.follow(sequence.output_ids, sequence.origins)
    return Proposal(*constraint.steer(proposal.token_ids, proposal.logprobs), proposal.spine_only)


def permitted_tree(sequence: Sequence, tree: Tree) -> Tree:
    """The tree without the guesses that the sequence's grammar forbids."""
    constraint = sequence.constraint
    if constraint is None or not tree.num_nodes:
        return tree
    constraint.follow(sequence.output_ids, sequence.origins)
    return tree.only(np.array(constraint.permitted(tree.token_ids.tolist(), tree.parents.tolist())))


def grammar_masks(sequence: Sequence, tree: Tree) -> npt.NDArray[np.uint8]:
    """The tokens that the sequence's grammar allows behind the root and behind each node."""
    constraint = sequence.constraint
    assert constraint is not None
    constraint.follow(sequence.output_ids, sequence.origins)
    return constraint.masks(tree.token_ids.tolist(), tree.parents.tolist())


def close_thinking(
    rows: Many[StepRow], verdicts: Many[Verdict | None], choices: Choices
) -> list[Verdict | None]:
    """Cut each verdict where the row's thinking is closed by its budget, and set the row's `close`."""
    found, start = list(verdicts), 0
    if all(row.sequence.thinking is None for row in rows):
        return found
    for i, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
        thinking = row.sequence.thinking
        if verdict is not None and thinking is not None and not thinking.is_closed:
            places = [start, *[start + 1 + node for node in verdict.path]]
            soft = [choices.soft[place] for place in places] if choices.soft else ()
            num_kept, row.close = thinking.walk(verdict.emitted, soft)
            if row.close is not None:
                found[i] = _cut(verdict, num_kept - (row.close is not CloseKind.SOFT))
        start += row.tree.num_nodes + 1 if row.is_judged else 0
    return found


def _cut(verdict: Verdict, num_accepted: int) -> Verdict:
    """The verdict as if the tree had ended there; the token at that place is the target's own choice."""
    if num_accepted == len(verdict.accepted):
        return verdict
    return Verdict(
        verdict.accepted[:num_accepted],
        verdict.path[:num_accepted],
        verdict.accepted[num_accepted],
        verdict.num_drafted,
    )


def drafts_of(rows: Many[StepRow]) -> list[Draft | None]:
    """The rows' proposals as the policy is shown them."""
    return [
        None if p is None else Draft(row.offer.drafter or "", len(p.token_ids), p.logprobs, p.spine_only)
        for row, p in [(row, row.proposal) for row in rows]
    ]


def stacked_tokens(proposals: Many[Proposal | None]) -> npt.NDArray[np.int64]:
    """The tokens of all proposals, [rows, depths, ranks], in the order of the policy's scores."""
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


def outcome_of(
    rows: Many[StepRow], bets: Plan, stage_ms: dict[str, float], learn_ms: float, *, is_typical: bool
) -> StepOutcome:
    """The outcome of the step as the policy is told it; it covers the whole time of the step.

    The time of deciding and of learning (`learn_ms`, from the previous step) is charged to the draft, the
    rest to the pass.
    """
    shares, num_tokens, drafted = [], 0, False
    for row in rows:
        verdict, offer, num_nodes = row.verdict, row.offer, row.tree.num_nodes
        accepted = 0 if verdict is None else len(verdict.accepted)
        shares.append(RowOutcome(row.view, offer, num_nodes, accepted, row.emitted, row.draft))
        num_tokens += row.num_tokens + num_nodes
        drafted = drafted or offer.drafter is not None
    deciding_ms = stage_ms["bet"] + stage_ms["draft"] + stage_ms["arrange"] + learn_ms
    verify_ms = sum([stage_ms[stage] for stage in ("plan", "verify", "accept", "commit", "emit")])
    if not drafted:
        verify_ms, deciding_ms = verify_ms + deciding_ms, 0.0
    return StepOutcome(shares, num_tokens, verify_ms, deciding_ms, is_typical=is_typical, plan=bets)


def report_of(outcome: StepOutcome, stage_ms: dict[str, float]) -> StepReport:
    """The numbers of the step for telemetry."""
    bets, drafters, accepted, emitted = [], [], 0, 0
    for share in outcome.rows:
        bets.append(share.num_nodes)
        drafters.append(share.offer.drafter or "")
        accepted += share.accepted
        emitted += share.emitted
    return StepReport(
        num_rows=len(bets),
        num_tokens=outcome.num_tokens,
        num_nodes=sum(bets),
        num_drafting=len(drafters) - drafters.count(""),
        accepted=accepted,
        emitted=emitted,
        stage_ms=stage_ms,
        bets=bets,
        drafters=drafters,
    )
