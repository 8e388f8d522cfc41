"""The account against plain decoding: what a plain decoder would have needed, minus what was really spent.

One account per request and one overall, in milliseconds; positive means time saved. The floor says how far
an account may fall: a fraction of the time elapsed, plus a few plain steps so that a beginning is possible.
Policies that promise never to be slower ask for the allowance before they bet; the ledger forbids nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from wager.errors import ConfigError

START_ALLOWANCE = 2.0
"""Plain steps that an account may be behind before it has had time to gain."""
LARGEST_LOSS, ALONE_LOSS = 8.0, 12.0
"""Plain steps that an account may lose from its highest point, however much was gained before; and where a
single row, which bears the whole time of its drafts, loses them."""


@dataclass(slots=True)
class Account:
    """Time saved so far (`balance_ms`), its lowest point, and the time spent and tokens emitted behind it."""

    balance_ms: float = 0.0
    lowest_ms: float = 0.0
    elapsed_ms: float = 0.0
    plain_ms: float = 0.0
    tokens: int = 0
    highest_ms: float = 0.0
    """The highest point of the balance and what the floor gives."""

    def post(self, spent_ms: float, plain_ms: float, tokens: int, floor: float = 0.0) -> None:
        """Enter one step's share: time spent, and what plain decoding would have spent on its tokens."""
        self.elapsed_ms += spent_ms
        self.plain_ms += plain_ms
        self.tokens += tokens
        self.balance_ms = self.plain_ms - self.elapsed_ms
        self.lowest_ms = min(self.lowest_ms, self.balance_ms)
        self.highest_ms = max(self.highest_ms, self.balance_ms + floor * self.elapsed_ms)

    @property
    def speedup(self) -> float | None:
        """Measured: plain time over real time; None before anything was spent."""
        return self.plain_ms / self.elapsed_ms if self.elapsed_ms > 0 else None


class Ledger:
    """Accounts of the running requests and of all requests together."""

    def __init__(self, floor: float = 0.01) -> None:
        if not 0.0 <= floor <= 1.0:
            raise ConfigError("ledger_floor", floor, "a fraction from 0 to 1")
        self.floor = floor
        self.total = Account()
        self.requests: dict[Hashable, Account] = {}

    def account(self, request_id: Hashable) -> Account:
        return self.requests.get(request_id) or Account()

    def post(
        self, request_id: Hashable, spent_ms: float, plain_ms: float, tokens: int, *, shared: bool = True
    ) -> None:
        """Enter a row's share of a step into its own account and, where it is `shared`, the total."""
        account = self.requests.get(request_id)
        if account is None:
            account = self.requests[request_id] = Account()
        account.post(spent_ms, plain_ms, tokens, self.floor)
        if shared:
            self.total.post(spent_ms, plain_ms, tokens, self.floor)

    def refund(self, request_id: Hashable, time_ms: float, *, shared: bool = True) -> None:
        """Time that was posted and should not have been. An account that is closed stays as it was."""
        account = self.requests.get(request_id)
        if account is not None:
            account.post(-time_ms, 0.0, 0, self.floor)
        if shared:
            self.total.post(-time_ms, 0.0, 0, self.floor)

    def close(self, request_id: Hashable) -> Account:
        """The request has ended: take its account out and return it."""
        return self.requests.pop(request_id, None) or Account()

    def allowance_ms(self, account: Account, plain_ms: float, num_rows: int = 2) -> float:
        """How much more may be lost from here, if a plain step of so many rows takes the account so long."""
        now_ms = account.balance_ms + self.floor * account.elapsed_ms
        lost_ms = account.highest_ms - now_ms
        largest = ALONE_LOSS if num_rows == 1 else LARGEST_LOSS
        return min(now_ms + START_ALLOWANCE * plain_ms, largest * plain_ms - lost_ms)
