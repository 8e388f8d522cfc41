"""Passes and whole decoder layers for the kernels' benchmark: rows on scattered pages, a layer in many ways.

Used by kernels.py; builds its own random weights and caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu.kernel_clock import EPS, Bench, Row
from wager.nn.kernels.attention import AttentionPlan, attend, plan_attention
from wager.nn.kernels.device import Launch, ahead_of
from wager.nn.kernels.gate import gate
from wager.nn.kernels.matmul import ProductConfig, gated_product, product, split_product
from wager.nn.kernels.norm import Norm, Normed, add_norm
from wager.nn.kernels.qkv import Places, Turn, rotation_table, write_qkv
from wager.nn.kernels.tables import (
    AttentionTables,
    PassTables,
    TableLimits,
    TableRow,
    Tiling,
    choose_tiling,
    mask_words,
)
from wager.nn.layers.attention import HeadShape, additive
from wager.nn.layers.norm import RmsNorm
from wager.nn.rope import RopeSpec, Rotary
from wager.target.graphs import MASK_WORDS


class Heads(NamedTuple):
    """What the head kernels of a layer need, and the plain path beside them."""

    turn: Turn
    norm: RmsNorm
    rotary: Rotary


def make_heads(bench: Bench) -> Heads:
    heads = bench.shape.heads
    rope = RopeSpec(heads.head_dim, theta=1e6)
    norm = bench.random(heads.num_heads + heads.num_kv_heads, heads.head_dim)
    table = rotation_table(rope, 40_960 if bench.device.type == "cuda" else 2048, bench.dtype, bench.device)
    return Heads(Turn(heads, norm, EPS, table), RmsNorm(norm, EPS), Rotary(rope, bench.dtype, bench.device))


class Pass(NamedTuple):
    """Rows over a rotating pool, as attention sees them."""

    stores: list[Tensor]
    tables: PassTables
    plan: AttentionPlan
    mask: Tensor
    """[tokens * group, keys]: the first row's mask for the plain path."""
    rows: list[TableRow]

    @property
    def attention(self) -> AttentionTables:
        return self.tables.attention()


def random_tree(num_tokens: int, num_causal: int, rng: np.random.Generator) -> np.ndarray:
    """Who sees whom among pending tokens, the last of which is the root, and its nodes."""
    mask = np.tril(np.ones((num_tokens, num_tokens), np.bool_))
    mask[num_causal:, num_causal:] = np.eye(num_tokens - num_causal, dtype=np.bool_)
    for node in range(num_causal, num_tokens):
        mask[node] |= mask[rng.integers(num_causal - 1, node)]
    return mask


