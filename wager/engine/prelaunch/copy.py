"""Prelaunches the next verify pass of a copied text as soon as the verdict is known.

A draft that the host copies is not on the device, so no pass can be launched behind it there. Assumption: the
copied draft is fully accepted, and the copy continues with the tokens behind it. The pass for that case is
prepared while the current one runs, and launched if the verdict is the assumed one. The next step takes it if
it needs exactly this pass; otherwise the pass has run in vain. Only a single row is prelaunched, because of
several rows one usually ends its copy.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np

from wager.draft.checked import continuation_fault
from wager.engine.context import EngineParts
from wager.engine.drafting import Drafting
from wager.engine.pipeline import InFlight, Pipeline, Strategy
from wager.engine.rows import StepRow, draft_row
from wager.engine.scheduler import Planned
from wager.engine.sequence import Sequence
from wager.errors import DrafterError, OutOfPages
from wager.records import Verdict
from wager.target import PreparedPass, RunResult, RunRow
from wager.tree import Tree


class _Continuation(NamedTuple):
    """The pass of a copy that is fully accepted, and the tokens which that verdict emits."""

    sequence: Sequence
    drafter: str
    emitted: tuple[int, ...]
    row: RunRow
    prepared: PreparedPass


class CopyPrelaunch:
    """Prepares and launches the passes of copies that continue."""

    def __init__(self, parts: EngineParts, drafting: Drafting, pipeline: Pipeline) -> None:
        self._parts, self._drafting, self._pipeline = parts, drafting, pipeline
        self._next: _Continuation | None = None
        self._launched: tuple[InFlight, _Continuation] | None = None
        self._wanted_nodes = 0
        """Number of guesses that the policy wanted of the copy in flight; the pass after it has as many."""

    def prepare(self, rows: Many[StepRow]) -> None:
        """Prepare the pass that follows if all guesses of the pass in flight are accepted."""
        self._next, wanted, self._wanted_nodes = None, self._wanted_nodes, 0
        if len(rows) == 1 and self._parts.runner.has_kernels:
            self._next = self._continuation(rows[0], wanted)

    def _continuation(self, row: StepRow, wanted: int) -> _Continuation | None:
        parts, sequence, tree, name = self._parts, row.sequence, row.tree, row.offer.drafter
        most = min(wanted or tree.num_nodes, sequence.max_depth - tree.num_nodes - 1)
        coming = None if name is None else self._coming(row, name)
        if name is None or coming is None or min(most, len(coming) - 1) <= 0:
            return None
        pending, guesses = coming[0], Tree.chain(np.array(coming[1 : 1 + most], np.int64))
        context_len = sequence.num_cached + row.num_tokens + tree.num_nodes
        try:
            parts.scheduler.grow(sequence, context_len + 1 + guesses.num_nodes)
        except OutOfPages:
            return None
        asked = RunRow([pending], guesses, context_len, list(sequence.pages))
        prepared = parts.runner.prepare([asked])
        emitted = (*tree.token_ids.tolist(), pending)
        return None if prepared is None else _Continuation(sequence, name, emitted, asked, prepared)

    def _coming(self, row: StepRow, name: str) -> Many[int] | None:
        """The token behind all guesses of a row, and the guesses that would follow it."""
        sequence, tree = row.sequence, row.tree
        # What a grammar permits is known only when the tokens are there.
        if not tree.num_nodes or not tree.is_chain or sequence.constraint is not None:
            return None
        try:
            asked = draft_row(sequence, row.num_tokens)
            tokens = self._parts.drafters[name].continuation(asked, tree.num_nodes)
        except Exception as error:
            self._drafting.fail([sequence], error)
            return None
        fault = "" if tokens is None else continuation_fault(tokens, self._parts.runner.vocab_size)
        if fault:
            self._drafting.fail([sequence], DrafterError(f"{name}: {fault}"))
            return None
        return tokens

    def launch(self, rows: Many[StepRow], verdicts: Many[Verdict | None], result: RunResult) -> RunResult:
        """Launch the prepared pass if these are the verdicts that it assumes.

        Returns the result of the pass that was judged, which stays valid whatever has been launched.
        """
        following, self._next = self._next, None
        if following is None or len(rows) != 1 or rows[0].close is not None:
            return result
        verdict, sequence, runner = verdicts[0], following.sequence, self._parts.runner
        if verdict is None or rows[0].sequence is not sequence or verdict.emitted != following.emitted:
            return result
        if not set(following.emitted).isdisjoint(sequence.request.end_ids):
            return result
        result = runner.with_own_features(result)
        in_flight = InFlight(
            Strategy.COPY,
            [Planned(sequence, 1)],
            runner.run_prepared(following.prepared),
            lambda taken: _is_pass_of(following, taken),
        )
        self._launched = in_flight, following
        self._pipeline.add(in_flight)
        return result

    def prefer_in_flight(self, rows: Many[StepRow], trees: list[Tree]) -> list[Tree]:
        """These trees, or the one in flight if the policy chose another chain of the same drafter."""
        if self._launched is None or len(rows) != 1 or self._pipeline.in_flight is not self._launched[0]:
            return trees
        _, following = self._launched
        tree, row = trees[0], rows[0]
        if row.sequence is not following.sequence or row.offer.drafter != following.drafter:
            return trees
        if not tree.num_nodes or not tree.is_chain:
            return trees
        self._wanted_nodes = tree.num_nodes
        return [following.row.tree]


def _is_pass_of(following: _Continuation, rows: Many[StepRow]) -> bool:
    """Whether the step would run exactly this pass."""
    if len(rows) != 1 or rows[0].sequence is not following.sequence:
        return False
    (pending, tree, context_len, pages, is_judged, _), own = rows[0].run_row(), following.row
    if list(pending) != list(own.pending) or context_len != own.context_len or not is_judged:
        return False
    return tree == own.tree and list(pages[: len(own.pages)]) == list(own.pages)
