"""The configurations that the tuning tries: attention by case, products by name, and variants of a layer.

A configuration should leave no multiprocessor idle at the end. Rows, splits and stages are therefore chosen
so that all programs of a product fit on 132 multiprocessors, two to four on each, or in whole rounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bench.gpu.kernel_layer import Cutting, LayerVariant
from wager.nn.kernels.attention import AttentionPlan
from wager.nn.kernels.matmul import ProductConfig as C
from wager.nn.layers.attention import HeadShape


class Case(NamedTuple):
    """A pass: its rows, the tokens of all of them, and the context of each."""

    rows: int
    tokens: int
    context: int


ATTENTION_CASES = (
    *(Case(1, tokens, context) for context in (1024, 4096, 16_384) for tokens in (1, 8, 16, 32, 64)),
    Case(1, 128, 1024),
    Case(1, 256, 1024),
    Case(1, 512, 1024),
    Case(1, 256, 16_384),
    *(Case(rows, rows * each, 1024) for rows in (2, 4, 8, 16, 32, 64) for each in (1, 4, 16)),
    Case(4, 128, 1024),
)


class AttentionConfig(NamedTuple):
    """One configuration of attention."""

    keys: int = 64
    warps: int = 4
    stages: int = 3
    per_processor: int = 2
    tile_rows: int = 64
    min_keys: int = 128
    merge: str = "after"

    @property
    def label(self) -> str:
        cut = f"{self.per_processor} per processor, {self.tile_rows} tile_rows, from {self.min_keys} keys"
        return f"{self.keys}x{self.warps}x{self.stages}, {cut}{', last' if self.merge == 'last' else ''}"

    @property
    def cutting(self) -> Cutting:
        return Cutting(self.per_processor, self.tile_rows, self.min_keys, is_exact=True)

    def plan(self, plan: AttentionPlan) -> AttentionPlan:
        return plan._replace(
            block_keys=self.keys, num_warps=self.warps, num_stages=self.stages, merge=self.merge
        )


TILES: dict[int, tuple[tuple[int, int, int], ...]] = {
    16: ((32, 2, 4), (64, 2, 4), (64, 4, 3), (64, 4, 4), (128, 4, 3)),
    32: ((64, 4, 3), (64, 4, 4), (128, 4, 3)),
    64: ((64, 4, 2), (64, 4, 3), (64, 4, 4)),
    128: ((64, 8, 3), (64, 8, 4)),
}
"""By rows of a tile: (keys per step, warps, stages), the best of a larger grid."""
MERGES = ("after", "last")


def attention_configs(case: Case, heads: HeadShape) -> list[AttentionConfig]:
    """The configurations to try for a case; short contexts are also cut by length."""
    wanted = case.tokens // case.rows * heads.group
    usual = max(16, min(64, 1 << (wanted - 1).bit_length()))
    shortest = (64, 128, 256) if case.rows == 1 and case.context <= 1024 else (128,)
    return [
        AttentionConfig(*tile, count, tile_rows, least, merge)
        for tile_rows in ((usual, 128) if wanted >= 128 else (usual,))
        for tile in TILES[tile_rows]
        for count in (1, 2)
        for least in shortest
        for merge in MERGES
    ]


FEW = {
    "qkv": (
        C(64, 128, 4, 4, 3), C(128, 64, 8, 4, 4), C(32, 128, 2, 4, 4), C(64, 128, 1, 4, 5),
        C(32, 256, 1, 4, 3), C(64, 64, 4, 4, 6), C(128, 64, 4, 4, 5),
    ),
    "out": (
        C(128, 64, 4, 4, 5), C(64, 128, 4, 4, 3), C(64, 128, 4, 4, 4), C(64, 128, 8, 4, 3),
        C(32, 128, 3, 4, 4), C(128, 64, 8, 4, 4), C(64, 64, 4, 4, 6),
    ),
    "gate_up": (
        C(32, 128, 1, 4, 3), C(32, 128, 1, 4, 4), C(32, 64, 1, 4, 6), C(64, 64, 1, 4, 4), C(32, 256, 1, 4, 2),
        C(64, 128, 1, 8, 4),
    ),
    "down": (
        C(128, 64, 4, 4, 5), C(64, 128, 6, 4, 3), C(64, 128, 4, 4, 4), C(32, 128, 3, 4, 4),
        C(128, 64, 12, 4, 4), C(64, 64, 6, 4, 6), C(128, 128, 4, 8, 5),
    ),
    "head": (C(64, 128, 1, 4, 3), C(128, 64, 1, 4, 4), C(64, 64, 1, 4, 6), C(32, 128, 1, 4, 4)),
}  # fmt: skip
"""Configurations of products of at most 16 tokens, by name."""
MANY = {
    "qkv": (C(128, 64, 8, 4, 3), C(64, 128, 4, 4, 3), C(128, 128, 8, 8, 3), C(128, 64, 4, 4, 4)),
    "out": (C(128, 64, 8, 4, 3), C(64, 128, 4, 4, 3), C(128, 128, 4, 8, 4), C(128, 64, 4, 4, 4)),
    "gate_up": (C(64, 64, 1, 4, 4), C(64, 128, 1, 8, 3), C(32, 128, 1, 4, 3), C(64, 64, 1, 4, 3)),
    "down": (C(128, 64, 12, 4, 3), C(64, 128, 6, 4, 3), C(128, 128, 4, 8, 4), C(128, 64, 4, 4, 4)),
    "head": (C(128, 64, 1, 4, 3), C(64, 128, 1, 4, 3), C(128, 128, 1, 8, 3)),
}
TILES_AHEAD = (0, 2, 4, 8)
"""Number of tiles that our products prefetch before they wait."""


def product_configs(name: str, tokens: int) -> tuple[C, ...]:
    return (FEW if tokens <= 16 else MANY)[name]


def variant_options(tokens: int, can_early: bool) -> dict[str, list[Any]]:
    """The values of each field of a variant; the search changes products first."""
    options: dict[str, list[Any]] = {}
    for name in ("gate_up", "down", "qkv", "out"):
        configs = product_configs(name, tokens)
        prefetch = TILES_AHEAD if can_early else (2,)
        options[name] = [None, *(config._replace(prefetch=count) for config in configs for count in prefetch)]
    if can_early:
        options["pdl"] = [True, False]
        for name in ("gate_up", "down", "qkv", "out"):
            options[f"ahead_{name}"] = [0.0, 4.0, 8.0, 16.0]
        options["pieces"] = [1, 4]
    return options


def library_variant(can_early: bool) -> LayerVariant:
    return LayerVariant(pdl=can_early)


def kernel_variant(tokens: int, can_early: bool) -> LayerVariant:
    """The variant with the first kernel configuration of every product."""
    qkv, out, gate_up, down = (product_configs(name, tokens)[0] for name in ("qkv", "out", "gate_up", "down"))
    return LayerVariant(qkv, out, gate_up, down, pdl=can_early)
