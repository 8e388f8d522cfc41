"""How long a CUDA device was busy for a stage, by events on its stream, read a step later.

Whoever launches work says `begin` before it and `end` behind it; nothing waits for either. `turn` closes a
step and gives the times of the one before, whose work is done by then: a clock that asked sooner would make
the host wait, and measure that. Used by `wager bench --profile`; an engine has none unless somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, cast

import torch

from wager.nn.kernels.capture import Captured


class Event(Protocol):
    """A mark on the device's stream; `torch.cuda.Event` is one."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Event) -> float: ...


class _Span(NamedTuple):
    """Work of a stage, from one mark to the other."""

    stage: str
    begin: Event
    end: Event


def cuda_event() -> Event:
    """A mark of a CUDA device's stream."""
    return cast(Event, torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


class DeviceClock:
    """Spans of work by step."""

    def __init__(self, make_event: Callable[[], Event] = cuda_event) -> None:
        self._make_event = make_event
        self._free: list[Event] = []
        self._open: dict[str, Event] = {}
        self._now: list[_Span] = []
        self._before: list[_Span] = []

    def begin(self, stage: str) -> None:
        """Work of this stage is launched from here on."""
        self._open[stage] = self._mark()

    def end(self, stage: str) -> None:
        """Up to here. Precondition: `begin` was called for it."""
        self._now.append(_Span(stage, self._open.pop(stage), self._mark()))

    def watch(self, passes: Captured, stage: str) -> None:
        """Take every pass that goes through `passes` for work of this stage."""
        run = passes.run

        def timed(size: Hashable, call: Callable[[], object]) -> None:
            self.begin(stage)
            run(size, call)
            self.end(stage)

        passes.run = timed  # type: ignore[method-assign]

    def turn(self) -> dict[str, float] | None:
        """A step is over: milliseconds by stage of the one before it; None where they are not known yet."""
        spans, self._before, self._now = self._before, self._now, []
        if not all(span.end.query() for span in spans):
            return None
        found: dict[str, float] = {}
        for stage, begin, end in spans:
            found[stage] = found.get(stage, 0.0) + begin.elapsed_time(end)
            self._free += (begin, end)
        return found

    def reset(self) -> None:
        """Forget what is under way: the next step is the first."""
        self._open, self._now, self._before = {}, [], []

    def _mark(self) -> Event:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event
