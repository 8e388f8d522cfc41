"""Whole passes through the runtime's own stack of kernels, head included: the figure that counts.

A stack of random weights in the shape of the benchmark; its products are the ones that `wager/nn/kernels`
chooses, and others beside them. Passes are one row of a root and a tree behind its context, on scattered
pages. Used by tune.py.
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
from bench.gpu.kernel_layer import Pass, make_heads, make_pass, relaid
from wager.kvcache.pool import KVPool, PoolSpec
from wager.nn.kernels.attention import attend
from wager.nn.kernels.cuts import LONG_KEYS, PassSize, plan_pass
from wager.nn.kernels.device import Machine, machine_of
from wager.nn.kernels.matmul import ProductConfig as C
from wager.nn.kernels.passes import AnyMatrix, Frame, KernelStack, Matrix, PassViews, matrix
from wager.nn.kernels.qkv import Places
from wager.nn.kernels.ways import LIBRARY, Role, Ways
from wager.nn.layers.decoder_layer import LayerWeights, Linear

PASS_SIZES = (
    *((tokens, 1024) for tokens in (1, 2, 4, 8, 16, 32, 64, 128)),
    *((tokens, 16_384) for tokens in (1, 16, 64)),
)
FULL_SIZES = ((1, 1024), (8, 1024), (16, 1024), (64, 1024))
"""Those for which all ways are tried, not only the chosen one and the library's."""
GATED_FEW, GATED_MANY = C(32, 128, 1, 4, 3), C(64, 64, 1, 4, 4)


class Network(NamedTuple):
    """A stack and its head, with what they run over."""

    bench: Bench
    stack: KernelStack
    head: Matrix
    machine: Machine


def make_network(bench: Bench, num_layers: int) -> Network:
    shape, machine = bench.shape, machine_of(bench.device)
    turn = make_heads(bench).turn
    assert turn.norm is not None
    weights = [layer_weights(bench, turn.norm) for _ in range(num_layers)]
    frame = Frame(shape.heads, EPS, (None,) * num_layers, turn.table)
    stack = KernelStack(weights, bench.random(shape.hidden), frame, machine)
    head = matrix(Linear(bench.random(*shape.products["head"], scale=0.02)), Role.WHOLE, machine)
    assert isinstance(head, Matrix)
    return Network(bench, stack, head, machine)


def layer_weights(bench: Bench, qk_norm: Tensor) -> LayerWeights:
    sizes = bench.shape.products
    qkv, out, gate_up, down = (
        Linear(bench.random(*sizes[name], scale=0.02)) for name in ("qkv", "out", "gate_up", "down")
    )
    first, second = (bench.random(bench.shape.hidden) for _ in range(2))
    return LayerWeights(first, qkv, qk_norm, out, second, gate_up, down)


def with_ways(network: Network, ways: dict[str, Ways], is_early: bool = True) -> Network:
    """The same weights, some of their products taken in other ways."""
    machine = network.machine._replace(early=network.machine.early and is_early)

    def other(name: str, old: AnyMatrix) -> Matrix:
        assert isinstance(old, Matrix)
        return Matrix(Linear(old.weight, old.bias), ways.get(name, old._ways), machine.launch)

    stack = copy.copy(network.stack)
    stack._launch = machine.launch
    stack.layers = [
        layer._replace(
            qkv=other("qkv", layer.qkv),
            out=other("out", layer.out),
            gate_up=other("gate_up", layer.gate_up),
            down=other("down", layer.down),
        )
        for layer in network.stack.layers
    ]
    return network._replace(stack=stack, head=other("head", network.head), machine=machine)


def variants(network: Network, tokens: int, is_full: bool) -> Iterator[tuple[str, Network]]:
    names = ("qkv", "out", "gate_up", "down", "head")
    yield "as chosen", network
    yield "library", with_ways(network, dict.fromkeys(names, LIBRARY))
    if not is_full:
        return
    yield "as chosen, in turn", with_ways(network, {}, is_early=False)
    for name in names:
        yield f"library {name}", with_ways(network, {name: LIBRARY})
    gated = GATED_FEW if tokens <= 32 else GATED_MANY
    for ahead in (0, 2, 4):
        ways = Ways(((64, gated._replace(ahead=ahead)),))
        yield f"gated, {ahead} ahead", with_ways(network, {"gate_up": ways})
    for ahead in (2, 4):
        yield f"split, {ahead} ahead", with_ways(network, further(network, tokens, ahead))


