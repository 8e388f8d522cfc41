"""Timing for the kernel benchmarks: CUDA graphs of many calls over rotating memory, and the memory floor.

Knows the shape of a decoder and the read rate of the memory. Used by kernels.py, kernel_layer.py, narrow.py
and the tuning scripts.
"""

# The compiler of kernels types their arguments.
# mypy: allow-incomplete-defs

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.layers.attention import HeadShape

Row = dict[str, Any]
EPS = 1e-6


class Shape(NamedTuple):
    """The sizes of a decoder, and how much memory is rotated so that caches do not help."""

    hidden: int = 4096
    heads: HeadShape = HeadShape(32, 8, 128)
    middle: int = 12_288
    vocab: int = 151_936
    num_layers: int = 36
    page_size: int = 64
    rotate_bytes: int = 256 << 20
    read_bytes: int = 2 << 30

    @property
    def qkv(self) -> int:
        return (self.heads.num_heads + 2 * self.heads.num_kv_heads) * self.heads.head_dim

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """[out, in] of the products of a layer, and of the head."""
        inner = self.heads.num_heads * self.heads.head_dim
        return {
            "qkv": (self.qkv, self.hidden),
            "out": (self.hidden, inner),
            "gate_up": (2 * self.middle, self.hidden),
            "down": (self.hidden, self.middle),
            "head": (self.vocab, self.hidden),
        }


TINY = Shape(64, HeadShape(4, 2, 16), 96, 300, 2, 16, 1, 1 << 12)


class Clock:
    """Times calls on one device."""

    def __init__(self, device: torch.device, target_ms: float = 8.0, rounds: int = 5) -> None:
        self.device, self.target_ms, self.rounds = device, target_ms, rounds

    def us(self, call: Callable[[], object], count: int = 1) -> float:
        """Microseconds of one of the `count` operations of a call, measured over replays of its graph."""
        began = time.perf_counter()
        call()
        if self.device.type != "cuda":
            return (time.perf_counter() - began) * 1e6 / count
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        replays = max(2, min(200, int(self.target_ms / max(1e-3, self._ms(graph, 2) / 2))))
        times = [self._ms(graph, replays) / replays for _ in range(self.rounds)]
        return statistics.median(times) * 1e3 / count

    def _ms(self, graph: torch.cuda.CUDAGraph, replays: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


class Bench(NamedTuple):
    """What every case is given."""

    shape: Shape
    clock: Clock
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    bytes_per_us: float
    batches: tuple[tuple[int, int], ...] = ((16, 64), (64, 64))
    """(rows, tokens) of passes over several rows."""
    dtype: torch.dtype = torch.bfloat16

    @property
    def few_tokens(self) -> tuple[int, ...]:
        """Fewer token counts, for cases that are slow to compile."""
        return tuple(count for count in self.tokens if count not in (8, 32))

    @property
    def device(self) -> torch.device:
        return self.clock.device

    def random(self, *size: int, scale: float = 1.0) -> Tensor:
        return torch.randn(size, device=self.device).mul_(scale).to(self.dtype)

    def rotated(self, *size: int, scale: float = 0.02) -> list[Tensor]:
        """As many random matrices as are larger than the cache together."""
        one = self.random(*size, scale=scale)
        copies = max(1, min(64, -(-self.shape.rotate_bytes // one.nbytes)))
        return [one, *(self.random(*size, scale=scale) for _ in range(copies - 1))]

    def many(self, call: Callable[[], object], count: int = 64) -> float:
        """Microseconds of a call, measured over a graph of `count` calls."""
        count = count if self.device.type == "cuda" else 1

        def run() -> None:
            for _ in range(count):
                call()

        return self.clock.us(run, count)

    def row(self, kernel: str, tokens: int, num_bytes: float, us: dict[str, float], **more: object) -> Row:
        floor = num_bytes / self.bytes_per_us
        return {"kernel": kernel, "tokens": tokens, **more, "floor_us": floor, "us": us}


@triton.jit
def _read(source, sums, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(source + at), axis=0))


def read_rate(shape: Shape, clock: Clock) -> float:
    """Bytes per microsecond that a kernel which only reads gets from memory."""
    block = 4096
    source = torch.ones(max(block, shape.read_bytes // 4), dtype=torch.int32, device=clock.device)
    programs = source.numel() // block
    sums = torch.empty(programs, dtype=torch.int32, device=clock.device)
    took = clock.us(lambda: _read[(programs,)](source, sums, BLOCK=block, num_warps=8))
    return source.nbytes / took
