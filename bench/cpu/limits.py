"""What this CPU could do at best: its arithmetic, its memory, and the least time of a float32 pass by both.

A native product over weights that stay in near memory shows the one, one over as many weights as the model
has the other, of which caches may keep a part from one to the next. A pass reads its weights and its context
once and multiplies every token with all of them, so it takes at least the longer of the two. Called by
passes.py.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import torch

from wager.nn.models.decoder import DecoderSpec
from wager.nn.native.head import NativeHead
from wager.nn.native.library import Library
from wager.nn.native.pack import Packer, Storage, Store

NEAR = (512, 256)
"""Outputs and inputs: half a megabyte,"""
ROWS = 240
"""and the rows that it is multiplied with."""
_FLOAT = 4


class Limits(NamedTuple):
    """Rates of the machine."""

    gflop_per_s: float
    gb_per_s: float

    def least_ms(self, spec: DecoderSpec, context: int, count: int) -> float:
        """A pass over `count` tokens behind a context."""
        weights, pairs = spec.num_weights, count * (context + (count + 1) / 2)
        keys = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * (context + count)
        flop = 2 * count * weights + 4 * spec.num_layers * spec.num_heads * spec.head_dim * pairs
        return max(_FLOAT * (weights + keys) / self.gb_per_s, flop / self.gflop_per_s) / 1e6


def measure_limits(library: Library, spec: DecoderSpec, rounds: int) -> Limits:
    whole = spec.num_weights // spec.hidden_size, spec.hidden_size
    near_s = _median_s(_product(library, *NEAR), torch.randn(ROWS, NEAR[1]), rounds)
    whole_s = _median_s(_product(library, *whole), torch.randn(1, whole[1]), rounds)
    return Limits(2 * ROWS * NEAR[0] * NEAR[1] / near_s / 1e9, _FLOAT * whole[0] * whole[1] / whole_s / 1e9)


def _product(library: Library, outputs: int, inputs: int) -> NativeHead:
    packer = Packer(library.lanes, Store(2 * _FLOAT * outputs * inputs), Storage(narrow=False))
    return NativeHead(library, packer, packer.matrix(torch.randn(outputs, inputs)), outputs)


def _median_s(product: NativeHead, rows: torch.Tensor, rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        product(rows)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
