"""Measures how long a CUDA device is busy for each stage, by events on its stream that are read one step
later.

Work is launched between `begin` and `end`, and neither waits. `turn` ends a step and returns the times of the
step before, whose work is finished by then: reading earlier would make the host wait and change what is
measured. Used by `wager bench --stages`; other engines have no such clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, cast

import torch

from wager.nn.kernels.capture import GraphCache


class Event(Protocol):
    """An event on the device's stream, such as `torch.cuda.Event`."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Event) -> float: ...


class _Span(NamedTuple):
    """Work of a stage between two events."""

    stage: str
    begin: Event
    end: Event


def cuda_event() -> Event:
    """Returns a new event for the stream of a CUDA device."""
    return cast(Event, torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


class DeviceClock:
    """Records spans of work and sums them by step and stage."""

    def __init__(self, make_event: Callable[[], Event] = cuda_event) -> None:
        self._make_event = make_event
        self._free: list[Event] = []
        self._open: dict[str, Event] = {}
        self._now: list[_Span] = []
        self._before: list[_Span] = []

    def begin(self, stage: str) -> None:
        """Marks the start of work of this stage."""
        self._open[stage] = self._mark()

    def end(self, stage: str) -> None:
        """Marks the end of work of this stage. Precondition: `begin` was called for it."""
        self._now.append(_Span(stage, self._open.pop(stage), self._mark()))

    def watch(self, passes: GraphCache, stage: str) -> None:
        """Counts every pass that `passes` runs as work of this stage."""
        run = passes.run

        def timed(size: Hashable, call: Callable[[], object]) -> None:
            self.begin(stage)
            run(size, call)
            self.end(stage)

        passes.run = timed  # type: ignore[method-assign]

    def turn(self) -> dict[str, float] | None:
        """Ends a step; returns milliseconds by stage of the step before, or None if not known yet."""
        spans, self._before, self._now = self._before, self._now, []
        if not all(span.end.query() for span in spans):
            return None
        found: dict[str, float] = {}
        for stage, begin, end in spans:
            found[stage] = found.get(stage, 0.0) + begin.elapsed_time(end)
            self._free += (begin, end)
        return found

    def reset(self) -> None:
        """Drops all spans, so that the next step is the first one."""
        self._open, self._now, self._before = {}, [], []

    def _mark(self) -> Event:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event
