"""Runs one engine in a thread of its own, for callers in other threads.

Only this thread uses the engine while requests run. Callers send it functions, which it calls between two
steps, and it hands over the events of every step. It sleeps while there is nothing to do. It knows neither
callers' queues nor event loops: wager.llm and the server's bridge build on it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from wager.engine.engine import Engine, Event
from wager.errors import WagerError, one_line

log = logging.getLogger("wager.engine")

T = TypeVar("T")
_FORKED = (
    "the model was loaded in another process: load it in this one, or start processes with the method spawn"
)


class EngineStopped(WagerError):
    """The engine's thread has ended, or it belongs to another process."""


class EngineThread:
    """The thread of one engine."""

    def __init__(
        self,
        on_events: Callable[[list[Event], float], None],
        on_stop: Callable[[str | None], None],
        *,
        on_idle: Callable[[Engine], None] = lambda _engine: None,
        on_interrupt: Callable[[BaseException], None] | None = None,
        uses_spare_time: bool = False,
    ) -> None:
        """All functions are called in the engine's thread: `on_events` with the events and the milliseconds
        of a step, `on_idle` when the last request has ended, and `on_stop` at the end of the thread, with the
        error if it has failed.

        `on_interrupt` ends all requests after an interrupt that was raised in this thread, as libraries for
        time limits do; without it the thread ends. `uses_spare_time`: while nothing runs, the engine does
        work that can wait.
        """
        self._on_events, self._on_stop, self._on_idle = on_events, on_stop, on_idle
        self._on_interrupt = on_interrupt
        self._uses_spare_time = uses_spare_time
        # A SimpleQueue and an RLock may be used by the garbage collector inside a use of themselves.
        self._commands: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._borrower: threading.Thread | None = None
        self._process = os.getpid()
        self._stopping = False
        self._has_work = False
        """Whether the engine has work, as known before anybody heard of the latest step or function.

        So the thread does not look at an engine that a caller uses because everything has been answered.
        """
        self._has_ended = False
        self.engine: Engine | None = None
        """None while it is being loaded."""
        self.failure: str | None = None
        """The error that ended the thread."""

    # -- called by other threads

    def start(self, load: Callable[[], Engine]) -> Future[Engine]:
        """Starts the thread, which first loads the engine. The future has the engine, or the error."""
        ready: Future[Engine] = Future()
        ready.set_running_or_notify_cancel()  # from here on nobody can cancel it
        self._thread = threading.Thread(
            target=self._run, args=(load, ready), name="wager-engine", daemon=True
        )
        self._thread.start()
        return ready

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Has a function called between two steps. Without a thread the future has EngineStopped."""
        future: Future[T] = Future()
        if self.is_foreign:
            future.set_exception(EngineStopped(_FORKED))
            return future
        with self._lock:
            if not self._has_ended:
                self._commands.put((future, function))
                if self.engine is not None:
                    self.engine.interrupt()
                return future
        future.set_exception(EngineStopped(self._end_reason()))
        return future

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps the thread from the engine while the caller uses it. Raises EngineStopped."""
        reached: queue.SimpleQueue[None] = queue.SimpleQueue()
        go_on = threading.Event()

        def wait() -> None:
            reached.put(None)
            go_on.wait()

        waiting = self.submit(wait)
        waiting.add_done_callback(lambda _future: reached.put(None))
        try:
            reached.get()
            if waiting.done():
                waiting.result()
            self._borrower = threading.current_thread()
            yield
        finally:
            self._borrower = None
            go_on.set()
            waiting.exception()  # from here on the thread has looked at the engine for the last time

    def stop(self, *, wait: bool = True) -> None:
        """Ends the thread after the current step. Does nothing in another process than the engine's."""
        if self.is_foreign:
            return
        self._stopping = True
        self.submit(lambda: None)
        if wait and self._thread is not None and not self.has_caller:
            self._thread.join()

    @property
    def has_caller(self) -> bool:
        """Whether the caller is this thread or keeps it paused, so that it must not wait for this thread."""
        return threading.current_thread() in (self._thread, self._borrower)

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one with the thread."""
        return os.getpid() != self._process

    def _end_reason(self) -> str:
        return "the engine has been stopped" if self.failure is None else f"the engine failed: {self.failure}"

    # -- called in the thread

    def _run(self, load: Callable[[], Engine], ready: Future[Engine]) -> None:
        # NOTE: torch takes over its number of threads in every new thread at the first question only.
        torch.get_num_threads()
        try:
            self.engine = load()
            ready.set_result(self.engine)
            self._serve(self.engine)
        except BaseException as error:  # nobody may wait for a thread that is gone
            self.failure = one_line(error) or type(error).__name__
            if ready.done():
                log.exception("the engine's thread has failed")
            else:
                ready.set_exception(error)
        finally:
            self._end()

    def _serve(self, engine: Engine) -> None:
        while not self._stopping:
            self._run_commands(engine, wait=not self._has_work and not self._used_spare_time(engine))
            if self._has_work and not self._stopping:
                self._step(engine)

    def _run_commands(self, engine: Engine, *, wait: bool) -> None:
        """Calls all functions that were sent; waits for the first one if there is nothing else to do."""
        engine.resume()  # a function that comes from here on interrupts the step again
        try:
            future, function = self._commands.get(block=wait)
            while True:
                self._answer(engine, future, function)
                future, function = self._commands.get_nowait()
        except queue.Empty:
            return

    def _used_spare_time(self, engine: Engine) -> bool:
        """Does a little of the work that can wait; returns whether there is more of it."""
        return self._uses_spare_time and self._commands.empty() and engine.use_spare_time()

    def _step(self, engine: Engine) -> None:
        start = time.perf_counter()
        try:
            events = engine.step()
        except BaseException as error:
            if isinstance(error, Exception) or self._on_interrupt is None:
                raise
            self._on_interrupt(error)
            events = []
        self._has_work = engine.has_work
        if events:
            self._on_events(events, (time.perf_counter() - start) * 1e3)
        if not self._has_work:
            self._on_idle(engine)

    def _answer(self, engine: Engine, future: Future[Any], function: Callable[[], Any]) -> None:
        """Calls a function for the one who waits for it; a cancelled call is left out."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            value = function()
        except BaseException as error:  # whatever it is, it is the caller's
            self._has_work = engine.has_work
            future.set_exception(error)
        else:
            self._has_work = engine.has_work
            future.set_result(value)

    def _end(self) -> None:
        """Answers everybody who still waits for the thread."""
        with self._lock:
            self._has_ended = True
        reason = self._end_reason()
        try:
            self._on_stop(self.failure)
        finally:
            while not self._commands.empty():
                future, _ = self._commands.get()
                if future.set_running_or_notify_cancel():
                    future.set_exception(EngineStopped(reason))
