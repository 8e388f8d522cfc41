"""A copy that goes on: its next pass is laid while this one runs, and begins as soon as the verdict is there.

Guesses that the host copies have no draft on the device behind which the host could hand out tokens and make
the next bet: the device would stand idle meanwhile. Where all of a copy stands it mostly goes on, so the pass
of that case is made ready beforehand, and if the verdict is the one supposed, it begins at once. The step
then finds its pass under way; a pass that is not the one it would run is dropped, and was run for nothing.
The stages of step.py know of it in four places: `verify` lays, `commit` begins, `arrange` and the next
`verify` take. One row only: of several one mostly ends its copy.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wager.engine.rows import StepRow, draft_row
from wager.engine.sequence import Sequence
from wager.errors import OutOfPages
from wager.records import Verdict
from wager.target import Laid, RunResult, RunRow
from wager.tree import Tree

if TYPE_CHECKING:
    from wager.engine.engine import Engine


class _Supposed(NamedTuple):
    """The verdict that is supposed, and the pass behind it."""

    sequence: Sequence
    drafter: str
    emitted: tuple[int, ...]
    row: RunRow
    laid: Laid


class _Begun(NamedTuple):
    """A pass under way: whose it is, what is in it, and what it will give."""

    sequence: Sequence
    drafter: str
    row: RunRow
    result: RunResult


class Supposed:
    """The pass that is laid, or under way, if any."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next: _Supposed | None = None
        self._begun: _Begun | None = None
        self._wish = 0
        """Guesses that the policy would have taken of the copy under way: the next pass has so many."""
        self.was_taken = False
        """Whether this step's pass began before the step: its time is not that of such a pass."""

    def lay(self, rows: Many[StepRow]) -> None:
        """Make the pass ready that follows if all guesses of the one under way stand."""
        self._next, wish, self._wish = None, self._wish, 0
        if len(rows) == 1 and self._engine.runner.has_kernels:
            self._next = self._supposed(rows[0], wish)

    def _supposed(self, row: StepRow, wish: int) -> _Supposed | None:
        engine, sequence, tree, name = self._engine, row.sequence, row.tree, row.offer.drafter
        most = min(wish or tree.num_nodes, sequence.max_depth - tree.num_nodes - 1)
        coming = None if name is None else self._coming(row, name)
        if name is None or coming is None or min(most, len(coming) - 1) <= 0:
            return None
        pending, guesses = coming[0], Tree.chain(np.array(coming[1 : 1 + most], np.int64))
        context_len = sequence.num_cached + row.num_tokens + tree.num_nodes
        try:
            engine.scheduler.grow(sequence, context_len + 1 + guesses.num_nodes)
        except OutOfPages:
            return None
        asked = RunRow([pending], guesses, context_len, list(sequence.pages))
        laid = engine.runner.lay([asked])
        emitted = (*tree.token_ids.tolist(), pending)
        return None if laid is None else _Supposed(sequence, name, emitted, asked, laid)

    def _coming(self, row: StepRow, name: str) -> Many[int] | None:
        """The token behind all guesses of a row, and what would be guessed then."""
        engine, sequence, tree = self._engine, row.sequence, row.tree
        # What a grammar permits is known when the tokens are there.
        if not tree.num_nodes or not tree.is_chain or sequence.constraint is not None:
            return None
        try:
            return engine.drafters[name].goes_on(draft_row(sequence, row.num_tokens), tree.num_nodes)
        except Exception as error:
            engine.drafting.lose([sequence], error)
            return None

    def begin(self, rows: Many[StepRow], verdicts: Many[Verdict | None], result: RunResult) -> RunResult:
        """These are the verdicts of a pass: begin what is laid, if it was laid for them.

        Returns what that pass gave, whatever has begun behind it.
        """
        supposed, self._next = self._next, None
        if supposed is None or len(rows) != 1 or rows[0].close is not None:
            return result
        verdict, sequence, runner = verdicts[0], supposed.sequence, self._engine.runner
        if verdict is None or rows[0].sequence is not sequence or verdict.emitted != supposed.emitted:
            return result
        if not set(supposed.emitted).isdisjoint(sequence.request.end_ids):
            return result
        result = runner.with_own_features(result)
        self._begun = _Begun(sequence, supposed.drafter, supposed.row, runner.run_laid(supposed.laid))
        return result

    def bet(self, rows: Many[StepRow], trees: list[Tree]) -> list[Tree]:
        """These trees, or what is under way in place of another chain of its drafter: the device is at it."""
        begun = self._begun
        if begun is None or len(rows) != 1 or rows[0].sequence is not begun.sequence:
            return trees
        tree = trees[0]
        if rows[0].offer.drafter != begun.drafter or not tree.num_nodes or not tree.is_chain:
            return trees
        self._wish = tree.num_nodes
        return [begun.row.tree]

    def take(self, rows: Many[StepRow]) -> RunResult | None:
        """What is under way, if it is the pass of these rows."""
        begun, self._begun, self.was_taken = self._begun, None, False
        if begun is None or len(rows) != 1 or rows[0].sequence is not begun.sequence:
            return None
        pending, tree, context_len, pages, is_judged = rows[0].run_row()
        row = begun.row
        same = list(pending) == list(row.pending) and context_len == row.context_len and is_judged
        if not same or tree != row.tree or list(pages[: len(row.pages)]) != list(row.pages):
            return None
        self.was_taken = True
        return begun.result

    def drop(self) -> None:
        """What is laid or under way concerns nobody any more."""
        self._next = self._begun = None
