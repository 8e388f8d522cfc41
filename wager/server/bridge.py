"""Connects the event loop with the engine's thread: requests go in, updates come back.

The event loop sends functions to the thread (engine/thread.py) and receives the updates of each step in one
call. Unread updates of a request are merged, so a slow reader never makes the engine wait. It knows nothing
of HTTP; generation.py calls it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from wager import garbage
from wager.engine.engine import Engine, Event
from wager.engine.thread import EngineStopped, EngineThread
from wager.errors import WagerError
from wager.server.generation_request import GenerationRequest
from wager.server.response_queue import EngineUpdate, ResponseQueue, RunningChoice

log = logging.getLogger("wager.server")

T = TypeVar("T")
_RECENT_REQUESTS = 64  # the waiting time is estimated from the durations of this many requests
_STOPPING = "the server is being stopped"


class QueueFull(WagerError):
    """Too many requests are waiting."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class NotReady(WagerError):
    """The engine is loading, has failed or is being stopped."""


class Bridge:
    """Owns the engine's thread and tracks the open requests."""

    def __init__(self, load: Callable[[], Engine], max_queue: int) -> None:
        self._load = load
        self._max_queue = max_queue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = EngineThread(
            self._send_updates, self._end_all, on_idle=_use_idle_moment, uses_spare_time=True
        )
        self._running: dict[int, RunningChoice] = {}
        """Choices in the engine. Only the engine's thread uses it."""
        self._open: dict[int, RunningChoice] = {}
        """Choices that were submitted and have not ended. Only the event loop uses it."""
        self._next_id = 0
        self._recent_s: deque[float] = deque(maxlen=_RECENT_REQUESTS)
        self.draining = False
        self.on_loaded: Callable[[Engine], None] = lambda _engine: None
        """Called in the engine's thread before the first step."""
        self.on_end: Callable[[RunningChoice, EngineUpdate], None] = lambda _choice, _update: None
        """Called on the event loop for every choice that ended or was aborted."""

    # -- start and end

    def start(self) -> asyncio.Future[Engine]:
        """Start to load the model. The future completes when the engine is ready, or carries the error."""
        self._loop = asyncio.get_running_loop()

        def load() -> Engine:
            engine = self._load()
            self.on_loaded(engine)
            return engine

        return asyncio.wrap_future(self._thread.start(load))

    def close(self) -> None:
        """End all requests and the thread. Waits for the current step, but not for the loading of a model."""
        self._thread.stop(wait=self.engine is not None)

    @property
    def engine(self) -> Engine | None:
        """The engine; None before it is loaded."""
        return self._thread.engine

    @property
    def failure(self) -> str | None:
        """The error that ended the engine's thread."""
        return self._thread.failure

    @property
    def is_ready(self) -> bool:
        return self.engine is not None and self.failure is None and not self.draining

    @property
    def num_open(self) -> int:
        """Number of choices that run or wait."""
        return len(self._open)

    def ready_engine(self) -> Engine:
        """The engine, for reading what does not change. Raises NotReady."""
        if self.failure is not None:
            raise NotReady(f"the engine has failed: {self.failure}")
        if self.engine is None:
            raise NotReady("the model is being loaded")
        return self.engine

    # -- called on the event loop

    async def submit(self, request: GenerationRequest, queue: ResponseQueue) -> list[RunningChoice]:
        """Submit all choices of a request, or none.

        Raises QueueFull, NotReady, and RequestError or CapacityError if the engine refuses the request.
        """
        num = request.num_choices
        self._check_room(num)
        choices = [RunningChoice(self._next_id + i, i, queue, time.monotonic()) for i in range(num)]
        self._next_id += num
        self._open.update({choice.request_id: choice for choice in choices})
        try:
            await self.call(lambda: self._add(choices, request))
        except WagerError:
            self._remove(choices)  # the engine refused the request, so nothing has to be reported
            raise
        except BaseException:
            self.abort(choices)
            raise
        return choices

    def abort(self, choices: Sequence[RunningChoice]) -> None:
        """End the choices that still run. Their pages are free before the next step; no update is sent."""
        for choice in self._remove(choices):
            self.on_end(choice, EngineUpdate(finish="abort"))

    def abort_all(self) -> None:
        """End every request. Each reader receives a last update."""
        self._thread.submit(self._abort_all)

    def _remove(self, choices: Sequence[RunningChoice]) -> list[RunningChoice]:
        """Remove the open ones among the choices here and in the engine; returns them."""
        removed = [choice for choice in choices if self._open.pop(choice.request_id, None) is not None]
        if removed:
            self._thread.submit(lambda: self._drop(removed))
        return removed

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function in the engine's thread between two steps. Raises NotReady and what it raises."""
        try:
            return await asyncio.wrap_future(self._thread.submit(function))
        except EngineStopped as error:
            raise NotReady(self.failure or _STOPPING) from error

    def _check_room(self, num: int) -> None:
        engine = self.ready_engine()
        if self.draining:
            raise NotReady(_STOPPING)
        if self.num_open + num > engine.scheduler.config.max_rows + self._max_queue:
            raise QueueFull(self._retry_after_s())

    def _retry_after_s(self) -> int:
        """Estimates when a place will be free from the durations of recent requests."""
        mean_s = sum(self._recent_s) / len(self._recent_s) if self._recent_s else 0.0
        return min(60, 1 + round(mean_s / 4))

    def _deliver(self, updates: list[tuple[RunningChoice, EngineUpdate]]) -> None:
        """Put the updates of one step into the queues of their readers."""
        for choice, update in updates:
            if choice.request_id not in self._open:
                continue  # its reader has left
            if update.finish is not None:
                del self._open[choice.request_id]
                self._recent_s.append(time.monotonic() - choice.arrived_s)
                self.on_end(choice, update)
            choice.queue.put(choice.index, update)

    # -- called in the engine's thread

    def _send_updates(self, events: list[Event], step_ms: float) -> None:
        now = time.monotonic()
        updates = []
        for event in events:
            choice = self._running.get(event.request_id)  # type: ignore[call-overload]
            if choice is not None:
                updates.append((choice, choice.update_from(event, step_ms, now)))
                if event.finish is not None:
                    del self._running[choice.request_id]
        if updates:
            self._call_on_loop(self._deliver, updates)

    def _call_on_loop(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            log.debug("the event loop has closed; a call to it was dropped")

    def _add(self, choices: Sequence[RunningChoice], request: GenerationRequest) -> None:
        assert self.engine is not None
        for choice in choices:
            prompt, params = request.prompt(choice.index), request.choice_params(choice.index)
            choice.sequence = self.engine.add(choice.request_id, prompt, params, request.client)
            self._running[choice.request_id] = choice

    def _drop(self, choices: Sequence[RunningChoice]) -> None:
        assert self.engine is not None
        for choice in choices:
            if self._running.pop(choice.request_id, None) is not None:
                self.engine.abort(choice.request_id)

    def _abort_all(self) -> None:
        assert self.engine is not None
        for request_id in list(self._running):
            self.engine.abort(request_id)
        # No request runs any more: this step only returns the last events.
        self._send_updates(self.engine.step(), 0.0)

    def _end_all(self, failure: str | None) -> None:
        """Give every reader a last update at the end of the thread."""
        if failure is None:
            self._abort_all()
            return
        message = f"the engine has failed: {failure}"
        updates = [(choice, EngineUpdate(finish="error", error=message)) for choice in self._running.values()]
        self._running.clear()
        if updates:
            self._call_on_loop(self._deliver, updates)


def _use_idle_moment(engine: Engine) -> None:
    """Verify the page accounting and collect garbage while no request runs."""
    _check_pages(engine)
    garbage.use_idle_moment()


def _check_pages(engine: Engine) -> None:
    """Verify the page accounting while the engine is idle."""
    try:
        engine.check()
    except WagerError as error:
        log.error("the page accounting is inconsistent: %s", error)
