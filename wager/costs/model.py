"""What a step costs on this machine: passes and drafts, learned online.

Passes have a table for each shape (octave of rows, context range, whether native code takes the steps), of
which a new one starts as the nearest known (table.py). Drafts have a linear model for each drafter, and one
more for drafts within native steps (drafts.py). It knows no policy; the controller feeds it, and policies
read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.costs.drafts import DraftModel, DraftShape
from wager.costs.table import MAX_TOKENS, SHIFT_STRIKES, CostTable, FloatArray
from wager.errors import ConfigError

IntArray = npt.NDArray[np.int64]
PROMPT_TOKENS, PROMPT_RATIO, COLD_PASSES = 64, 8, 3
"""Prompt tokens, at least, and relative to a pass's own, that evict what it uses from near memory; how many
passes are slow then."""
NEARLY_FLAT: FloatArray = 0.99 + 0.01 * np.arange(MAX_TOKENS + 1, dtype=np.float64)
"""The prior where nothing better is known: one more token costs one hundredth of a plain pass."""


_Shape = tuple[int, int, bool]
"""Octave of rows, context range, and whether native code takes the steps."""
_DraftKey = tuple[str, bool]


def _distance(one: _Shape, other: _Shape) -> tuple[int, int, int]:
    return abs(one[0] - other[0]), abs(one[1] - other[1]), abs(one[2] - other[2])


def octave_of(num_rows: int) -> int:
    """Octaves of rows, by which times are known: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8, ..."""
    return max(num_rows - 1, 0).bit_length()


class PassTime(NamedTuple):
    """A target pass that was timed before: tokens in it, its rows, the longest row's context."""

    num_tokens: int
    rows: int
    context_len: int
    time_ms: float


class DraftTime(NamedTuple):
    """The same for a draft pass, of which `depth` guesses were asked; 0: all."""

    drafter: str
    rows: int
    depth: int
    time_ms: float


