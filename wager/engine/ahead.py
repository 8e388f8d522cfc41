"""Plain steps run ahead: on a device the next pass begins before the host has read what this one chose.

While nobody guesses, a next pass depends on this one's choices alone, and those are on the device already. So
it is queued behind them, behind the end of a prompt as well, and planning, handing out and learning happen
while the device is at work. What ends in the step between is left out when the result is read; whoever
arrives waits for the pass under way.
The stages of step.py know of it in two places: `plan` takes the rows of such a pass, `verify` its result.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from wager.engine.rows import NO_TREE, StepRow
from wager.engine.sequence import Sequence
from wager.errors import OutOfPages
from wager.policy import Coming
from wager.target import RunResult, RunRow

if TYPE_CHECKING:
    from wager.engine.engine import Engine

_UNKNOWN = (0,)  # stands for a pending token that only the device knows


class _Begun(NamedTuple):
    """A pass under way: its rows, and what it will give."""

    sequences: list[Sequence]
    result: RunResult


class Ahead:
    """The pass that was begun before its step, if any."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._begun: _Begun | None = None
        self._was_ahead = False
        self.has_paused = False
        """Whether this step without prompts could have run ahead and did not: the device waited."""

    def sequences(self) -> list[Sequence]:
        """Those in the pass under way that still run; none where there is no such pass."""
        if self._begun is None:
            return []
        running = {id(sequence) for sequence in self._engine.scheduler.running}
        found = [sequence for sequence in self._begun.sequences if id(sequence) in running]
        if not found:
            self._begun = None  # nobody is left to read it
        return found

    @property
    def has_begun(self) -> bool:
        return self._begun is not None

    def take(self, rows: Many[StepRow]) -> RunResult | None:
        """The pass under way as that of these rows, which are all that is left of it."""
        begun, self._begun = self._begun, None
        self.has_paused, self._was_ahead = False, begun is not None
        if begun is None:
            return None
        places = {id(sequence): place for place, sequence in enumerate(begun.sequences)}
        return self._engine.runner.only(begun.result, [places[id(row.sequence)] for row in rows])

    def drop(self) -> None:
        """What is under way concerns nobody any more."""
        self._begun = None

    def following(self, rows: Many[StepRow], result: RunResult) -> Callable[[Tensor], None] | None:
        """What begins the next pass behind this one; None where that must wait for the host."""
        engine = self._engine
        if len(rows) > engine.runner.max_behind or engine.wants_p1 or not all(map(_is_free, rows)):
            return None
        self.has_paused = not self._was_ahead and all(row.num_tokens == 1 for row in rows)
        places = [place for place, row in enumerate(rows) if _goes_on(row.sequence)]
        if not places or engine.scheduler.waiting:
            return None
        going = [rows[place] for place in places]
        sequences = [row.sequence for row in going]
        left = max([sequence.max_depth for sequence in sequences]) - 1
        if not engine.controller.policy.rests(Coming(len(places), len(places), left, ahead=1)):
            return None
        try:
            for row in going:
                engine.scheduler.grow(row.sequence, row.sequence.num_cached + row.num_tokens + 1)
        except OutOfPages:
            return None

        def follow(chosen: Tensor) -> None:
            # Now: the next pass overwrites where features lie.
            engine.drafting.keep(rows, result, [range(row.num_tokens) for row in rows])
            asked = [_behind(row) for row in going]
            self._begun = _Begun(sequences, engine.runner.run_behind(asked, chosen, places))

        return follow


def _is_free(row: StepRow) -> bool:
    """Whether a row guesses nothing and the host has no word in its choice."""
    if row.tree.num_nodes or row.offer.drafter is not None or row.view.nodes:
        return False
    return row.is_settled and row.sequence.params.logprobs is None


def _goes_on(sequence: Sequence) -> bool:
    """Whether its length lets it go on after this step's token."""
    return len(sequence.tokens) + 1 < sequence.max_len


def _behind(row: StepRow) -> RunRow:
    """The same row a step later: its token is known to the device alone."""
    sequence = row.sequence
    return RunRow(_UNKNOWN, NO_TREE, sequence.num_cached + row.num_tokens, sequence.pages)
