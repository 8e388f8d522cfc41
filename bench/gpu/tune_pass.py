"""Whole passes through the runtime's own stack of kernels, head included.

The stack has random weights in the shape of the benchmark. Its products are those that `wager/nn/kernels`
chooses, and alternatives for comparison. A pass is one row of a root and a tree after its context, on
scattered pages. Used by tune.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench.gpu.kernel_clock import EPS, Bench, Row
from bench.gpu.kernel_layer import PassInputs, copy_tables, make_heads, make_pass
from wager.kvcache.pool import KVPool, PoolSpec
from wager.nn.kernels.attention import attend
from wager.nn.kernels.device import DeviceInfo, read_device_info
from wager.nn.kernels.matmul import ProductConfig as C
from wager.nn.kernels.passes import (
    AnyKernelLinear,
    KernelLinear,
    KernelStack,
    PassViews,
    StackSpec,
    kernel_linear,
)
from wager.nn.kernels.product_plan import CUBLAS_ONLY, ProductPlan, ProductRole
from wager.nn.kernels.qkv import TokenSlots
from wager.nn.kernels.split_plan import LONG_KEYS, PassSize, plan_pass
from wager.nn.layers.decoder_layer import LayerWeights, Linear

PASS_SIZES = (
    *((tokens, 1024) for tokens in (1, 2, 4, 8, 16, 32, 64, 128)),
    *((tokens, 16_384) for tokens in (1, 16, 64)),
)
FULL_SIZES = ((1, 1024), (8, 1024), (16, 1024), (64, 1024))
"""Sizes for which all variants are tried, not only the chosen one and the library's."""
GATED_FEW, GATED_MANY = C(32, 128, 1, 4, 3), C(64, 64, 1, 4, 4)


class Network(NamedTuple):
    """A stack and its head."""

    bench: Bench
    stack: KernelStack
    head: KernelLinear
    device_info: DeviceInfo


def make_network(bench: Bench, num_layers: int) -> Network:
    shape, device_info = bench.shape, read_device_info(bench.device)
    turn = make_heads(bench).turn
    assert turn.norm is not None
    weights = [layer_weights(bench, turn.norm) for _ in range(num_layers)]
    frame = StackSpec(shape.heads, EPS, (None,) * num_layers, turn.table)
    stack = KernelStack(weights, bench.random(shape.hidden), frame, device_info)
    head = kernel_linear(
        Linear(bench.random(*shape.products["head"], scale=0.02)), ProductRole.WHOLE, device_info
    )
    assert isinstance(head, KernelLinear)
    return Network(bench, stack, head, device_info)


def layer_weights(bench: Bench, qk_norm: Tensor) -> LayerWeights:
    sizes = bench.shape.products
    qkv, out, gate_up, down = (
        Linear(bench.random(*sizes[name], scale=0.02)) for name in ("qkv", "out", "gate_up", "down")
    )
    first, second = (bench.random(bench.shape.hidden) for _ in range(2))
    return LayerWeights(first, qkv, qk_norm, out, second, gate_up, down)


def with_choices(network: Network, ways: dict[str, ProductPlan], is_early: bool = True) -> Network:
    """The same weights with other product configurations."""
    device_info = network.device_info._replace(pdl=network.device_info.pdl and is_early)

    def other(name: str, old: AnyKernelLinear) -> KernelLinear:
        assert isinstance(old, KernelLinear)
        return KernelLinear(Linear(old.weight, old.bias), ways.get(name, old._ways), device_info.launch)

    stack = copy.copy(network.stack)
    stack._launch = device_info.launch
    stack.layers = [
        layer._replace(
            qkv=other("qkv", layer.qkv),
            out=other("out", layer.out),
            gate_up=other("gate_up", layer.gate_up),
            down=other("down", layer.down),
        )
        for layer in network.stack.layers
    ]
    return network._replace(stack=stack, head=other("head", network.head), device_info=device_info)


def variants(network: Network, tokens: int, all_variants: bool) -> Iterator[tuple[str, Network]]:
    names = ("qkv", "out", "gate_up", "down", "head")
    yield "as chosen", network
    yield "library", with_choices(network, dict.fromkeys(names, CUBLAS_ONLY))
    if not all_variants:
        return
    yield "as chosen, in turn", with_choices(network, {}, is_early=False)
    for name in names:
        yield f"library {name}", with_choices(network, {name: CUBLAS_ONLY})
    gated = GATED_FEW if tokens <= 32 else GATED_MANY
    for prefetch in (0, 2, 4):
        ways = ProductPlan(((64, gated._replace(prefetch=prefetch)),))
        yield f"gated, {prefetch} ahead", with_choices(network, {"gate_up": ways})
    for prefetch in (2, 4):
        yield f"split, {prefetch} ahead", with_choices(network, split_choices(network, tokens, prefetch))


