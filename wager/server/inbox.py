"""What comes back for a request: a delivery per step, merged while nobody reads.

Deliveries are made in the engine's thread out of its events and read on the loop. Merging bounds them: what
waits for a slow reader is at most the text of its requests. Knows neither HTTP nor the engine's insides;
bridge.py fills inboxes, answers.py reads them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wager.engine.engine import Event, Sequence
from wager.policy import Account
from wager.records import TokenDetail


class End(NamedTuple):
    """How a request ended: stop, length, abort or error."""

    finish: str
    error: str | None = None
    sequence: Sequence | None = None
    """Its whole state; nobody writes to it any more."""
    account: Account | None = None


@dataclass(slots=True)
class Delivery:
    """What came for one request since its reader last looked."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    details: list[TokenDetail] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    step_ms: float = 0.0
    """Of the latest step."""
    end: End | None = None

    def merge(self, later: Delivery) -> None:
        self.text += later.text
        self.token_ids += later.token_ids
        self.details += later.details
        self.logprobs += later.logprobs
        self.step_ms = later.step_ms
        self.end = later.end


class Inbox:
    """Where a reader waits for the deliveries of its requests: the choices 0, 1, ... of one answer."""

    def __init__(self) -> None:
        self._unread: dict[int, Delivery] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, index: int, delivery: Delivery) -> None:
        known = self._unread.get(index)
        if known is None:
            self._unread[index] = delivery
        else:
            known.merge(delivery)
        _wake(self._waiter)

    async def take(self, patience_s: float) -> dict[int, Delivery]:
        """What has come, by choice; empty where nothing did for that long."""
        if not self._unread:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(patience_s, _wake, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        unread, self._unread = self._unread, {}
        return unread


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


@dataclass(eq=False, slots=True)
class Running:
    """One request in the engine's hands, and the times of its life. Written in the engine's thread alone."""

    request_id: int
    index: int
    """Which of its caller's choices it is."""
    inbox: Inbox
    arrived_s: float
    sequence: Sequence | None = None
    first_s: float | None = None
    """When its first token came."""
    ended_s: float | None = None
    num_output: int = 0
    num_logprobs: int = 0

    def take_in(self, event: Event, step_ms: float, now_s: float) -> Delivery:
        """Make a delivery of an event."""
        if event.token_ids:
            self.num_output += len(event.token_ids)
            self.first_s = now_s if self.first_s is None else self.first_s
        end = None
        if event.finish is not None:
            self.ended_s = now_s
            end = End(event.finish.value, event.error, event.sequence, event.account)
        return Delivery(
            event.text, list(event.token_ids), list(event.details), self._new_logprobs(), step_ms, end
        )

    def _new_logprobs(self) -> list[Any]:
        if self.sequence is None or len(self.sequence.logprobs) == self.num_logprobs:
            return []
        new = self.sequence.logprobs[self.num_logprobs :]
        self.num_logprobs += len(new)
        return new
