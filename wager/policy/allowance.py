"""What bets may still lose: the ledger's floor, for all requests together and for each.

Were every guess of a step refused, its accounts would end at most one plain step below the floor. It does not
know what a bet is worth; auto.py asks it before every draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wager.policy.base import Row
from wager.policy.ledger import Account, Ledger
from wager.policy.valuation import StepView

RISKED_SHARE = 0.5
"""Part of the ledger's floor that bets may use; the rest is for what no bet is charged with."""
START_ALLOWANCE = 2.0
"""Plain steps that an account may be behind before it has had time to gain."""


class Allowance:
    """Reads one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def of_all_ms(self, step: StepView) -> float:
        """Time that bets may still lose by the account of all requests."""
        total = self._ledger.total
        kept_ms = (1.0 - RISKED_SHARE) * self._ledger.floor * total.elapsed_ms
        return self._ledger.allowance_ms(total, START_ALLOWANCE * step.plain_ms) - kept_ms

    def of_row_ms(self, row: Row, step: StepView) -> float:
        """The same by a request's own account, whose time is its share of every step."""
        own_ms = START_ALLOWANCE * step.plain_ms * row.num_pending / max(step.base_tokens, 1)
        return self._ledger.allowance_ms(self._account(row), own_ms)

    def until_rows_may(self, step: StepView, rows: Sequence[Row]) -> int:
        """Plain steps until the account of some row that could draft allows it; 0 where none could draft."""
        missing_ms = [-self.of_row_ms(row, step) for row in rows if can_draft(row)]
        return self._recovery(min(missing_ms, default=0.0), step.plain_ms / max(step.base_tokens, 1))

    def until_bearable(self, step: StepView, loss_ms: float) -> int:
        """Plain steps until such a loss is allowed; 0: it is now."""
        return self._recovery(loss_ms - self.of_all_ms(step), step.plain_ms)

    def _recovery(self, missing_ms: float, step_ms: float) -> int:
        """Plain steps of that length in which the ledger's floor gives back what is missing."""
        earned_ms = max(self._ledger.floor, 1e-6) * step_ms
        return math.ceil(missing_ms / earned_ms) if missing_ms > 0.0 else 0

    def _account(self, row: Row) -> Account:
        return self._ledger.account(row.request_id)


def can_draft(row: Row) -> bool:
    """Whether some drafter can propose for this row and the row can use it."""
    return bool(row.drafters) and row.emits and row.max_depth > 0 and row.max_nodes > 0