def split_choices(network: Network, tokens: int, prefetch: int) -> dict[str, ProductPlan]:
    """The split products of a layer with another number of prefetched tiles."""
    first = network.stack.layers[0]
    found = {}
    for name in ("qkv", "out", "down"):
        config = getattr(first, name)._ways.config(tokens)
        if config is not None:
            found[name] = ProductPlan(((tokens, config._replace(prefetch=prefetch)),))
    return found


class Run:
    """One pass of a network that can be called repeatedly."""

    def __init__(self, network: Network, inputs: PassInputs, pool: KVPool, context: int) -> None:
        bench, limits = network.bench, inputs.tables.limits
        self.network, self.pool, tokens = network, pool, limits.max_tokens
        size = PassSize(1, tokens, context >= LONG_KEYS)
        plan = plan_pass(bench.shape.heads, size, pool.spec, network.device_info, bench.device)
        tables = copy_tables(
            inputs, replace(limits, max_items=plan.tiling.max_items), plan.tiling, bench.device
        )
        self.views = PassViews(TokenSlots(tables.positions, tables.slots), tables.attention(), plan)
        self.x = bench.random(tokens, bench.shape.hidden)
        self.queries = bench.random(tokens, bench.shape.heads.num_heads, bench.shape.heads.head_dim)
        self.logits = bench.random(tokens, bench.shape.vocab)

    def call(self, network: Network | None = None) -> Tensor:
        one = network or self.network
        return one.head(one.stack.run(self.x, self.views, self.pool), self.logits)

    def attend(self) -> None:
        """The attention of the pass by itself."""
        launch = self.network.device_info.launch
        for store in self.pool.store:
            attend(self.queries, store, self.views.attention, self.views.plan, None, None, launch)


def make_run(network: Network, tokens: int, context: int) -> Run:
    bench = network.bench
    heads, page = bench.shape.heads, bench.shape.page_size
    lone = bench._replace(shape=bench.shape._replace(rotate_bytes=1))
    inputs = make_pass(lone, 1, tokens, context)
    num_pages = -(-(context + tokens) // page)
    spec = PoolSpec(
        len(network.stack.layers), num_pages, page, heads.num_kv_heads, heads.head_dim, bench.dtype,
        bench.device,
    )  # fmt: skip
    pool = KVPool(spec)
    pool.store.normal_()
    return Run(network, inputs, pool, context)


def pass_row(network: Network, tokens: int, context: int) -> Row:
    """Milliseconds of a pass in several variants, and microseconds of one layer's attention."""
    bench = network.bench
    run = make_run(network, tokens, context)
    all_variants = (tokens, context) in FULL_SIZES
    ms = {
        name: bench.clock.us(partial(run.call, one)) / 1e3
        for name, one in variants(network, tokens, all_variants)
    }
    attention_us = bench.clock.us(run.attend, len(network.stack.layers))
    parted = early_difference(run) if network.device_info.pdl else None
    per_layer = 2 * (context + tokens) * bench.shape.heads.num_kv_heads * bench.shape.heads.head_dim
    num_bytes = network_bytes(network) + per_layer * bench.dtype.itemsize * len(network.stack.layers)
    row = bench.row("pass", tokens, num_bytes, {}, context=context)
    del row["us"]
    return row | {"ms": ms, "attention_us": attention_us, "early_parts_by": parted}


def network_bytes(network: Network) -> int:
    layers = network.stack.layers
    matrices = [one for layer in layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    return sum(one.weight.nbytes for one in [*matrices, network.head])


def early_difference(run: Run) -> float:
    """Relative difference between the pass with and without early launches; anything but 0 is a race."""
    ends = [run.call(one).double() for one in (run.network, with_choices(run.network, {}, is_early=False))]
    return float((ends[0] - ends[1]).norm() / ends[1].norm())


def show_pass(row: Row) -> None:
    floor = row["floor_us"] / 1e3
    print(f"pass {row['tokens']} tok, context {row['context']}: floor {floor:.3f} ms, attention "
          f"{row['attention_us']:.2f} us a layer, early parts by {row['early_parts_by']}")  # fmt: skip
    for name, ms in sorted(row["ms"].items(), key=lambda pair: pair[1]):
        print(f"   {ms:7.3f} ms  {ms / floor:.3f}  {name}", flush=True)


def pass_once(bench: Bench, tokens: int, context: int) -> None:
    """Run every kernel of a pass once, to compile it."""
    network = make_network(bench, 1)
    run = make_run(network, tokens, context)
    for _, one in variants(network, tokens, True):
        run.call(one)
    run.attend()


def tune_passes(bench: Bench, sizes: tuple[tuple[int, int], ...]) -> Iterator[Row]:
    network = make_network(bench, bench.shape.num_layers)
    for tokens, context in sizes:
        yield pass_row(network, tokens, context)
        torch.cuda.empty_cache()
