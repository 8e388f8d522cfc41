"""Inputs of passes, and whole decoder layers, for the kernel benchmarks: random weights, scattered pages.

A layer is run in several variants. Used by kernels.py and the tuning scripts.
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
from wager.nn.kernels.device import Launch, prefetch_of
from wager.nn.kernels.gate import gate
from wager.nn.kernels.matmul import ProductConfig, gated_product, product, split_product
from wager.nn.kernels.norm import Norm, Normed, add_norm
from wager.nn.kernels.qkv import HeadTransform, TokenSlots, rotation_table, write_qkv
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
    """What the head kernels of a layer need, and the plain path for comparison."""

    turn: HeadTransform
    norm: RmsNorm
    rotary: Rotary


def make_heads(bench: Bench) -> Heads:
    heads = bench.shape.heads
    rope = RopeSpec(heads.head_dim, theta=1e6)
    norm = bench.random(heads.num_heads + heads.num_kv_heads, heads.head_dim)
    table = rotation_table(rope, 40_960 if bench.device.type == "cuda" else 2048, bench.dtype, bench.device)
    return Heads(
        HeadTransform(heads, norm, EPS, table), RmsNorm(norm, EPS), Rotary(rope, bench.dtype, bench.device)
    )


class PassInputs(NamedTuple):
    """Rows over a rotating KV store, as attention reads them."""

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
    """Which token sees which: `num_causal` pending tokens, then the nodes of a random tree."""
    mask = np.tril(np.ones((num_tokens, num_tokens), np.bool_))
    mask[num_causal:, num_causal:] = np.eye(num_tokens - num_causal, dtype=np.bool_)
    for node in range(num_causal, num_tokens):
        mask[node] |= mask[rng.integers(num_causal - 1, node)]
    return mask


class Cutting(NamedTuple):
    """How attention is cut into programs; see `choose_tiling`."""

    per_processor: int = 2
    """Number of programs that fill one multiprocessor."""
    max_tile_rows: int = 64
    min_keys: int | None = None
    is_exact: bool = False
    """Whether tiles have exactly that many rows even where fewer would do."""

    def tiling(self, heads: HeadShape, rows: int, tokens: int, device: torch.device) -> Tiling:
        programs = self.per_processor * _multiprocessors(device)
        if self.is_exact:
            tokens = max(tokens, rows * (self.max_tile_rows // heads.group))
        tiling = choose_tiling(heads, rows, tokens, programs, self.max_tile_rows)
        return tiling if self.min_keys is None else tiling._replace(min_keys=self.min_keys)


DEFAULT_CUTTING = Cutting()


def make_pass(
    bench: Bench,
    rows: int,
    tokens: int,
    context: int,
    cutting: Cutting = DEFAULT_CUTTING,
    merge: str = "after",
) -> PassInputs:
    """`rows` rows of tokens / rows tokens, each a root and a tree, on scattered pages.

    Tokens beyond the largest tree are pending tokens.
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
    table_rows = [TableRow(row * each, each, causal, context, row) for row in range(rows)]
    tables.write_rows(table_rows, tiling)
    tables.push()
    size = (2, heads.num_kv_heads, rows * need * page, heads.head_dim)
    stores = bench.rotated(*size, scale=1.0)[: shape.num_layers]
    seen = torch.from_numpy(np.hstack((np.ones((each, context), np.bool_), mask))).to(bench.device)
    plan = plan_attention(heads, tiling, page, bench.device, merge)
    return PassInputs(stores, tables, plan, additive(seen, heads.group, bench.dtype), table_rows)


def with_cutting(inputs: PassInputs, bench: Bench, cutting: Cutting) -> PassInputs:
    """The same pass over the same memory, with attention cut in another way."""
    limits = inputs.tables.limits
    tiling = cutting.tiling(bench.shape.heads, limits.max_rows, limits.max_tokens, bench.device)
    tables = copy_tables(inputs, replace(limits, max_items=tiling.max_items), tiling, bench.device)
    plan = plan_attention(bench.shape.heads, tiling, inputs.plan.page_size, bench.device, inputs.plan.merge)
    return inputs._replace(tables=tables, plan=plan)


def copy_tables(inputs: PassInputs, limits: TableLimits, tiling: Tiling, device: torch.device) -> PassTables:
    """Copy the tables of a pass for another cutting of its attention."""
    tables = PassTables(limits, device)
    tables.host_pages[:] = inputs.tables.host_pages
    for new, old in zip(tables.host[:4], inputs.tables.host[:4], strict=True):
        new[:] = old
    tables.write_rows(inputs.rows, tiling)
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


