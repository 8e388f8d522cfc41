"""The requests of all callers of one model, on one engine in its own thread.

A call adds its requests to those that run already, and receives their events, whichever thread it comes
from. What happens to a caller (an exception, an interrupt, a generator that is closed or forgotten) ends its
own requests and nothing else, because no caller runs a step itself.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

from wager.engine.engine import Engine, Event
from wager.engine.thread import EngineStopped, EngineThread
from wager.errors import RequestError
from wager.llm.prompts import NewRequest

T = TypeVar("T")
_CLOSED = "the model is closed"


class Call:
    """The requests of one call, and where their events go."""

    def __init__(
        self,
        requests: dict[int, NewRequest],
        put: Callable[[Event | BaseException], None],
        *,
        only_last: bool,
    ) -> None:
        self.requests = requests
        """By their ids in the engine."""
        self.only_last = only_last
        """Whether only the last event of each request is wanted."""
        self.open_ids = set(requests)
        """Requests of which the caller has not received the last event. Only the caller uses it."""
        self.put = put
        """Called in the engine's thread, with an error where the engine has stopped."""

    def receive(self, item: Event | BaseException) -> tuple[NewRequest, Event]:
        """The request that an event belongs to, and the event. Raises the error if it is one."""
        if isinstance(item, BaseException):
            self.open_ids.clear()
            raise item
        assert isinstance(item.request_id, int)
        if item.finish is not None:
            self.open_ids.discard(item.request_id)
        return self.requests[item.request_id], item


class Calls:
    """All calls of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._thread = EngineThread(self._on_events, self._on_stop, on_interrupt=self._on_interrupt)
        self._thread.start(lambda: engine)
        self._ids = itertools.count(1)
        self._calls: dict[int, Call] = {}
        """By request, while it runs. Only the engine's thread uses it."""

    @property
    def engine(self) -> Engine:
        """The engine, for reading, and for use while nothing runs. Raises EngineStopped after the end."""
        if self._engine is None:
            raise EngineStopped(_CLOSED)
        return self._engine

    # -- called by callers

    def new(
        self,
        requests: Sequence[NewRequest],
        put: Callable[[Event | BaseException], None],
        *,
        only_last: bool = False,
    ) -> Call:
        return Call({next(self._ids): request for request in requests}, put, only_last=only_last)

    def begin(self, call: Call) -> Future[None]:
        """Adds the requests of a call. The future has the error if the engine refuses one of them."""
        return self._submit(lambda: self._add(call))

    def end(self, call: Call) -> Future[None] | None:
        """Ends the requests of a call that still run; None if there are none."""
        if not call.open_ids or self._engine is None or self._thread.is_foreign:
            return None
        return self._thread.submit(lambda: self._drop(call))

    def events(
        self, requests: Sequence[NewRequest], *, only_last: bool = False
    ) -> Generator[tuple[NewRequest, Event], None, None]:
        """Runs requests and yields their events. Closing the generator ends those that still run."""
        inbox: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        call = self.new(requests, inbox.put, only_last=only_last)
        try:
            self.begin(call).result()
            while call.open_ids:
                yield call.receive(inbox.get())
        finally:
            ended = self.end(call)
            # The garbage collector may close a forgotten generator wherever it runs.
            if ended is not None and not self._thread.has_caller:
                with suppress(EngineStopped):
                    ended.result()

    def ask(self, function: Callable[[Engine], T]) -> T:
        """Has a function called with the engine between two steps, and waits for its result."""
        return self._submit(lambda: function(self.engine)).result()

    def ask_later(self, function: Callable[[Engine], T]) -> Future[T]:
        return self._submit(lambda: function(self.engine))

    @contextmanager
    def paused(self) -> Generator[Engine, None, None]:
        """Gives the caller the engine. Raises RequestError if requests are running."""
        engine = self.engine
        with self._thread.paused():
            if engine.has_work:
                raise RequestError("other requests are running; this needs the engine alone")
            yield engine

    def stop(self) -> None:
        """Ends all requests, with an error for their callers, and lets go of the engine."""
        self._thread.stop()
        self._engine = self._thread.engine = None

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        if self._engine is None:
            raise EngineStopped(_CLOSED)
        if self._thread.has_caller:
            raise RequestError("this thread uses the engine for something else at the moment")
        return self._thread.submit(function)

    # -- called in the engine's thread

    def _add(self, call: Call) -> None:
        engine = self.engine
        try:
            for request_id, request in call.requests.items():
                engine.add(request_id, request.prompt.token_ids, request.params)
                self._calls[request_id] = call
        except BaseException:
            self._drop(call)
            raise

    def _drop(self, call: Call) -> None:
        engine = self.engine
        for request_id in call.requests:
            if self._calls.pop(request_id, None) is not None:
                engine.abort(request_id)
        if not engine.scheduler.has_work:
            self._on_events(engine.step())  # takes the last events of the aborted requests

    def _on_events(self, events: list[Event], _step_ms: float = 0.0) -> None:
        for event in events:
            call = self._calls.get(event.request_id)  # type: ignore[call-overload]
            if call is None:
                continue  # its caller has left
            if event.finish is not None:
                del self._calls[event.request_id]  # type: ignore[arg-type]
            elif call.only_last:
                continue
            call.put(event)

    def _on_interrupt(self, error: BaseException) -> None:
        calls = set(self._calls.values())
        for call in calls:
            self._drop(call)
        self._fail(calls, error)

    def _on_stop(self, failure: str | None) -> None:
        error = EngineStopped(_CLOSED if failure is None else f"the engine failed: {failure}")
        self._fail(set(self._calls.values()), error)
        self._calls.clear()

    def _fail(self, calls: set[Call], error: BaseException) -> None:
        for call in calls:
            call.put(error)
