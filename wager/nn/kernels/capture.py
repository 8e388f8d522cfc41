"""Passes captured as CUDA graphs by their size, replayed in one or two launches.

A pass is a call without arguments over tensors with fixed addresses. A pass that was not captured runs launch
by launch, with the same kernels and the same result, and its size is remembered. It is captured later, when
the engine is idle, so that no request waits for it. All graphs of one object share one memory pool, because
only one of them runs at a time. The device is idle while the host launches a long graph. So a pass may call
`cut` after its beginning: what follows becomes a second graph, which is launched while the first one runs.
Without a CUDA device nothing is captured.

This module knows no networks; `target/` and `draft/` use it.
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
"""Largest number of captured passes; a graph of a large network needs megabytes."""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disables garbage collection, because the finalisers of an old engine's graphs would break a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Recording:
    """The graphs of one pass while it is captured, in order."""

    def __init__(self, pool: Any) -> None:
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._pool = pool
        self._open = ExitStack()

    def next(self) -> None:
        """Ends the present graph and records the following launches in a new one."""
        self.end()
        graph = torch.cuda.CUDAGraph()
        # Other threads of a server may use the device at the same time.
        self._open.enter_context(torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"))
        self.graphs.append(graph)

    def end(self) -> None:
        self._open.close()


class GraphCache:
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
    def num_uncaptured(self) -> int:
        """Number of sizes that have run without a graph."""
        return len(self._wanted)

    def run(self, size: Hashable, call: Callable[[], object]) -> None:
        """Runs the pass `call`, by its graph if there is one."""
        graphs = self._graphs.get(size)
        if graphs is not None:
            for graph in graphs:
                graph.replay()
            return
        call()
        if self.enabled and len(self._graphs) + len(self._wanted) < MAX_GRAPHS:
            self._wanted[size] = call

    def capture_pending(self) -> int:
        """Captures the passes that ran without a graph, and returns their number. Call it when the engine is
        idle.
        """
        wanted, self._wanted = self._wanted, {}
        for size, call in wanted.items():
            self.capture(size, call)
        return len(wanted)

    def capture(self, size: Hashable, call: Callable[[], object]) -> None:
        """Captures a pass. The pass runs once before, to compile its kernels, so its tables must be valid.

        A pass that cannot be captured continues to run launch by launch.
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
        """Starts a new graph for the rest of the pass that calls it; has no effect outside a capture."""
        if self._recording is not None:
            self._recording.next()
