"""Passes captured as CUDA graphs by their size, replayed in one launch.

A pass is a call without arguments over tensors of fixed place. One that was not captured runs launch by
launch, with the same kernels and so the same result, and its size is remembered: whoever owns an idle moment
asks for it to be captured then, so that nobody waits in mid-traffic. All graphs of one object share one pool
of memory, since only one of them runs at a time. Without a CUDA device nothing is captured.

Knows no networks. Used by `target/graphs.py` and `draft/block_device.py`.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

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


class Captured:
    """Graphs by size."""

    def __init__(self, device: torch.device | str, *, enabled: bool = True) -> None:
        self.device = torch.device(device)
        self.enabled = enabled and self.device.type == "cuda"
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
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
        graph = self._graphs.get(size)
        if graph is not None:
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
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads of a server may use the device meanwhile.
            with (
                _uncollected(),
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                call()
        except RuntimeError as error:
            log.warning("a pass of size %s could not be captured: %s", size, error)
            self.enabled = False
            return
        self._graphs[size] = graph