def further(network: Network, tokens: int, ahead: int) -> dict[str, Ways]:
    """The split products of a layer, asking for so many tiles before they wait."""
    first = network.stack.layers[0]
    found = {}
    for name in ("qkv", "out", "down"):
        config = getattr(first, name)._ways.config(tokens)
        if config is not None:
            found[name] = Ways(((tokens, config._replace(ahead=ahead)),))
    return found


class Run:
    """One pass of a network, ready to be called again and again."""

    def __init__(self, network: Network, world: Pass, pool: KVPool, context: int) -> None:
        bench, limits = network.bench, world.tables.limits
        self.network, self.pool, tokens = network, pool, limits.max_tokens
        size = PassSize(1, tokens, context >= LONG_KEYS)
        plan = plan_pass(bench.shape.heads, size, pool.spec, network.machine, bench.device)
        tables = relaid(world, replace(limits, max_items=plan.tiling.max_items), plan.tiling, bench.device)
        self.views = PassViews(Places(tables.positions, tables.slots), tables.attention(), plan)
        self.x = bench.random(tokens, bench.shape.hidden)
        self.queries = bench.random(tokens, bench.shape.heads.num_heads, bench.shape.heads.head_dim)
        self.logits = bench.random(tokens, bench.shape.vocab)

    def call(self, network: Network | None = None) -> Tensor:
        one = network or self.network
        return one.head(one.stack.run(self.x, self.views, self.pool), self.logits)

    def attend(self) -> None:
        """The attention of the pass alone."""
        launch = self.network.machine.launch
        for store in self.pool.store:
            attend(self.queries, store, self.views.attention, self.views.plan, None, None, launch)


def make_run(network: Network, tokens: int, context: int) -> Run:
    bench = network.bench
    heads, page = bench.shape.heads, bench.shape.page_size
    lone = bench._replace(shape=bench.shape._replace(rotate_bytes=1))
    world = make_pass(lone, 1, tokens, context)
    num_pages = -(-(context + tokens) // page)
    spec = PoolSpec(
        len(network.stack.layers), num_pages, page, heads.num_kv_heads, heads.head_dim, bench.dtype,
        bench.device,
    )  # fmt: skip
    pool = KVPool(spec)
    pool.store.normal_()
    return Run(network, world, pool, context)


def pass_row(network: Network, tokens: int, context: int) -> Row:
    """Milliseconds of a pass in several ways, and microseconds of a layer's attention."""
    bench = network.bench
    run = make_run(network, tokens, context)
    is_full = (tokens, context) in FULL_SIZES
    ms = {
        name: bench.clock.us(partial(run.call, one)) / 1e3 for name, one in variants(network, tokens, is_full)
    }
    attention_us = bench.clock.us(run.attend, len(network.stack.layers))
    parted = parting(run) if network.machine.early else None
    per_layer = 2 * (context + tokens) * bench.shape.heads.num_kv_heads * bench.shape.heads.head_dim
    num_bytes = network_bytes(network) + per_layer * bench.dtype.itemsize * len(network.stack.layers)
    row = bench.row("pass", tokens, num_bytes, {}, context=context)
    del row["us"]
    return row | {"ms": ms, "attention_us": attention_us, "early_parts_by": parted}


def network_bytes(network: Network) -> int:
    layers = network.stack.layers
    matrices = [one for layer in layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    return sum(one.weight.nbytes for one in [*matrices, network.head])


def parting(run: Run) -> float:
    """How far the pass parts from the same one without early launches: anything but 0 is a race."""
    ends = [run.call(one).double() for one in (run.network, with_ways(run.network, {}, is_early=False))]
    return float((ends[0] - ends[1]).norm() / ends[1].norm())


def show_pass(row: Row) -> None:
    floor = row["floor_us"] / 1e3
    print(f"pass {row['tokens']} tok, context {row['context']}: floor {floor:.3f} ms, attention "
          f"{row['attention_us']:.2f} us a layer, early parts by {row['early_parts_by']}")  # fmt: skip
    for name, ms in sorted(row["ms"].items(), key=lambda pair: pair[1]):
        print(f"   {ms:7.3f} ms  {ms / floor:.3f}  {name}", flush=True)


def pass_once(bench: Bench, tokens: int, context: int) -> None:
    """Every kernel of a pass, once: for compiling."""
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
