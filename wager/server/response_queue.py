"""The queue between the engine's thread and the event loop: one update per choice and step, merged if unread.

Updates are made in the engine's thread from the engine's events and are read on the event loop. Merging
bounds the memory of a slow reader to the text of its own request. bridge.py fills queues, generation.py
reads them. It knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from wager.engine.engine import Event, Sequence
from wager.policy import Account
from wager.records import TokenDetail


@dataclass(slots=True)
class EngineUpdate:
    """What the engine has produced for one choice since the last update was read."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    details: list[TokenDetail] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    step_ms: float = 0.0
    """Duration of the latest step."""
    finish: str | None = None
    """`stop`, `length`, `abort` or `error` in the last update of a choice."""
    error: str | None = None
    sequence: Sequence | None = None
    """The final state of the sequence, set together with `finish`."""
    account: Account | None = None
    """The ledger account of the request, set together with `finish`."""

    def merge(self, later: EngineUpdate) -> None:
        self.text += later.text
        self.token_ids += later.token_ids
        self.details += later.details
        self.logprobs += later.logprobs
        self.step_ms = later.step_ms
        self.finish, self.error = later.finish, later.error
        self.sequence, self.account = later.sequence, later.account


class ResponseQueue:
    """Holds the unread updates of one request, by the index of the choice."""

    def __init__(self) -> None:
        self._unread: dict[int, EngineUpdate] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, index: int, update: EngineUpdate) -> None:
        unread = self._unread.get(index)
        if unread is None:
            self._unread[index] = update
        else:
            unread.merge(update)
        _wake(self._waiter)

    async def take(self, timeout_s: float) -> dict[int, EngineUpdate]:
        """The unread updates by choice; empty if none arrived within the timeout."""
        if not self._unread:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, _wake, self._waiter)
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
class RunningChoice:
    """One choice in the engine and its times. Only the engine's thread writes to it."""

    request_id: int
    index: int
    """Which choice of its request this is."""
    queue: ResponseQueue
    arrived_s: float
    sequence: Sequence | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    num_output: int = 0
    num_logprobs: int = 0

    def update_from(self, event: Event, step_ms: float, now_s: float) -> EngineUpdate:
        """The update for an event of the engine."""
        if event.token_ids:
            self.num_output += len(event.token_ids)
            self.first_token_s = now_s if self.first_token_s is None else self.first_token_s
        update = EngineUpdate(
            event.text, list(event.token_ids), list(event.details), self._new_logprobs(), step_ms
        )
        if event.finish is not None:
            self.ended_s = now_s
            update.finish, update.error = event.finish.value, event.error
            update.sequence, update.account = event.sequence, event.account
        return update

    def _new_logprobs(self) -> list[Any]:
        if self.sequence is None or len(self.sequence.logprobs) == self.num_logprobs:
            return []
        new = self.sequence.logprobs[self.num_logprobs :]
        self.num_logprobs += len(new)
        return new
