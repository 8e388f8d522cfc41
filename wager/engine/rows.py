"""A row of one step, and the small records made of rows: the input of passes, of drafters and of choices.

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
from wager.policy import PLAIN, Draft, Offer, Row
from wager.records import CloseKind, Verdict
from wager.target import ChoiceRow, Choices, RunRow
from wager.tree import Tree

Verdicts = list[Verdict | None]
"""One verdict per row; None where a row is not judged or its scores are broken."""
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
    plain_tokens: Many[int] = ()
    """The tokens of several plain steps that were taken at once; the verdict is that of the last."""

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
        return choice_row(self.sequence, self.tree)

    @property
    def needs_no_host(self) -> bool:
        """Whether the device's choices alone make the verdict: the host processes no logits, cuts no path."""
        return self.is_judged and chooses_freely(self.sequence, self.tree)

    def in_flight_row(self, first_token: int, first_choice: int) -> InFlightRow:
        """The row while its pass is in flight; its tokens and its choices begin at these places."""
        asked, tree = draft_row(self.sequence, self.num_tokens), self.tree
        return InFlightRow(asked, tree.parents.tolist(), tree.max_depth, first_token, first_choice)

    def draft_row(self) -> DraftRow:
        return draft_row(self.sequence, self.num_tokens, self.offer.depth)


def choice_row(sequence: Sequence, tree: Tree) -> ChoiceRow:
    """What the choices behind a sequence's root and the nodes of its tree depend on."""
    request = sequence.request
    return ChoiceRow(
        sequence.params,
        request.seed,
        sequence.tokens,
        sequence.num_prompt,
        tree,
        request.end_ids,
        sequence.bare,
        None if sequence.constraint is None else grammar_masks(sequence, tree),
    )


def chooses_freely(sequence: Sequence, tree: Tree = NO_TREE) -> bool:
    """Whether the target's scores and the noise alone choose its tokens, wherever its text goes."""
    thinking = sequence.thinking
    free = sequence.constraint is None and (thinking is None or thinking.is_closed)
    return free and (sequence.bare or not choice_row(sequence, tree).has_processing)


def can_run_natively(sequence: Sequence, num_tokens: int) -> bool:
    """Whether native code can take steps of this sequence: it only decodes, and the host has no part in it.

    Its first step is an ordinary one, behind which its pages are shared.
    """
    decodes = num_tokens == 1 == sequence.num_pending and sequence.stats.steps > 0
    wanted = sequence.params.logprobs is None and sequence.nodes is None
    return decodes and wanted and chooses_freely(sequence)


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