class CostModel:
    """Times of passes and drafts. The first `warm_up` passes, and drafts of a drafter, are not recorded."""

    def __init__(
        self,
        prior: FloatArray = NEARLY_FLAT,
        *,
        draft_share: float = 0.2,
        buckets: tuple[int, ...] = (),
        warm_up: int = 2,
    ) -> None:
        """prior: times by tokens, index 0 unused, of which only the shape counts.

        draft_share: a draft's assumed time, as a part of a plain pass, until one was measured.
        buckets: sizes to which the engine pads a pass; a pass then costs what its bucket costs.
        """
        if not (draft_share > 0 and math.isfinite(draft_share)):
            raise ConfigError("draft_share", draft_share, "a positive number")
        self._prior = np.maximum(prior, prior[1])
        self._draft_share = draft_share
        self._padded = _padded_sizes(buckets) if buckets else None
        self._curves: dict[_Shape, tuple[FloatArray, FloatArray]] = {}
        """Of a shape: its table, and the curve that padding makes of it."""
        self._cold = warm_up
        """Passes to come that are not recorded, with their drafts: the first ones, some behind a prompt."""
        self._is_cold, self._latest_read = False, 0
        """Whether the latest pass was one of them, and how many tokens of prompts it read."""
        self._tables: dict[_Shape, CostTable] = {}
        self._drafts: dict[_DraftKey, DraftModel] = {}
        self._warm_up = warm_up
        self._num_cold: dict[_DraftKey, int] = {}
        """Drafts of each drafter that were not recorded because they were its first."""
        self.measured = False
        """Whether any pass has been timed: until then every time is a guess."""

    def load(self, passes: Iterable[PassTime], drafts: Iterable[DraftTime] = ()) -> None:
        """Begin with times measured before, each worth a few samples; what was timed since stays as it is."""
        for num_tokens, rows, context_len, time_ms in passes:
            if num_tokens <= MAX_TOKENS and 0.0 < time_ms < math.inf:
                self.shape(rows, context_len).load(self._size(num_tokens), time_ms)
                self.measured = True
        usable = [draft for draft in drafts if 0.0 < draft.time_ms < math.inf]
        for name in {draft.drafter for draft in usable} - {name for name, _ in self._drafts}:
            own = sorted([draft for draft in usable if draft.drafter == name], key=lambda one: one.depth)
            for _, rows, depth, time_ms in own:
                self._draft_model(name, DraftShape(rows)).observe(DraftShape(rows, depth), time_ms)
            self._drafts[name, False].trust()

    def observe_pass(
        self,
        num_tokens: int,
        rows: int,
        context_len: int,
        time_ms: float,
        *,
        num_read: int = 0,
        is_bare: bool = True,
        native: bool = False,
    ) -> float:
        """A target pass with `num_tokens` tokens, of which `num_read` were of prompts, took `time_ms`.

        `is_bare`: nothing else is in that time, so that it can tell of the machine's level. Returns by how
        much (log) the machine was found to have changed its level with this pass: all times have been moved
        by that. Mostly 0.
        """
        if self._latest_read >= max(PROMPT_TOKENS, PROMPT_RATIO * num_tokens):
            self._cold = max(self._cold, COLD_PASSES)
        self._latest_read = num_read
        self._is_cold, self._cold = self._cold > 0, max(self._cold - 1, 0)
        if self._is_cold or num_tokens > MAX_TOKENS or not 0.0 < time_ms < math.inf:
            return 0.0
        self.measured = True
        table = self.shape(rows, context_len, native)
        shift = table.observe(self._size(num_tokens), time_ms, is_bare=is_bare)
        if shift:
            for table in self._tables.values():
                table.move(shift)
            for draft in self._drafts.values():
                draft.scale(math.exp(shift))
        return shift

    def observe_drafts(self, shapes: Mapping[str, DraftShape], time_ms: float) -> None:
        """The drafts of a step took `time_ms` together; the most uncertain one is corrected most."""
        if self.is_warming(shapes):
            for name, shape in shapes.items():
                key = name, shape.native
                self._num_cold[key] = self._num_cold.get(key, 0) + 1
            return
        if self._is_cold or not 0.0 < time_ms < math.inf:
            return
        errors = {name: self.draft_error_ms(name, shape) for name, shape in shapes.items()}
        residual = time_ms - sum([self.draft_ms(name, shape) for name, shape in shapes.items()])
        total = sum([error**2 for error in errors.values()])
        for name, shape in shapes.items():
            part = errors[name] ** 2 / total if total else 1.0 / len(shapes)
            own_ms = self.draft_ms(name, shape) + part * residual
            self._draft_model(name, shape).observe(shape, max(own_ms, 0.05 * time_ms / len(shapes)))

    def is_warming(self, shapes: Mapping[str, DraftShape]) -> bool:
        """Whether some of these drafters have hardly drafted yet: such drafts take longer than others."""
        keys = [(name, shape.native) for name, shape in shapes.items()]
        return any(self._num_cold.get(key, 0) < self._warm_up for key in keys if key not in self._drafts)

    def curve(self, rows: int, context_len: int, native: bool = False) -> FloatArray:
        """Time of a pass by tokens in it, index 0 unused. A read-only view: copy before changing."""
        table = self.shape(rows, context_len, native).table()
        if self._padded is None:
            return table
        key = (octave_of(rows), context_range(context_len), native)
        known = self._curves.get(key)
        if known is None or known[0] is not table:
            known = self._curves[key] = (table, np.asarray(table[self._padded]))
        return known[1]

    def largest_seen(self, rows: int, context_len: int, native: bool = False) -> int:
        return self.shape(rows, context_len, native).largest

    def shape(self, rows: int, context_len: int, native: bool = False) -> CostTable:
        """The table behind `curve`; a shape seen for the first time starts as the nearest known one."""
        key = (octave_of(rows), context_range(context_len), native)
        table = self._tables.get(key)
        if table is None:
            known = [k for k, table in self._tables.items() if not table.is_empty]
            if known:
                nearest = self._tables[min(known, key=lambda other: _distance(other, key))]
                table = CostTable(nearest.table(), largest=nearest.largest)
            else:
                table = CostTable(self._prior)
            self._tables[key] = table
        return table

    def plain_ms(self, rows: int, context_len: int, native: bool = False) -> float:
        """Time of a plain step of these rows: one token each."""
        return float(self.curve(rows, context_len, native)[min(rows, MAX_TOKENS)])

    def draft_ms(self, drafter: str, shape: DraftShape) -> float:
        """Expected time of a draft; a share of a plain pass until one was measured."""
        model = self._known_model(drafter, shape.native)
        if model is not None:
            return model.time_ms(shape)
        return self._draft_share * self.plain_ms(shape.num_rows, 0, shape.native)

    def draft_error_ms(self, drafter: str, shape: DraftShape) -> float:
        """Standard error of that time."""
        return (self._known_model(drafter, shape.native) or self._new_model(shape)).error_ms(shape)

    def start_ms(self, drafter: str, num_starting: int, *, begins: bool, native: bool = False) -> float:
        """The part of a draft's time that is due to rows which did not draft in the step before."""
        model = self._known_model(drafter, native)
        return 0.0 if model is None else model.start_ms(num_starting, begins=begins)

    def _known_model(self, drafter: str, native: bool) -> DraftModel | None:
        """The model of such drafts; a drafter that never drafts within native steps has the other one."""
        return self._drafts.get((drafter, native)) or self._drafts.get((drafter, False))

    def _draft_model(self, drafter: str, shape: DraftShape) -> DraftModel:
        key = drafter, shape.native
        known = self._drafts.get(key)
        if known is None:
            known = self._drafts[key] = self._new_model(shape)
        return known

    def _new_model(self, shape: DraftShape) -> DraftModel:
        rows, plain_ms = shape.num_rows, self.plain_ms(1, 0, shape.native)
        more_ms = max(0.0, self.plain_ms(rows, 0, shape.native) - plain_ms) / max(rows - 1, 1)
        share = self._draft_share
        return DraftModel(share * plain_ms, share * more_ms, plain_ms, strikes=SHIFT_STRIKES)

    def _size(self, num_tokens: int) -> int:
        num_tokens = max(1, min(num_tokens, MAX_TOKENS))
        return num_tokens if self._padded is None else int(self._padded[num_tokens])


def context_range(context_len: int) -> int:
    """Ranges that double from 1,024 up: shorter contexts cost the same to within noise."""
    return max(context_len >> 10, 0).bit_length()


def _padded_sizes(buckets: tuple[int, ...]) -> IntArray:
    """For every size its bucket, whose time it has; sizes beyond the last bucket stay as they are."""
    sizes, ends = np.arange(MAX_TOKENS + 1), np.array(sorted(buckets), np.int64)
    place = np.minimum(np.searchsorted(ends, sizes), len(ends) - 1)
    return np.minimum(np.maximum(ends[place], sizes), MAX_TOKENS)