class Cutting(NamedTuple):
    """How a pass's attention is cut into programs: see `choose_tiling`."""

    per_processor: int = 2
    """Programs that fill one multiprocessor."""
    most_lines: int = 64
    min_keys: int | None = None
    is_exact: bool = False
    """Whether tiles have that many lines even where fewer would do."""

    def tiling(self, heads: HeadShape, rows: int, tokens: int, device: torch.device) -> Tiling:
        programs = self.per_processor * _multiprocessors(device)
        if self.is_exact:
            tokens = max(tokens, rows * (self.most_lines // heads.group))
        tiling = choose_tiling(heads, rows, tokens, programs, self.most_lines)
        return tiling if self.min_keys is None else tiling._replace(min_keys=self.min_keys)


USUAL = Cutting()


def make_pass(
    bench: Bench, rows: int, tokens: int, context: int, cutting: Cutting = USUAL, merge: str = "after"
) -> Pass:
    """`rows` rows of tokens / rows tokens, a root and a tree each, on scattered pages.

    Beyond what a tree may have, more pending tokens.
    """
    shape, rng, each = bench.shape, np.random.default_rng(0), tokens // rows
    heads, page = shape.heads, shape.page_size
    need = -(-(context + each) // page)
    tiling = cutting.tiling(heads, rows, tokens, bench.device)
    tables = PassTables(TableLimits(tokens, rows, need, rows, tiling.max_items, MASK_WORDS), bench.device)
    pages, causal = rng.permutation(rows * need), max(1, each - 64 * MASK_WORDS)
    mask = random_tree(each, causal, rng)
    for row in range(rows):
        own, own_pages = slice(row * each, (row + 1) * each), pages[row * need : (row + 1) * need]
        tables.host_pages[row] = own_pages
        places = context + np.arange(each)
        tables.host.slots[own] = own_pages[places // page] * page + places % page
        tables.host.positions[own] = context + mask.sum(axis=1) - 1
        tables.host.masks[own] = mask_words(mask, causal, MASK_WORDS)
    world_rows = [TableRow(row * each, each, causal, context, row) for row in range(rows)]
    tables.lay_rows(world_rows, tiling)
    tables.push()
    size = (2, heads.num_kv_heads, rows * need * page, heads.head_dim)
    stores = bench.rotated(*size, scale=1.0)[: shape.num_layers]
    seen = torch.from_numpy(np.hstack((np.ones((each, context), np.bool_), mask))).to(bench.device)
    plan = plan_attention(heads, tiling, page, bench.device, merge)
    return Pass(stores, tables, plan, additive(seen, heads.group, bench.dtype), world_rows)


def recut(world: Pass, bench: Bench, cutting: Cutting) -> Pass:
    """The same pass over the same memory, its attention cut in another way."""
    limits = world.tables.limits
    tiling = cutting.tiling(bench.shape.heads, limits.max_rows, limits.max_tokens, bench.device)
    tables = relaid(world, replace(limits, max_items=tiling.max_items), tiling, bench.device)
    plan = plan_attention(bench.shape.heads, tiling, world.plan.page_size, bench.device, world.plan.merge)
    return world._replace(tables=tables, plan=plan)


def relaid(world: Pass, limits: TableLimits, tiling: Tiling, device: torch.device) -> PassTables:
    """The tables of a pass, its work cut in another way."""
    tables = PassTables(limits, device)
    tables.host_pages[:] = world.tables.host_pages
    for new, old in zip(tables.host[:4], world.tables.host[:4], strict=True):
        new[:] = old
    tables.lay_rows(world.rows, tiling)
    tables.push()
    return tables


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class LayerWeights(NamedTuple):
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    input_norm: Norm
    post_norm: Norm


class Way(NamedTuple):
    """How a layer is run: whose products (None: the library's), early launches, and MiB fetched ahead.

    The kernels in front of the library's products fetch for them; our own products do it themselves.
    """

    qkv: ProductConfig | None = None
    out: ProductConfig | None = None
    gate_up: ProductConfig | None = None
    down: ProductConfig | None = None
    early: bool = False
    ahead_qkv: float = 0.0
    ahead_out: float = 0.0
    ahead_gate_up: float = 0.0
    ahead_down: float = 0.0
    pieces: int = 1

    def launch(self, weight: Tensor | None = None, ahead: float = 0.0) -> Launch:
        """For a kernel, one in front of the library's product with `weight`."""
        if weight is None or not ahead:
            return Launch(self.early)
        return Launch(self.early, ahead_of(weight, int(ahead * (1 << 20)), self.pieces))


SPLIT = ProductConfig(128, 64, 4, 4, 5)
OWN = Way(ProductConfig(64, 128, 4, 4, 3), SPLIT, ProductConfig(32, 128, 1, 4, 3), SPLIT)
WAYS = {
    "library": Way(),
    "library, 8 MiB ahead": Way(None, None, None, None, False, 8, 8, 8, 8),
    "library, early": Way(early=True),
    "library, early, 8 MiB ahead": Way(None, None, None, None, True, 8, 8, 8, 8),
    "own": OWN,
    "own, early": OWN._replace(early=True),
}


def bench_layer(bench: Bench) -> Iterator[Row]:
    layers = [make_layer(bench) for _ in range(4)]
    turn = make_heads(bench).turn
    for tokens in bench.few_tokens:
        yield layer_row(bench, tokens, layers, turn)


def layer_row(bench: Bench, tokens: int, layers: list[LayerWeights], turn: Turn) -> Row:
    context, heads = bench.contexts[0], bench.shape.heads
    world = make_pass(bench, 1, tokens, context)
    us = {}
    for name, way in WAYS.items():
        if (way.early or any(way[5:9])) and not can_launch_early(bench.device):
            continue
        us[name] = way_us(bench, tokens, layers, turn, world, way)
    one = layers[0]
    num_bytes = sum(weight.nbytes for weight in (one.qkv, one.out, one.gate_up, one.down))
    num_bytes += 2 * (context + tokens) * heads.num_kv_heads * heads.head_dim * bench.dtype.itemsize
    return bench.row("layer", tokens, num_bytes, us, context=context)


def way_us(
    bench: Bench, tokens: int, layers: list[LayerWeights], turn: Turn, world: Pass, way: Way
) -> float:  # fmt: skip
    """Microseconds of a layer, out of several that follow one another."""
    stream = Stream(bench, tokens, world)
    stores = (world.stores * len(layers))[: len(layers)]

    def run() -> None:
        for index, (weights, store) in enumerate(zip(layers, stores, strict=True)):
            following = layers[(index + 1) % len(layers)].qkv
            stream.layer(weights, following, turn, store, way)

    return bench.clock.us(run, len(layers))


def can_launch_early(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def make_layer(bench: Bench) -> LayerWeights:
    sizes = bench.shape.products
    qkv, out, gate_up, down = (
        bench.random(*sizes[name], scale=0.02) for name in ("qkv", "out", "gate_up", "down")
    )
    first, second = (Norm(bench.random(bench.shape.hidden), EPS) for _ in range(2))
    return LayerWeights(qkv, out, gate_up, down, first, second)


class Stream:
    """The tensors that flow through the layers of one pass."""

    def __init__(self, bench: Bench, tokens: int, world: Pass) -> None:
        shape, heads = bench.shape, bench.shape.heads
        self.world = world
        self.residual = bench.random(tokens, shape.hidden)
        self.normed = bench.random(tokens, shape.hidden)
        self.queries = bench.random(tokens, heads.num_heads, heads.head_dim)
        self.attended = bench.random(tokens, heads.num_heads * heads.head_dim)

    def layer(self, weights: LayerWeights, following: Tensor, turn: Turn, store: Tensor, way: Way) -> None:
        """One layer; `following` is the weight of the next layer's first product."""
        tables, plan = self.world.tables, self.world.plan
        places, plain = Places(tables.positions, tables.slots), way.launch()
        fused = self._product(self.normed, weights.qkv, way.qkv, plain)
        to_out = way.launch(weights.out, way.ahead_out)
        write_qkv(fused, turn, places, store, self.queries, to_out)
        attend(self.queries, store, tables.attention(), plan, None, self.attended, plain)
        state = Normed(self.residual, self.normed)
        added = self._product(self.attended, weights.out, way.out, plain)
        to_middle = way.launch(weights.gate_up, way.ahead_gate_up)
        add_norm(added, self.residual, weights.post_norm, state, to_middle)
        if way.gate_up is not None:
            middle = gated_product(self.normed, weights.gate_up, way.gate_up, plain)
        else:
            both = F.linear(self.normed, weights.gate_up)
            middle = gate(both, None, way.launch(weights.down, way.ahead_down))
        added = self._product(middle, weights.down, way.down, plain)
        add_norm(added, self.residual, weights.input_norm, state, way.launch(following, way.ahead_qkv))

    def _product(self, x: Tensor, weight: Tensor, config: ProductConfig | None, launch: Launch) -> Tensor:
        """A product, or the parts of one, which the kernel behind it adds up."""
        if config is None:
            return F.linear(x, weight)
        if config.splits > 1:
            return split_product(x, weight, config, launch)
        return product(x, weight, None, config, None, launch)
