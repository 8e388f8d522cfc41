"""Time of one pass by tokens and context, through the engine's own runner, beside the floor of its bytes.

    python -m bench.gpu.passes [--tokens 1,16,64] [--contexts 1024,16384] [--parts target,attention]

`target`: a row of one pending token and a tree over a filled cache, every token scored; passes run back to
back and are timed by device events, medians. `attention`: the attention kernels of such a pass alone, out of
a profile, against the time to read their keys and values once. `drafter`: a whole draft by rows, features of
some new tokens to take in and candidates on the host. `steps`: whole steps of the engine at batch 1, and how
much of their time the device was at work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from bench.gpu.floor import Streamed, drafter_bytes, target_bytes
from bench.gpu.grown import REFERENCE_TB_PER_S, World
from bench.gpu.profiled import profiled
from bench.gpu.script import Script, main
from bench.gpu.steps import Row, steps_row, walked
from wager.bench.plan import BASELINE
from wager.bench.records import Answer
from wager.draft.base import Drafter, DraftRow, KeptTokens
from wager.draft.block import BlockDrafter
from wager.target import RunRow, TargetRunner
from wager.tree import Tree

_ROOT_TOKEN = 20


@dataclass(frozen=True)
class Options:
    """Sizes, and how often each is run."""

    tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts: tuple[int, ...] = (1024, 4096, 16_384, 32_768)
    attention_tokens: tuple[int, ...] = (1, 16, 64)
    attention_context: int = 16_384
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    draft_context: int = 1024
    new_tokens: int = 4
    policies: tuple[str, ...] = (BASELINE, "fixed:15", "auto")
    step_tokens: int = 256
    rounds: int = 5
    in_a_row: int = 6
    parts: tuple[str, ...] = ("target", "attention", "drafter", "steps")


class Clock(NamedTuple):
    """Times calls back to back: medians over rounds of several calls each."""

    world: World
    rounds: int
    in_a_row: int

    def ms(self, call: Callable[[], object]) -> float:
        """Milliseconds of one call where the next is queued behind it: the device's time, if it is longer."""
        for _ in range(3):
            call()
        return statistics.median(self._round(call) for _ in range(self.rounds)) / self.in_a_row

    def _round(self, call: Callable[[], object]) -> float:
        self.world.synchronize()
        if not self.world.is_cuda:
            start = time.perf_counter()
            for _ in range(self.in_a_row):
                call()
            return (time.perf_counter() - start) * 1e3
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(self.in_a_row):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def alone_ms(self, call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        """Milliseconds of one call until its result is there; `before` is not timed."""
        times = []
        for _ in range(3 + self.rounds * 2):
            before()
            self.world.synchronize()
            start = time.perf_counter()
            call()
            self.world.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times[3:])

    def host_ms(self, call: Callable[[], object]) -> float:
        """Milliseconds until a call returns to the host, whose device has nothing else to do."""
        times = []
        for _ in range(3 + self.rounds * 2):
            self.world.synchronize()
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        self.world.synchronize()
        return statistics.median(times[3:])


MOST_NODES = 128
"""Of a tree in one pass on a device."""


def bushy(num_nodes: int) -> Tree:
    """A tree two wide: as deep as it is likely to be, with siblings to mask."""
    tokens = [_ROOT_TOKEN + 1 + node % 50 for node in range(num_nodes)]
    return Tree.of(tokens, [max(node - 2, -1) for node in range(num_nodes)])