class LayerVariant(NamedTuple):
    """How a layer is run: product kernels (None is the library's), early launches, MiB prefetched.

    The kernels before a library product prefetch its weights; our own products prefetch for themselves.
    """

    qkv: ProductConfig | None = None
    out: ProductConfig | None = None
    gate_up: ProductConfig | None = None
    down: ProductConfig | None = None
    pdl: bool = False
    ahead_qkv: float = 0.0
    ahead_out: float = 0.0
    ahead_gate_up: float = 0.0
    ahead_down: float = 0.0
    pieces: int = 1

    def launch(self, weight: Tensor | None = None, prefetch: float = 0.0) -> Launch:
        """The launch of a kernel; with `weight` it prefetches `ahead` MiB for the next library product."""
        if weight is None or not prefetch:
            return Launch(self.pdl)
        return Launch(self.pdl, prefetch_of(weight, int(prefetch * (1 << 20)), self.pieces))


SPLIT = ProductConfig(128, 64, 4, 4, 5)
KERNELS = LayerVariant(ProductConfig(64, 128, 4, 4, 3), SPLIT, ProductConfig(32, 128, 1, 4, 3), SPLIT)
LAYER_VARIANTS = {
    "library": LayerVariant(),
    "library, 8 MiB ahead": LayerVariant(None, None, None, None, False, 8, 8, 8, 8),
    "library, early": LayerVariant(pdl=True),
    "library, early, 8 MiB ahead": LayerVariant(None, None, None, None, True, 8, 8, 8, 8),
    "own": KERNELS,
    "own, early": KERNELS._replace(pdl=True),
}


def bench_layer(bench: Bench) -> Iterator[Row]:
    layers = [make_layer(bench) for _ in range(4)]
    turn = make_heads(bench).turn
    for tokens in bench.few_tokens:
        yield layer_row(bench, tokens, layers, turn)


def layer_row(bench: Bench, tokens: int, layers: list[LayerWeights], turn: HeadTransform) -> Row:
    context, heads = bench.contexts[0], bench.shape.heads
    inputs = make_pass(bench, 1, tokens, context)
    us = {}
    for name, variant in LAYER_VARIANTS.items():
        if (variant.pdl or any(variant[5:9])) and not can_launch_early(bench.device):
            continue
        us[name] = variant_us(bench, tokens, layers, turn, inputs, variant)
    one = layers[0]
    num_bytes = sum(weight.nbytes for weight in (one.qkv, one.out, one.gate_up, one.down))
    num_bytes += 2 * (context + tokens) * heads.num_kv_heads * heads.head_dim * bench.dtype.itemsize
    return bench.row("layer", tokens, num_bytes, us, context=context)


def variant_us(
    bench: Bench,
    tokens: int,
    layers: list[LayerWeights],
    turn: HeadTransform,
    inputs: PassInputs,
    variant: LayerVariant,
) -> float:
    """Microseconds of one layer, measured over several layers in a row."""
    stream = Stream(bench, tokens, inputs)
    stores = (inputs.stores * len(layers))[: len(layers)]

    def run() -> None:
        for index, (weights, store) in enumerate(zip(layers, stores, strict=True)):
            following = layers[(index + 1) % len(layers)].qkv
            stream.layer(weights, following, turn, store, variant)

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

    def __init__(self, bench: Bench, tokens: int, inputs: PassInputs) -> None:
        shape, heads = bench.shape, bench.shape.heads
        self.inputs = inputs
        self.residual = bench.random(tokens, shape.hidden)
        self.normed = bench.random(tokens, shape.hidden)
        self.queries = bench.random(tokens, heads.num_heads, heads.head_dim)
        self.attended = bench.random(tokens, heads.num_heads * heads.head_dim)

    def layer(
        self,
        weights: LayerWeights,
        following: Tensor,
        turn: HeadTransform,
        store: Tensor,
        variant: LayerVariant,
    ) -> None:
        """Run one layer; `following` is the weight of the next layer's first product."""
        tables, plan = self.inputs.tables, self.inputs.plan
        places, plain = TokenSlots(tables.positions, tables.slots), variant.launch()
        fused = self._product(self.normed, weights.qkv, variant.qkv, plain)
        to_out = variant.launch(weights.out, variant.ahead_out)
        write_qkv(fused, turn, places, store, self.queries, to_out)
        attend(self.queries, store, tables.attention(), plan, None, self.attended, plain)
        state = Normed(self.residual, self.normed)
        added = self._product(self.attended, weights.out, variant.out, plain)
        to_middle = variant.launch(weights.gate_up, variant.ahead_gate_up)
        add_norm(added, self.residual, weights.post_norm, state, to_middle)
        if variant.gate_up is not None:
            middle = gated_product(self.normed, weights.gate_up, variant.gate_up, plain)
        else:
            both = F.linear(self.normed, weights.gate_up)
            middle = gate(both, None, variant.launch(weights.down, variant.ahead_down))
        added = self._product(middle, weights.down, variant.down, plain)
        add_norm(
            added, self.residual, weights.input_norm, state, variant.launch(following, variant.ahead_qkv)
        )

    def _product(self, x: Tensor, weight: Tensor, config: ProductConfig | None, launch: Launch) -> Tensor:
        """A product, or its partial sums, which the next kernel adds up."""
        if config is None:
            return F.linear(x, weight)
        if config.splits > 1:
            return split_product(x, weight, config, launch)
        return product(x, weight, None, config, None, launch)
