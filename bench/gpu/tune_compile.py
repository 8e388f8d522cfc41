"""Compile one process's share of the kernels that the tuning needs into Triton's cache, by calling them once.

Small tensors are enough, because the compiled code depends on sizes only through their divisors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.kernel_clock import EPS, Bench, Clock, Shape
from bench.gpu.kernel_layer import PassInputs, make_heads, make_pass, with_cutting
from bench.gpu.tune_choices import FEW, MANY, MERGES, TILES, TILES_AHEAD, AttentionConfig
from bench.gpu.tune_pass import PASS_SIZES, pass_once
from wager.nn.kernels.attention import attend
from wager.nn.kernels.device import Launch, prefetch_of
from wager.nn.kernels.gate import gate
from wager.nn.kernels.matmul import gated_product, product, split_product
from wager.nn.kernels.norm import Norm, add_norm
from wager.nn.kernels.qkv import TokenSlots, write_qkv

Job = Callable[[], object]
PARTS = (1, 2, 3, 4, 6, 8, 12)


def compile_share(index: int, count: int, only: list[str]) -> int:
    """Run every `count`-th job; returns how many succeeded.

    Configurations that fail are reported by the tuning.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench = Bench(Shape(rotate_bytes=1), Clock(device), (1,), (1024,), 1.0)
    done = 0
    with torch.inference_mode():
        for job in list(jobs(bench, only))[index::count]:
            try:
                job()
                done += 1
            except Exception:
                continue
        if device.type == "cuda":
            torch.cuda.synchronize()
    return done


def jobs(bench: Bench, only: list[str]) -> Iterator[Job]:
    launches = (Launch(), Launch(True))
    if "passes" in only:
        yield from (partial(pass_once, bench, tokens, context) for tokens, context in PASS_SIZES)
    if "attention" in only or "layer" in only:
        yield from attention_jobs(bench, launches)
    if "products" in only or "layer" in only:
        yield from product_jobs(bench, launches)
    if "layer" in only:
        yield from small_jobs(bench, launches)


def attention_jobs(bench: Bench, launches: tuple[Launch, ...]) -> Iterator[Job]:
    for tile_rows, tiles in TILES.items():
        inputs = make_pass(bench, 1, max(1, tile_rows // 4), 1024)
        for config in (
            AttentionConfig(*tile, count, tile_rows, merge=merge)
            for tile in tiles
            for merge in MERGES
            for count in ((1, 2) if merge == "last" else (1,))
        ):
            for launch in launches:
                yield partial(attend_once, bench, inputs, config, launch)


def attend_once(bench: Bench, inputs: PassInputs, config: AttentionConfig, launch: Launch) -> Tensor:
    heads, cut = bench.shape.heads, with_cutting(inputs, bench, config.cutting)
    queries = bench.random(inputs.tables.limits.max_tokens, heads.num_heads, heads.head_dim)
    return attend(queries, cut.stores[0], cut.attention, config.plan(cut.plan), None, None, launch)


def product_jobs(bench: Bench, launches: tuple[Launch, ...]) -> Iterator[Job]:
    weight = bench.random(24_576, 4096)
    for tokens, table in ((1, FEW), (64, MANY)):
        x = bench.random(tokens, 4096)
        gated = {(config, True) for config in table["gate_up"]}
        others = {(config, False) for name in table if name != "gate_up" for config in table[name]}
        for config, is_gated in sorted(gated | others):
            for launch in launches:
                for prefetch in TILES_AHEAD if launch.pdl else (2,):
                    one = config._replace(prefetch=prefetch)
                    if is_gated:
                        yield partial(gated_product, x, weight, one, launch)
                    elif config.splits > 1:
                        yield partial(split_product, x, weight, one, launch)
                    else:
                        yield partial(product, x, weight, None, one, None, launch)


def small_jobs(bench: Bench, launches: tuple[Launch, ...]) -> Iterator[Job]:
    shape, turn = bench.shape, make_heads(bench).turn
    heads = shape.heads
    weight = bench.random(*shape.products["down"])
    norm = Norm(bench.random(shape.hidden), EPS)
    residual = bench.random(2, shape.hidden)
    store = bench.random(2, heads.num_kv_heads, 256, heads.head_dim)
    places = TokenSlots(*(torch.arange(2, device=bench.device) for _ in range(2)))
    aheads = [
        Launch(launch.pdl, prefetch_of(weight, 8 << 20, pieces)) for launch in launches for pieces in (1, 4)
    ]
    for launch in (*launches, *aheads):
        yield partial(gate, bench.random(2, 2 * shape.middle), None, launch)
        for parts in PARTS:
            kind = bench if parts == 1 else bench._replace(dtype=torch.float32)
            yield partial(add_norm, kind.random(parts, 2, shape.hidden), residual, norm, None, launch)
            yield partial(write_qkv, kind.random(parts, 2, shape.qkv), turn, places, store, None, launch)