def pass_rows(tokens: int, context: int, page_size: int) -> list[RunRow]:
    """One row of `tokens` tokens behind a context, on the pool's first pages: a root and a tree.

    Beyond what a tree may have, more pending tokens.
    """
    num_pages, num_nodes = -(-(context + tokens) // page_size), min(tokens - 1, MOST_NODES)
    return [RunRow([_ROOT_TOKEN] * (tokens - num_nodes), bushy(num_nodes), context, range(num_pages))]


def pass_call(runner: TargetRunner, tokens: int, context: int) -> Callable[[], object]:
    """The pass to be timed, as the engine runs it."""
    rows = pass_rows(tokens, context, runner.pool.spec.page_size)
    return lambda: runner.run(rows)


def fill(world: World) -> None:
    """Numbers in every slot of both pools, so that no pass meets what was left in memory."""
    engine = world.llm.engine
    pools = [
        engine.runner.pool,
        *(one.pool for one in engine.drafters.values() if isinstance(one, BlockDrafter)),
    ]
    with torch.inference_mode():
        for pool in pools:
            pool.store.normal_()


def target_row(world: World, clock: Clock, floor: Streamed, tokens: int, context: int) -> Row:
    call = pass_call(world.llm.engine.runner, tokens, context)
    ms = clock.ms(call)
    limit = floor.limit_ms(context + tokens, world.bytes_per_s)
    stated = floor.limit_ms(context + tokens, REFERENCE_TB_PER_S * 1e12)
    row: Row = {"tokens": tokens, "context": context, "ms": ms, "host_ms": clock.host_ms(call)}
    row |= {"floor_ms": limit, "over_floor": ms / limit, "over_reference_floor": ms / stated}
    world.say(
        f"{tokens:4d} tokens behind {context:6d}: {ms:8.3f} ms ({ms / limit:.3f} of the floor, "
        f"{ms / stated:.3f} of the reference's), host {row['host_ms']:.3f}"
    )
    return row


def attention_row(world: World, clock: Clock, floor: Streamed, tokens: int, context: int) -> Row:
    runner = world.llm.engine.runner
    call, short = pass_call(runner, tokens, context), pass_call(runner, tokens, 64)
    clock.ms(call)
    found = profiled(call, 4)
    read_ms = (context + tokens) * floor.kv_bytes / world.bytes_per_s * 1e3
    grown_ms = clock.ms(call) - clock.ms(short)
    stated_ms = (context + tokens) * floor.kv_bytes / REFERENCE_TB_PER_S * 1e-9
    row: Row = {"tokens": tokens, "context": context, "read_ms": read_ms, "reference_read_ms": stated_ms}
    row |= {"more_than_behind_64_ms": grown_ms, "over_read": grown_ms / read_ms}
    # Kernels that are launched early wait inside their time: their sum is more than they take.
    row |= {"kernels_ms": found.attention_ms, "largest_kernels_ms": found.largest()}
    alone_ms = attention_alone_ms(world, clock, tokens, context)
    if alone_ms is not None:
        row |= {"alone_ms": alone_ms, "alone_over_read": alone_ms / read_ms}
        row["alone_over_reference_read"] = alone_ms / stated_ms
    world.say(
        f"attention of {tokens} tokens behind {context}: {grown_ms:.3f} ms more than behind 64, "
        f"its kernels by themselves {alone_ms or 0.0:.3f}; reading takes {read_ms:.3f}, "
        f"at the reference's rate {stated_ms:.3f}"
    )
    return row


def attention_alone_ms(world: World, clock: Clock, tokens: int, context: int) -> float | None:
    """All layers' attention of the pass that has just run, in one graph; None without kernels."""
    runner = world.llm.engine.runner
    if not runner.has_kernels or not world.is_cuda:
        return None
    from wager.nn.kernels.attention import attend
    from wager.target.graphs import GraphRunner

    assert isinstance(runner, GraphRunner)
    pass_call(runner, tokens, context)()
    plan, tables = runner.plan_of(tokens, 1, context), runner.attention_tables
    heads, pool = runner.decoder.spec.heads, runner.pool
    queries = torch.randn(tokens, heads.num_heads, heads.head_dim, device=world.device).to(pool.store.dtype)
    cut, launch = tables.first(tokens, plan.tiling.max_items), runner.machine.launch

    def all_layers() -> None:
        for layer in range(pool.spec.num_layers):
            attend(queries, pool.store[layer], cut, plan, None, None, launch)

    with torch.inference_mode():
        all_layers()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            all_layers()
    return clock.ms(graph.replay)


class Drafting:
    """Rows of a block drafter whose contexts are filled, and a draft for all of them."""

    def __init__(self, world: World, drafter: Drafter, num_rows: int, context: int, new_tokens: int) -> None:
        self.drafter, self.noise, self.new = drafter, world.llm.engine.parts.noise, new_tokens
        runner = world.llm.engine.runner
        size = runner.pool.spec.page_size
        self.start = context - new_tokens
        each = -(-(context + 32) // size)
        pages = [range(row * each, (row + 1) * each) for row in range(num_rows)]
        tokens = [_ROOT_TOKEN] * (context + 1)
        self.rows = [DraftRow(f"draft-{row}", tokens, 1, own) for row, own in enumerate(pages)]
        width = len(runner.feature_layers) * runner.hidden_size
        self.features = torch.randn(new_tokens, width, device=world.device).to(world.plan.dtype)

    def prepare(self) -> None:
        for row in self.rows:
            self.drafter.adopt(row.request_id, self.start)
        self.drafter.keep(
            [KeptTokens(row.request_id, self.start, self.features, row.pages) for row in self.rows]
        )

    def draft(self) -> None:
        proposals = self.drafter.draft(self.rows, self.noise)
        assert all(proposal is not None for proposal in proposals)

    def end(self) -> None:
        for row in self.rows:
            self.drafter.forget(row.request_id)


def drafter_row(world: World, clock: Clock, options: Options, num_rows: int) -> Row:
    drafter = world.llm.engine.drafters["block"]
    drafting = Drafting(world, drafter, num_rows, options.draft_context, options.new_tokens)
    try:
        ms = clock.alone_ms(drafting.draft, drafting.prepare)
    finally:
        drafting.end()
    floor = drafter_bytes(world.plan)
    limit = (floor.weight_bytes + num_rows * options.draft_context * floor.kv_bytes) / world.bytes_per_s * 1e3
    at = f"{num_rows:3d} rows behind {options.draft_context}"
    world.say(f"draft of {at}: {ms:7.3f} ms ({ms / limit:.2f} of the floor)")
    return {
        "rows": num_rows,
        "context": options.draft_context,
        "ms": ms,
        "floor_ms": limit,
        "over_floor": ms / limit,
    }


def run(world: World, options: Options) -> None:
    clock, floor = Clock(world, options.rounds, options.in_a_row), target_bytes(world.plan)
    found: dict[str, list[Row]] = {part: [] for part in options.parts}
    room = world.llm.engine.runner.pool.num_slots - max(options.tokens)
    longest = min(world.llm.engine.parts.max_context - max(options.tokens), room)
    fill(world)

    def add(part: str, label: object, make: Callable[[], Row]) -> None:
        if part not in options.parts:
            return
        with world.case(f"{part} {label}"):
            found[part].append(make())
        world.save("passes", {"options": asdict(options)}, found)

    for context in options.contexts:
        for tokens in options.tokens if context <= longest else ():
            add("target", (tokens, context), partial(target_row, world, clock, floor, tokens, context))
    for rows in _fitting(world, options):
        add("drafter", rows, partial(drafter_row, world, clock, options, rows))
    plain: dict[str, list[Answer]] = {}
    if "steps" in options.parts:
        for policy in options.policies:
            with world.case(f"steps {policy}"):
                plain[policy] = walked(world, policy, options.step_tokens)
    at = min(options.attention_context, longest)
    for tokens in options.attention_tokens:
        add("attention", tokens, partial(attention_row, world, clock, floor, tokens, at))
    for policy, answers in plain.items():
        add("steps", policy, partial(steps_row, world, policy, options.step_tokens, answers))


def _fitting(world: World, options: Options) -> Sequence[int]:
    """Numbers of rows whose contexts fit the pool."""
    pool = world.llm.engine.runner.pool.spec
    size, num_pages = pool.page_size, pool.num_pages
    each = -(-(options.draft_context + 32) // size)
    return [rows for rows in options.rows if rows * each <= num_pages]


TINY: dict[str, Any] = {
    "tokens": (1, 4),
    "contexts": (32, 64),
    "attention_tokens": (1, 4),
    "attention_context": 128,
    "rows": (1, 2),
    "draft_context": 40,
    "policies": (BASELINE, "auto"),
    "step_tokens": 8,
    "rounds": 1,
    "in_a_row": 1,
}
SCRIPT = Script("passes", __doc__ or "", Options, TINY, run)

if __name__ == "__main__":
    main(SCRIPT)
