"""What a step costs on this machine: time by tokens in the pass, by rows and context range, learned online.

Each shape (rows, context range) has a table of its own, of which a new one starts as the nearest known;
warm-up is skipped. How a table learns is cost_table.py's. It knows no curve by name and no policy. The
controller feeds it; policies read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from wager.errors import ConfigError
from wager.policy.base import FloatArray, IntArray
from wager.policy.cost_table import MAX_TOKENS, NEARLY_FLAT, SHIFT_STRIKES, CostCurve, CostTable
from wager.policy.draft_costs import DraftModel, DraftShape

__all__ = [
    "MAX_TOKENS",
    "NEARLY_FLAT",
    "SHIFT_STRIKES",
    "CostCurve",
    "CostModel",
    "CostTable",
    "DraftShape",
    "DraftTime",
    "PassTime",
]

_PROMPT = 64  # tokens from which a pass pushes out of near memory what smaller ones read again and again;
_COLD = 3  # passes behind such a one are slow for that, and say nothing of those to come


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
    """Tables by shape for the target's pass, and a robust mean per drafter for the draft's.

    A shape seen for the first time starts from the nearest known one. `warm_up` passes are not recorded.
    """

    def __init__(
        self,
        prior: CostCurve = NEARLY_FLAT,
        *,
        draft_share: float = 0.2,
        buckets: tuple[int, ...] = (),
        warm_up: int = 2,
    ) -> None:
        """draft_share: a draft's assumed time, as a part of a plain pass, until one was measured.

        buckets: sizes to which the engine pads a pass; a pass then costs what its bucket costs.
        """
        if not (draft_share > 0 and math.isfinite(draft_share)):
            raise ConfigError("draft_share", draft_share, "a positive number")
        self._prior = prior.table(np.maximum(np.arange(MAX_TOKENS + 1, dtype=np.float64), 1.0))
        self._draft_share = draft_share
        self._buckets = np.array(sorted(buckets), np.int64)
        self._is_padded = bool(buckets)
        self._padded = np.minimum(_pad(np.arange(MAX_TOKENS + 1), self._buckets), MAX_TOKENS)
        """For every size the one whose time it has."""
        self._curves: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
        """Of a shape: its table, and the curve that padding makes of it."""
        self._warm_up = warm_up
        self._cold = 0
        """While above 0, passes and their drafts are not recorded: they come right behind a prompt's."""
        self._latest = 0
        """Tokens of the latest pass."""
        self._tables: dict[tuple[int, int], CostTable] = {}
        self._drafts: dict[str, DraftModel] = {}
        self.measured = False
        """Whether any pass has been timed: until then every time is a guess."""

    def load(self, passes: Iterable[PassTime], drafts: Iterable[DraftTime] = ()) -> None:
        """Begin with times measured before, each worth a few samples; what was timed since stays as it is."""
        for num_tokens, rows, context_len, time_ms in passes:
            if num_tokens <= MAX_TOKENS and 0.0 < time_ms < math.inf:
                self._shape(rows, context_len).lay(self._size(num_tokens), time_ms)
                self.measured = True
        usable = [draft for draft in drafts if 0.0 < draft.time_ms < math.inf]
        for name in {draft.drafter for draft in usable} - set(self._drafts):
            own = sorted([draft for draft in usable if draft.drafter == name], key=lambda one: one.depth)
            for _, rows, depth, time_ms in own:
                self._draft_model(name, rows).observe(DraftShape(rows, depth), time_ms)
            self._drafts[name].trust()

    def observe_pass(
        self, num_tokens: int, rows: int, context_len: int, time_ms: float, *, is_bare: bool = True
    ) -> float:
        """A target pass with `num_tokens` tokens took `time_ms`.

        `is_bare`: nothing else is in that time, so that it can tell of the machine's level. Returns by how
        much (log) the machine was found to have changed its level with this pass: all times have been moved
        by that. Mostly 0.
        """
        if self._is_cold(num_tokens):
            return 0.0
        if num_tokens > MAX_TOKENS or not 0.0 < time_ms < math.inf:
            return 0.0
        table = self._shape(rows, context_len)
        table.observe(self._size(num_tokens), time_ms, is_bare=is_bare)
        self.measured = True
        shift = table.shift
        if shift:
            for one in self._tables.values():
                one.move(shift)
            for draft in self._drafts.values():
                draft.scale(math.exp(shift))
        return shift

    def _is_cold(self, num_tokens: int) -> bool:
        """Whether this pass comes too soon behind the start or a prompt's to say what others take."""
        if self._latest >= _PROMPT and 8 * num_tokens <= self._latest:
            self._cold = _COLD + 1  # counted down at once
        self._latest = num_tokens
        if self._warm_up > 0:
            self._warm_up -= 1
            return True
        self._cold = max(0, self._cold - 1)
        return self._cold > 0

    def observe_drafts(self, shapes: Mapping[str, DraftShape], time_ms: float) -> None:
        """The drafts of a step, by drafter, took `time_ms` together; the most uncertain one is corrected most."""
        if self._cold or not 0.0 < time_ms < math.inf:
            return
        errors = {name: self.draft_error_ms(name, shape) for name, shape in shapes.items()}
        residual = time_ms - sum([self.draft_ms(name, shape) for name, shape in shapes.items()])
        total = sum([error**2 for error in errors.values()])
        for name, shape in shapes.items():
            part = errors[name] ** 2 / total if total else 1.0 / len(shapes)
            own_ms = self.draft_ms(name, shape) + part * residual
            self._draft_model(name, shape.num_rows).observe(shape, max(own_ms, 0.05 * time_ms / len(shapes)))

    def curve(self, rows: int, context_len: int) -> FloatArray:
        """Time of a pass by tokens in it, index 0 unused. A read-only view: copy before changing."""
        table = self._shape(rows, context_len).table()
        if not self._is_padded:
            return table
        key = (octave_of(rows), context_range(context_len))
        known = self._curves.get(key)
        if known is None or known[0] is not table:
            known = self._curves[key] = (table, np.asarray(table[self._padded]))
        return known[1]

    def largest_seen(self, rows: int, context_len: int) -> int:
        return self._shape(rows, context_len).largest

    def shape(self, rows: int, context_len: int) -> CostTable:
        """The table behind `curve`, for those who plan what to measure next."""
        return self._shape(rows, context_len)

    def plain_ms(self, rows: int, context_len: int) -> float:
        """Time of a plain step of these rows: one token each."""
        return float(self.curve(rows, context_len)[min(rows, MAX_TOKENS)])

    def draft_ms(self, drafter: str, shape: DraftShape) -> float:
        """Expected time of a draft; a share of a plain pass until one was measured."""
        model = self._drafts.get(drafter)
        if model is not None:
            return model.time_ms(shape)
        return self._draft_share * self.plain_ms(shape.num_rows, 0)

    def draft_error_ms(self, drafter: str, shape: DraftShape) -> float:
        """Standard error of that time."""
        return (self._drafts.get(drafter) or self._new_model(shape.num_rows)).error_ms(shape)

    def start_ms(self, drafter: str, num_starting: int, *, begins: bool) -> float:
        """The part of a draft's time that is due to rows which did not draft in the step before."""
        model = self._drafts.get(drafter)
        return 0.0 if model is None else model.start_ms(num_starting, begins=begins)

    @property
    def drafters(self) -> list[str]:
        """Drafters of which some draft was timed."""
        return list(self._drafts)

    def _draft_model(self, drafter: str, rows: int) -> DraftModel:
        return self._drafts.setdefault(drafter, self._new_model(rows))

    def _new_model(self, rows: int) -> DraftModel:
        plain_ms = self.plain_ms(1, 0)
        more_ms = max(0.0, self.plain_ms(rows, 0) - plain_ms) / max(rows - 1, 1)
        share = self._draft_share
        return DraftModel(share * plain_ms, share * more_ms, plain_ms, strikes=SHIFT_STRIKES)

    def _size(self, num_tokens: int) -> int:
        if self._is_padded:
            num_tokens = int(self._padded[min(num_tokens, MAX_TOKENS)])
        return max(1, num_tokens)

    def _shape(self, rows: int, context_len: int) -> CostTable:
        key = (octave_of(rows), context_range(context_len))
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._begun_as_nearest(key)
        return table

    def _begun_as_nearest(self, key: tuple[int, int]) -> CostTable:
        known = [k for k, table in self._tables.items() if table.num_samples > 0]
        if not known:
            return CostTable(self._prior)
        nearest = self._tables[min(known, key=lambda k: (abs(k[0] - key[0]), abs(k[1] - key[1])))]
        return CostTable(nearest.table(), largest=nearest.largest)


def context_range(context_len: int) -> int:
    """Ranges that double from 1,024 up: shorter contexts cost the same to within noise."""
    return max(context_len >> 10, 0).bit_length()


def _pad(sizes: IntArray, buckets: IntArray) -> IntArray:
    """Each size's bucket; sizes beyond the last stay as they are."""
    if not len(buckets):
        return sizes
    place = np.searchsorted(buckets, sizes)
    return np.where(place < len(buckets), buckets[np.minimum(place, len(buckets) - 1)], sizes)
