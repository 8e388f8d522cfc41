"""What the tuning tries: configurations of attention by case, of products by name, and ways of a layer.

A configuration should leave no multiprocessor idle at the end, so rows, splits and stages are chosen here
such that all programs of a product fit on 132 processors at once, two to four on each, or in whole rounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bench.gpu.kernel_layer import Cutting, Way
from wager.nn.kernels.attention import AttentionPlan
from wager.nn.kernels.matmul import ProductConfig as C
from wager.nn.layers.attention import HeadShape


class Case(NamedTuple):
    """A pass: rows, tokens of all of them, and the context of each."""

    rows: int
    tokens: int
    context: int


ATTENTION_CASES = (
    *(Case(1, tokens, context) for context in (1024, 16_384) for tokens in (1, 16, 64)),
    Case(16, 64, 1024),
    Case(64, 64, 1024),
)


class Attending(NamedTuple):
    """One configuration of attention."""

    keys: int = 64
    warps: int = 4
    stages: int = 3
    per_processor: int = 2
    lines: int = 64
    min_keys: int = 128
    merge: str = "after"

    @property
    def label(self) -> str:
        cut = f"{self.per_processor} per processor, {self.lines} lines, from {self.min_keys} keys"
        return f"{self.keys}x{self.warps}x{self.stages}, {cut}{', last' if self.merge == 'last' else ''}"

    @property
    def cutting(self) -> Cutting:
        return Cutting(self.per_processor, self.lines, self.min_keys, is_exact=True)

    def plan(self, plan: AttentionPlan) -> AttentionPlan:
        return plan._replace(
            block_keys=self.keys, num_warps=self.warps, num_stages=self.stages, merge=self.merge
        )


TILES: dict[int, tuple[tuple[int, int, int], ...]] = {
    16: (
        (32, 1, 3), (32, 1, 4), (32, 2, 3), (32, 2, 4), (64, 1, 3), (64, 2, 2), (64, 2, 3), (64, 2, 4),
        (64, 4, 2), (64, 4, 3), (64, 4, 4), (128, 4, 2), (128, 4, 3), (128, 8, 3),
    ),
    64: ((32, 4, 3), (32, 4, 4), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3), (128, 8, 2)),
    128: ((64, 4, 2), (64, 8, 2), (64, 8, 3), (32, 8, 3), (128, 8, 2)),
    256: ((32, 8, 2), (64, 8, 2), (64, 16, 2)),
}  # fmt: skip
"""By lines of a tile: (keys of a step, warps, stages)."""
LAST = {16: (64, 4, 3), 64: (64, 4, 3), 128: (64, 8, 2), 256: (64, 8, 2)}
"""The one that is also tried with the last split merging."""


LONG_CASES = (
    *(Case(1, tokens, 16_384) for tokens in (1, 16, 64)),
    *(Case(1, tokens, 1024) for tokens in (1, 8, 16, 32, 64)),
    Case(1, 1, 4096),
    Case(1, 16, 4096),
    Case(16, 64, 1024),
    Case(16, 256, 1024),
)
LONG_TILES: dict[int, tuple[tuple[int, int, int], ...]] = {
    16: (
        (32, 2, 4), (64, 2, 4), (64, 4, 4), (64, 4, 5), (64, 4, 6), (64, 8, 6), (128, 4, 3), (128, 4, 4),
        (128, 8, 3), (128, 8, 4),
    ),
    32: ((64, 4, 3), (64, 4, 4), (32, 4, 4)),
    64: ((64, 4, 2), (64, 4, 3), (64, 4, 4), (32, 4, 4), (32, 4, 5), (128, 8, 2), (64, 8, 4)),
    128: ((64, 8, 2), (64, 8, 3)),
}  # fmt: skip
"""What is tried once more, for the cases that were far from their floor."""


def long_attendings(case: Case, heads: HeadShape) -> list[Attending]:
    each, is_short = case.tokens // case.rows, case.rows == 1 and case.context <= 1024
    lines_of_each = {
        8: (32, 64),
        16: (16, 32, 64) if is_short else (64,),
        64: (64,) if is_short else (64, 128),
    }
    cuts = [(2, 64), (2, 128), (2, 256)] if is_short else [(1, 128), (2, 128)]
    found = []
    for lines in lines_of_each.get(each, (16 if each * heads.group <= 16 else 64,)):
        for tile in LONG_TILES[lines]:
            found += [Attending(*tile, count, lines, least) for count, least in cuts]
        if is_short and lines == 64:
            found += [Attending(64, 4, 3, count, lines, least, "last") for count, least in cuts[1:]]
    return found


def lines_of(case: Case, heads: HeadShape) -> tuple[int, ...]:
    wanted = case.tokens // case.rows * heads.group
    return (16,) if wanted <= 16 else (64,) if wanted <= 64 else (64, 128, 256)


def attendings(case: Case, heads: HeadShape) -> list[Attending]:
    """What to try for a case: a short context is cut by length, a long one by programs."""
    is_short = case.rows == 1 and case.context <= 1024
    cuts = [(2, 64), (2, 128), (2, 256)] if is_short else [(count, 128) for count in (1, 2, 3, 4)]
    found = []
    for lines in lines_of(case, heads):
        for tile in TILES[lines]:
            found += [Attending(*tile, count, lines, least) for count, least in cuts]
        found += [Attending(*LAST[lines], count, lines, least, "last") for count, least in cuts[1:3]]
    return found


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
"""Products of at most 16 tokens, by name."""
MANY = {
    "qkv": (C(128, 64, 8, 4, 3), C(64, 128, 4, 4, 3), C(128, 128, 8, 8, 3), C(128, 64, 4, 4, 4)),
    "out": (C(128, 64, 8, 4, 3), C(64, 128, 4, 4, 3), C(128, 128, 4, 8, 4), C(128, 64, 4, 4, 4)),
    "gate_up": (C(64, 64, 1, 4, 4), C(64, 128, 1, 8, 3), C(32, 128, 1, 4, 3), C(64, 64, 1, 4, 3)),
    "down": (C(128, 64, 12, 4, 3), C(64, 128, 6, 4, 3), C(128, 128, 4, 8, 4), C(128, 64, 4, 4, 4)),
    "head": (C(128, 64, 1, 4, 3), C(64, 128, 1, 4, 3), C(128, 128, 1, 8, 3)),
}
TILES_AHEAD = (0, 2, 4, 8)
"""Tiles that our products ask for before they wait."""


def product_configs(name: str, tokens: int) -> tuple[C, ...]:
    return (FEW if tokens <= 16 else MANY)[name]


def way_options(tokens: int, can_early: bool) -> dict[str, list[Any]]:
    """What each field of a way may be; order matters to the search, products first."""
    options: dict[str, list[Any]] = {}
    for name in ("gate_up", "down", "qkv", "out"):
        configs = product_configs(name, tokens)
        ahead = TILES_AHEAD if can_early else (2,)
        options[name] = [None, *(config._replace(ahead=count) for config in configs for count in ahead)]
    if can_early:
        options["early"] = [True, False]
        for name in ("gate_up", "down", "qkv", "out"):
            options[f"ahead_{name}"] = [0.0, 4.0, 8.0, 16.0]
        options["pieces"] = [1, 4]
    return options


def first_way(can_early: bool) -> Way:
    return Way(early=can_early)


def own_way(tokens: int, can_early: bool) -> Way:
    """The first configuration of everything."""
    qkv, out, gate_up, down = (product_configs(name, tokens)[0] for name in ("qkv", "out", "gate_up", "down"))
    return Way(qkv, out, gate_up, down, early=can_early)
