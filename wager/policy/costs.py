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
from wager.policy.base import FloatArray, IntArray, Offer
from wager.policy.cost_table import MAX_TOKENS, NEARLY_FLAT, SHIFT_STRIKES, CostCurve, CostTable, RobustTime

__all__ = [
    "MAX_TOKENS",
    "NEARLY_FLAT",
    "SHIFT_STRIKES",
    "CostCurve",
    "CostModel",
    "CostTable",
    "DraftTime",
    "PassTime",
    "RobustTime",
]

_PROMPT = 64  # tokens from which a pass pushes out of near memory what smaller ones read again and again;
_COLD = 3  # passes behind such a one are slow for that, and say nothing of those to come
_BELIEVED = 3  # drafts of a size that must be timed before it may be thought dearer than its neighbours say
_START_RATE = 0.3  # share of the newest first draft in what such drafts take longer
_SHORTER = 0.8  # of the next deeper draft's time: what a shorter one is taken to need until it was timed


def octave_of(num_rows: int) -> int:
    """Octaves of rows, by which times are known: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8, ..."""
    return max(num_rows - 1, 0).bit_length()


_DraftKey = tuple[str, int, int]
"""A drafter, how deep it drafts (0: in full), and for how many rows in octaves."""


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
        self._drafts: dict[_DraftKey, RobustTime] = {}
        self._near: dict[_DraftKey, list[_DraftKey]] = {}
        """For drafts that were not timed, those that were and come nearest."""
        """By drafter, depth asked for (0: all of it) and octave of rows."""
        self._starts: dict[tuple[str, int], float] = {}
        """Milliseconds by drafter and octave of rows."""
        self.measured = False
        """Whether any pass has been timed: until then every time is a guess."""

    def load(self, passes: Iterable[PassTime], drafts: Iterable[DraftTime] = ()) -> None:
        """Begin with times measured before, each worth a few samples; what was timed since stays as it is."""
        for num_tokens, rows, context_len, time_ms in passes:
            if num_tokens <= MAX_TOKENS and 0.0 < time_ms < math.inf:
                self._shape(rows, context_len).lay(self._size(num_tokens), time_ms)
                self.measured = True
        for drafter, rows, depth, time_ms in drafts:
            if 0.0 < time_ms < math.inf:
                key = (drafter, depth, octave_of(rows))
                self._drafts.setdefault(key, RobustTime(time_ms, is_laid=True))
                self._near.clear()

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
                draft.scale(shift)
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

    def observe_draft(self, drafter: str, rows: int, time_ms: float, depth: int = 0) -> None:
        """A draft pass for `rows` rows, of which `depth` guesses were asked (0: all), took `time_ms`."""
        if time_ms > 0 and math.isfinite(time_ms) and not self._cold:
            key = (drafter, depth, octave_of(rows))
            if key in self._drafts:
                self._drafts[key].observe(time_ms)
            else:
                self._drafts[key] = RobustTime(time_ms)
                self._near.clear()

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

    def draft_ms(self, drafter: str, rows: int, context_len: int, depth: int = 0) -> float:
        """Time of one draft pass; a share of a plain pass, or of a deeper draft, until one was measured."""
        octave = octave_of(rows)
        own = self._drafts.get((drafter, depth, octave))
        known = None if own is None else own.value_ms
        if own is None or own.count < _BELIEVED:
            near = self._near_draft_ms(drafter, depth, octave)
            known = near if known is None or near is None else min(known, near)
        if known is not None:
            return known
        if depth:
            deeper = [key[1] for key in self._drafts if key[0] == drafter and key[1] > depth]
            return _SHORTER * self.draft_ms(drafter, rows, context_len, min(deeper, default=0))
        return self._draft_share * self.plain_ms(rows, context_len)

    def drafts_ms(self, rows_by_offer: Mapping[Offer, int], context_len: int) -> float:
        """Time of all draft passes of a step, by what was asked and for how many rows.

        Of several drafters what they were seen to take together, and until then each its own: what the host
        does for one of them it need not do for the other.
        """
        each = [
            self.draft_ms(offer.drafter, num, context_len, offer.depth)
            for offer, num in rows_by_offer.items()
            if offer.drafter is not None
        ]
        if len(each) < 2:
            return sum(each)
        together = self._drafts.get(_together(rows_by_offer))
        return sum(each) if together is None else min(max(together.value_ms, *each), sum(each))

    def observe_drafts(self, rows_by_offer: Mapping[Offer, int], time_ms: float) -> None:
        """Draft passes of several drafters took that long together."""
        name, _, octave = _together(rows_by_offer)
        self.observe_draft(name, 1 << octave, time_ms)

    @property
    def drafters(self) -> list[str]:
        """Drafters of which some draft was timed."""
        return list(dict.fromkeys(name for name, _, _ in self._drafts if "+" not in name))

    def knows_draft(self, drafter: str) -> bool:
        """Whether any draft of this drafter was timed."""
        return any(key[0] == drafter for key in self._drafts)

    def start_ms(self, drafter: str, rows: int) -> float | None:
        """By how much a drafter's first draft behind steps without it is longer: it reads what it missed.

        None before one was timed.
        """
        own = [key for key in self._starts if key[0] == drafter]
        if not own:
            return None
        octave = octave_of(rows)
        near = min(own, key=lambda key: abs(key[1] - octave))
        return self._starts[near] * 2.0 ** (octave - near[1])

    def observe_start(self, drafter: str, rows: int, more_ms: float) -> None:
        """A first draft took so much longer than the drafts behind it do."""
        key = (drafter, octave_of(rows))
        before = self._starts.get(key, more_ms)
        self._starts[key] = before + _START_RATE * (more_ms - before)

    def _near_draft_ms(self, drafter: str, depth: int, octave: int) -> float | None:
        """Of the same depth, between those of fewer and of more rows; for a whole draft any depth will do."""
        key = (drafter, depth, octave)
        near = self._near.get(key)
        if near is None:
            near = self._near[key] = self._nearest(*key)
        if not near:
            return None
        low, high = self._drafts[near[0]].value_ms, self._drafts[near[-1]].value_ms
        few, many = 1 << near[0][2], 1 << near[-1][2]
        return low + (high - low) * ((1 << octave) - few) / max(many - few, 1) if len(near) == 2 else low

    def _nearest(self, drafter: str, depth: int, octave: int) -> list[_DraftKey]:
        """The nearest drafts of fewer rows and of more that were timed, or one, or none."""
        own = [key for key in self._drafts if key[0] == drafter]
        near = [key for key in own if key[1] == depth] or ([] if depth else own)
        near = [key for key in near if key[2] != octave] or near
        fewer = max((key for key in near if key[2] <= octave), key=_by_octave, default=None)
        more = min((key for key in near if key[2] >= octave), key=_by_octave, default=None)
        return [key for key in (fewer, more) if key is not None]

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


def _together(rows_by_offer: Mapping[Offer, int]) -> _DraftKey:
    """Under which the drafts of several drafters in one step are known."""
    names = {offer.drafter for offer in rows_by_offer if offer.drafter is not None}
    return "+".join(sorted(names)), 0, octave_of(sum(rows_by_offer.values()))


def _by_octave(key: _DraftKey) -> int:
    return key[2]


def context_range(context_len: int) -> int:
    """Ranges that double from 1,024 up: shorter contexts cost the same to within noise."""
    return max(context_len >> 10, 0).bit_length()


def _pad(sizes: IntArray, buckets: IntArray) -> IntArray:
    """Each size's bucket; sizes beyond the last stay as they are."""
    if not len(buckets):
        return sizes
    place = np.searchsorted(buckets, sizes)
    return np.where(place < len(buckets), buckets[np.minimum(place, len(buckets) - 1)], sizes)
