"""Passes captured as CUDA graphs by their size, replayed in a launch or two.

A pass is a call without arguments over tensors of fixed place. One that was not captured runs launch by
launch, with the same kernels and so the same result, and its size is remembered: whoever owns an idle moment
asks for it to be captured then, so that nobody waits in mid-traffic. All graphs of one object share one pool
of memory, since only one of them runs at a time. Launching a long graph takes the host a while in which the
device has nothing to do; so a pass may call `cut` behind its beginning, and what follows becomes a second
graph, launched while the first runs. Without a CUDA device nothing is captured.

Knows no networks. Used by `target/graphs.py` and `draft/block_device.py`.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

log = logging.getLogger(__name__)

MAX_GRAPHS = 160
"""Captured passes at most: a graph of a large network holds megabytes of launches."""


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected: what the graphs of an engine that is gone do in the end breaks a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Recording:
    """The graphs of one pass while it is captured, one after the other."""

    def __init__(self, pool: Any) -> None:
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._pool = pool
        self._open = ExitStack()

    def next(self) -> None:
        """What is launched from here on goes to a new graph."""
        self.end()
        graph = torch.cuda.CUDAGraph()
        # Other threads of a server may use the device meanwhile.
        self._open.enter_context(torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"))
        self.graphs.append(graph)

    def end(self) -> None:
        self._open.close()


class Captured:
    """Graphs by size."""

    def __init__(self, device: torch.device | str, *, enabled: bool = True) -> None:
        self.device = torch.device(device)
        self.enabled = enabled and self.device.type == "cuda"
        self._graphs: dict[Hashable, list[torch.cuda.CUDAGraph]] = {}
        self._recording: _Recording | None = None
        self._wanted: dict[Hashable, Callable[[], object]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.enabled else None

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, size: Hashable) -> bool:
        return size in self._graphs

    @property
    def num_wanted(self) -> int:
        """Sizes that have run without a graph."""
        return len(self._wanted)

    def run(self, size: Hashable, call: Callable[[], object]) -> None:
        """The pass `call`, by its graph where there is one."""
        graphs = self._graphs.get(size)
        if graphs is not None:
            for graph in graphs:
                graph.replay()
            return
        call()
        if self.enabled and len(self._graphs) + len(self._wanted) < MAX_GRAPHS:
            self._wanted[size] = call

    def capture_wanted(self) -> int:
        """Capture what ran without a graph so far; returns how many. Takes a moment: for idle times."""
        wanted, self._wanted = self._wanted, {}
        for size, call in wanted.items():
            self.capture(size, call)
        return len(wanted)

    def capture(self, size: Hashable, call: Callable[[], object]) -> None:
        """Capture a pass. It runs once before, so that its kernels are compiled and its tables must be sound.

        A pass that cannot be captured goes on launch by launch.
        """
        if not self.enabled or size in self._graphs:
            return
        call()
        torch.cuda.synchronize(self.device)
        recording = self._recording = _Recording(self._pool)
        try:
            with _uncollected():
                try:
                    recording.next()
                    call()
                finally:
                    recording.end()
        except RuntimeError as error:
            log.warning("a pass of size %s could not be captured: %s", size, error)
            self.enabled = False
            return
        finally:
            self._recording = None
        self._graphs[size] = recording.graphs

    def cut(self) -> None:
        """Called by a pass: what follows is a graph of its own. Nothing where it is not being captured."""
        if self._recording is not None:
            self._recording.next()
