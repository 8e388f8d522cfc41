"""What `auto` may lose: who may bet at all, and how large a pass may become.

Three limits: the ledger's floor, for all requests together and for each; what has been measured, since beyond
the largest pass seen a cost is a guess; and the configuration. It does not know what a bet is worth: `auto`
asks it before every draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wager.policy.auto_step import Room, Step
from wager.policy.base import MANY, Row, crowd_of
from wager.policy.cost import MAX_TOKENS
from wager.policy.experience import Experience, longest_context

_STAKE_STEPS = 0.5  # plain steps that one bet may cost beyond what its accounts bear,
_STAKE = 0.5  # of which, past one plain step, this part is staked: a lost bet must not silence those to come
_START_STEPS = 2.0  # plain steps that a request may be behind before it has had time to gain,
_BACKED_STEPS = 2.0  # and at most so many more
_BACKING = 0.05  # out of this share of what all requests together have saved
_SIZE_STEP = 2  # a pass may be at most this many times the largest one measured
_MORE = 1.5  # times the guesses that were best lately are looked at in a batch: building a forest takes time,
_FADES = 0.9  # per step; and so many
_LEAST = 16  # a row in any case,
_LEAST_OF_MANY = 8  # or a row of a crowd


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Settings of `auto`; the defaults are meant to be left alone."""

    max_nodes: int = 64
    """Most nodes for one row."""
    max_batch_nodes: int = 512
    """Most nodes for all rows together."""
    row_floor: int = 1
    """Places a drafted row keeps in a shared pass, where there are enough for all."""
    longest_probe: int = 48
    """Most steps between two looks at a drafter that is not worth running."""
    first_gain: float = 0.5
    """Tokens a draft is assumed to be worth before one was seen."""


class Stake:
    """Reads the ledger and the costs of one experience."""

    def __init__(self, experience: Experience, config: AutoConfig) -> None:
        self._experience = experience
        self._config = config
        self._lately: dict[int, float] = {}
        """The most guesses that were best in steps of so many rows, in octaves; it fades."""

    def bears_all(self, step: Step, more_ms: float = 0.0) -> bool:
        """Whether the total account bears one more step, and so much more.

        Were every guess refused, it would end at most the cost of that one step below the floor; so would a
        request's own.
        """
        return self._total_ms(step) > more_ms

    def bears_row(self, row: Row, step: Step) -> bool:
        """Whether a request's own account does: its share of the step counts."""
        return self._row_ms(row, step) > 0.0

    def recovery(self, step: Step, rows: Sequence[Row]) -> int:
        """Plain steps until both accounts bear a bet for some row that could draft; 0 where they do."""
        floor, tokens = max(self._experience.ledger.floor, 1e-6), max(step.base_tokens, 1)
        of_rows = [
            -self._row_ms(row, step) / (floor * step.base_ms * row.num_pending / tokens)
            for row in rows
            if row.drafters
        ]
        steps = max(min(of_rows, default=0.0), -self._total_ms(step) / (floor * step.base_ms))
        return max(0, math.ceil(min(steps, 1e6)))

    def took(self, num_rows: int, num_nodes: int) -> None:
        """So many guesses were best in a step of so many rows."""
        crowd = crowd_of(num_rows)
        self._lately[crowd] = max(num_nodes, _FADES * self._lately.get(crowd, 0.0))

    def _total_ms(self, step: Step) -> float:
        ledger = self._experience.ledger
        return ledger.allowance_ms(ledger.total, step.base_ms)

    def _row_ms(self, row: Row, step: Step) -> float:
        ledger = self._experience.ledger
        own_ms = step.base_ms * row.num_pending / max(step.base_tokens, 1)
        return ledger.allowance_ms(ledger.account(row.request_id), self._start_steps(step) * own_ms)

    def room(self, step: Step, rows: Sequence[Row]) -> Room:
        """Places for guesses in this step, and what each number of them costs."""
        costs, base = step.costs, step.base_tokens
        assert costs is not None
        places = self._num_places(step, rows)
        more_ms = costs[base + 1 : base + 1 + places] - costs[base]
        if len(rows) == 1:
            return Room(places, step.rate * more_ms)
        return Room(places, step.num_emitting * np.log1p(more_ms / (step.base_ms + step.drafts_ms)))

    def _start_steps(self, step: Step) -> float:
        """Plain steps that a request may be behind at first: more where all together are well ahead."""
        saved = max(0.0, self._experience.ledger.total.balance_ms) / step.base_ms
        return _START_STEPS + min(_BACKED_STEPS, _BACKING * saved)

    def _num_places(self, step: Step, rows: Sequence[Row]) -> int:
        """Places that may be used: by configuration, by what has been measured, by what may be lost."""
        config, costs, base = self._config, step.costs, step.base_tokens
        assert costs is not None
        most = min(config.max_nodes * len(rows), config.max_batch_nodes, MAX_TOKENS - base)
        if len(rows) == 1:
            most = min(most, rows[0].max_nodes)
        lately = self._lately.get(crowd_of(len(rows)), most)
        least = _LEAST_OF_MANY if len(rows) >= MANY else _LEAST
        most = min(most, int(max(_MORE * lately, least * len(rows))))
        seen = max(self._experience.costs.largest_seen(len(rows), longest_context(rows)), base)
        most = max(0, min(most, _SIZE_STEP * seen - base))
        dearest = costs[base] + self._stake_ms(step, rows)
        if costs[base + most] <= dearest:
            return most
        return int(np.searchsorted(costs[base + 1 : base + 1 + most], dearest, "right"))

    def _stake_ms(self, step: Step, rows: Sequence[Row]) -> float:
        """What the guesses of a step may cost if all are refused: of what the accounts bear, and a little."""
        ledger, plain_ms = self._experience.ledger, step.base_ms
        bearable = ledger.allowance_ms(ledger.total, plain_ms)
        if len(rows) == 1:
            own = ledger.account(rows[0].request_id)
            bearable = min(bearable, ledger.allowance_ms(own, self._start_steps(step) * plain_ms))
        staked = min(bearable, plain_ms + _STAKE * (bearable - plain_ms))
        return staked + _STAKE_STEPS * plain_ms
