"""Device time of a call from torch's profiler: by kernel, and how long the device was busy at all.

A profiler makes later launches slower, so everything else must be timed before. Used by passes.py and
steps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

ATTENTION_WORDS = ("attend", "attention", "merge", "flash", "fmha")
"""Parts of the names of attention kernels, ours and torch's."""


class Profile(NamedTuple):
    """Device time of one call by kernel, and the time in which any kernel ran."""

    kernels_ms: dict[str, float]
    busy_ms: float

    @property
    def attention_ms(self) -> float:
        return sum(ms for name, ms in self.kernels_ms.items() if is_attention(name))

    def largest(self, count: int = 12) -> dict[str, float]:
        return dict(sorted(self.kernels_ms.items(), key=lambda one: -one[1])[:count])


def is_attention(kernel: str) -> bool:
    return any(word in kernel.lower() for word in ATTENTION_WORDS)


def covered_length(spans: Iterable[tuple[float, float]]) -> float:
    """Total length covered by at least one of the spans."""
    total, reached = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


def profile_call(call: Callable[[], object], times: int = 1) -> Profile:
    """Profile a call; the result is empty without a CUDA device."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities = [ProfilerActivity.CUDA]
    with profile(activities=activities) as watched:
        for _ in range(times):
            call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    kernels: dict[str, float] = {}
    spans = []
    for event in watched.events() or ():
        if event.device_type.name != "CUDA":
            continue
        start, stop = event.time_range.start, event.time_range.end
        kernels[event.name] = kernels.get(event.name, 0.0) + (stop - start) * 1e-3 / times
        spans.append((start, stop))
    return Profile(kernels, covered_length(spans) * 1e-3 / times)
