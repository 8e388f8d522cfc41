"""Between the event loop and the engine's thread: requests in, what came of them out.

One thread owns the engine and runs steps while there is work. The loop hands it commands and gets each step's
events back in one call. What has come for a request and was not read yet is merged, so a slow reader is a
bounded heap of text and never a reason for the engine to wait. Knows no HTTP; answers.py is its caller.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from wager import garbage
from wager.engine.engine import Engine, Event
from wager.errors import WagerError, one_line
from wager.records import SamplingParams
from wager.server.inbox import Delivery, End, Inbox, Running

log = logging.getLogger("wager.server")

T = TypeVar("T")
_WINDOW = 64  # requests whose times the estimate of waiting is made from


class Busy(WagerError):
    """The queue is full; says when to come back."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many requests are waiting; come back in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class NotReady(WagerError):
    """The engine is loading, has failed or is being stopped."""


class Asked(NamedTuple):
    """A request as the engine takes it."""

    prompt_ids: Sequence[int]
    params: SamplingParams
    client: str = ""


class _Command(Generic[T]):
    """Something to be done in the engine's thread, and the future that hears of it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def run(self) -> None:
        try:
            value = self._function()
        except Exception as error:
            self.fail(error)
        else:
            self._loop.call_soon_threadsafe(_settle, self.future, value, None)

    def fail(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(_settle, self.future, None, error)


class Bridge:
    """Owns the engine's thread, and counts what is open."""

    def __init__(self, load: Callable[[], Engine], max_queue: int) -> None:
        self._load = load
        self._max_queue = max_queue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._commands: deque[_Command[Any]] = deque()
        self._stopping = False
        self._gone = False
        """The thread takes no more commands."""
        self._running: dict[int, Running] = {}
        """In the engine; belongs to its thread."""
        self._open: dict[int, Running] = {}
        """Submitted and not ended; belongs to the loop."""
        self._next_id = 0
        self._recent_s: deque[float] = deque(maxlen=_WINDOW)
        self.engine: Engine | None = None
        self.failure: str | None = None
        self.draining = False
        self.on_loaded: Callable[[Engine], None] = lambda _engine: None
        """Called in the engine's thread, before the first step."""
        self.on_end: Callable[[Running, End], None] = lambda _running, _end: None
        """Called on the loop, for every request that ended or was given up."""

    # -- its life

    def start(self) -> asyncio.Future[None]:
        """Begin to load; the future is done when the engine is ready, or carries what went wrong."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._live, args=(ready,), name="wager-engine", daemon=True)
        self._thread.start()
        return ready

    def close(self) -> None:
        """End what still runs and let the thread go. Waits for a step to end, but not for a model to load."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None and self.engine is not None:
            self._thread.join()

    @property
    def is_ready(self) -> bool:
        return self.engine is not None and self.failure is None and not self.draining

    @property
    def num_open(self) -> int:
        """Requests that run or wait."""
        return len(self._open)

    def ready_engine(self) -> Engine:
        """The engine, for reading what does not change. Raises NotReady."""
        if self.failure is not None:
            raise NotReady(f"the engine has failed: {self.failure}")
        if self.engine is None:
            raise NotReady("the model is being loaded")
        return self.engine

    # -- requests, from the loop

    async def submit(self, asked: Sequence[Asked], inbox: Inbox) -> list[Running]:
        """Hand over the choices of one request, all or none.

        Raises Busy, NotReady, and RequestError or CapacityError where the engine refuses.
        """
        self._admit(len(asked))
        batch = [Running(self._next_id + i, i, inbox, time.monotonic()) for i in range(len(asked))]
        self._next_id += len(asked)
        self._open.update({one.request_id: one for one in batch})
        try:
            await self.call(lambda: self._add(batch, asked))
        except WagerError:
            self._forget(batch)  # refused, so nothing has begun
            raise
        except BaseException:
            self.abort(batch)
            raise
        return batch

    def abort(self, batch: Sequence[Running]) -> None:
        """End those that have not ended: their pages are free before the next step, and nobody is told."""
        for running in self._forget(batch):
            self.on_end(running, End("abort"))

    def abort_all(self) -> None:
        """End everything; readers get a terminal event."""
        self._send(_Command(self._end_all))

    def _forget(self, batch: Sequence[Running]) -> list[Running]:
        """Take those that are open out of the engine's hands and ours; returns them."""
        left = [one for one in batch if self._open.pop(one.request_id, None) is not None]
        if left:
            self._send(_Command(lambda: self._drop(left)))
        return left

    async def call(self, function: Callable[[], T]) -> T:
        """Run something in the engine's thread, between two steps."""
        command = _Command(function)
        if not self._send(command):
            self.ready_engine()
            raise NotReady("the server is being stopped")
        return await command.future

    def _admit(self, num: int) -> None:
        engine = self.ready_engine()
        if self.draining:
            raise NotReady("the server is being stopped")
        if self.num_open + num > engine.scheduler.config.max_rows + self._max_queue:
            raise Busy(self._retry_after_s())

    def _retry_after_s(self) -> int:
        """A guess at when a place will be free, from how long recent requests took."""
        mean_s = sum(self._recent_s) / len(self._recent_s) if self._recent_s else 0.0
        return min(60, 1 + round(mean_s / 4))

    def _send(self, command: _Command[Any]) -> bool:
        with self._wake:
            if self._gone:
                return False
            self._commands.append(command)
            self._wake.notify()
        return True

    def _receive(self, batch: list[tuple[Running, Delivery]]) -> None:
        """One step's deliveries have come."""
        for running, delivery in batch:
            if running.request_id not in self._open:
                continue  # its reader has gone
            if delivery.end is not None:
                del self._open[running.request_id]
                self._recent_s.append(time.monotonic() - running.arrived_s)
                self.on_end(running, delivery.end)
            running.inbox.put(running.index, delivery)

    # -- in the engine's thread

    def _live(self, ready: asyncio.Future[None]) -> None:
        try:
            engine = self._load()
            self.on_loaded(engine)
            self.engine = engine
            self._post(_settle, ready, None, None)
            self._serve(engine)
            self._end_all()
        except Exception as error:
            self.failure = one_line(error) or type(error).__name__
            if self.engine is None:
                self._post(_settle, ready, None, error)
            else:
                log.exception("the engine's thread has failed")
        finally:
            self._leave()

    def _serve(self, engine: Engine) -> None:
        while self._wait_for_work(engine):
            while self._commands:
                self._commands.popleft().run()
            if engine.has_work:
                self._step(engine)

    def _wait_for_work(self, engine: Engine) -> bool:
        """Sleep until there is something to do; what can wait is done before, a little at a time."""
        is_idle = False
        while True:
            with self._wake:
                while is_idle and not (self._commands or engine.has_work or self._stopping):
                    self._wake.wait()
                if self._commands or engine.has_work or self._stopping:
                    return not self._stopping
            is_idle = not engine.use_spare_time()

    def _step(self, engine: Engine) -> None:
        began = time.perf_counter()
        events = engine.step()
        if events:
            self._hand_out(events, (time.perf_counter() - began) * 1e3)
        if not engine.has_work:
            _check_pages(engine)
            garbage.use_idle_moment()

    def _hand_out(self, events: list[Event], step_ms: float) -> None:
        now = time.monotonic()
        batch = []
        for event in events:
            running = self._running.get(event.request_id)  # type: ignore[call-overload]
            if running is not None:
                batch.append((running, running.take_in(event, step_ms, now)))
                if event.finish is not None:
                    del self._running[running.request_id]
        if batch:
            self._post(self._receive, batch)

    def _post(self, function: Callable[..., None], *args: object) -> None:
        """Call something on the loop."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            log.debug("the loop has closed; nobody listens")

    def _add(self, batch: Sequence[Running], asked: Sequence[Asked]) -> None:
        assert self.engine is not None
        for running, one in zip(batch, asked, strict=True):
            running.sequence = self.engine.add(running.request_id, one.prompt_ids, one.params, one.client)
            self._running[running.request_id] = running

    def _drop(self, batch: Sequence[Running]) -> None:
        assert self.engine is not None
        for running in batch:
            if self._running.pop(running.request_id, None) is not None:
                self.engine.abort(running.request_id)

    def _end_all(self) -> None:
        assert self.engine is not None
        for request_id in list(self._running):
            self.engine.abort(request_id)
        # Nothing runs any more: this step only fetches the last words.
        self._hand_out(self.engine.step(), 0.0)

    def _leave(self) -> None:
        """The thread is going: whoever waits for it must hear so."""
        with self._wake:
            self._gone = True
            left, self._commands = list(self._commands), deque()
        reason = self.failure or "the server is being stopped"
        for command in left:
            command.fail(NotReady(reason))
        end = End("error", f"the engine has failed: {reason}")
        batch = [(running, Delivery(end=end)) for running in self._running.values()]
        self._running.clear()
        if batch:
            self._post(self._receive, batch)


def _settle(future: asyncio.Future[Any], value: object, error: Exception | None) -> None:
    if future.done():
        return  # its waiter was cancelled
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def _check_pages(engine: Engine) -> None:
    """Idle: a good moment to see whether the page accounts are sound."""
    try:
        engine.check()
    except WagerError as error:
        log.error("the page accounts contradict themselves: %s", error)
