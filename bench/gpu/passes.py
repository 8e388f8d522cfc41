"""Time of one pass by tokens and context, through the engine's own runner, compared with the memory floor.

    python -m bench.gpu.passes [--tokens 1,16,64] [--contexts 1024,16384] [--parts target,attention]

`target`: one row of a pending token and a tree over a filled cache, every token scored; passes run back to
back and are timed by device events (medians). `attention`: the attention kernels of such a pass, compared
with reading their keys and values once. `drafter`: a whole draft by number of rows, from new features to
candidates on the host. `steps`: whole steps of the engine at batch 1, and the share of their time in which
the device worked.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from bench.gpu.floor import StreamedBytes, drafter_bytes, target_bytes
from bench.gpu.grown import REFERENCE_TB_PER_S, BenchSession
from bench.gpu.profiled import profile_call
from bench.gpu.script import Script, main
from bench.gpu.steps import Row, steps_row, timed_answers
from wager.bench.plan import BASELINE
from wager.bench.records import Answer
from wager.draft.base import Drafter, DraftRow, KeptTokens
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
    """Times calls back to back, as medians over rounds of several calls."""

    session: BenchSession
    rounds: int
    in_a_row: int

    def ms(self, call: Callable[[], object]) -> float:
        """Milliseconds of one call with the next one queued: device time, where it exceeds host time."""
        for _ in range(3):
            call()
        return statistics.median(self._round(call) for _ in range(self.rounds)) / self.in_a_row

    def _round(self, call: Callable[[], object]) -> float:
        self.session.synchronize()
        if not self.session.is_cuda:
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
            self.session.synchronize()
            start = time.perf_counter()
            call()
            self.session.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times[3:])

    def host_ms(self, call: Callable[[], object]) -> float:
        """Milliseconds until a call returns to the host while the device is idle."""
        times = []
        for _ in range(3 + self.rounds * 2):
            self.session.synchronize()
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        self.session.synchronize()
        return statistics.median(times[3:])


MOST_NODES = 128
"""Largest tree of one pass on a device."""


def bushy(num_nodes: int) -> Tree:
    """A tree of width two, so that it is deep and has siblings to mask."""
    tokens = [_ROOT_TOKEN + 1 + node % 50 for node in range(num_nodes)]
    return Tree.of(tokens, [max(node - 2, -1) for node in range(num_nodes)])


def pass_rows(tokens: int, context: int, page_size: int) -> list[RunRow]:
    """One row of `tokens` tokens after a context, on the pool's first pages: a root and a tree.

    Tokens beyond the largest tree are pending tokens.
    """
    num_pages, num_nodes = -(-(context + tokens) // page_size), min(tokens - 1, MOST_NODES)
    return [RunRow([_ROOT_TOKEN] * (tokens - num_nodes), bushy(num_nodes), context, range(num_pages))]


def pass_call(runner: TargetRunner, tokens: int, context: int) -> Callable[[], object]:
    """The pass to be timed, as the engine runs it."""
    rows = pass_rows(tokens, context, runner.pool.spec.page_size)
    return lambda: runner.run(rows)


def fill(session: BenchSession) -> None:
    """Fill every slot of all pools with random numbers, so that no pass reads leftovers."""
    engine = session.llm.engine
    pools = [
        engine.runner.pool,
        *(pool for drafter in engine.drafters.values() for pool in drafter.pools()),
    ]
    with torch.inference_mode():
        for pool in pools:
            pool.store.normal_()


def target_row(session: BenchSession, clock: Clock, floor: StreamedBytes, tokens: int, context: int) -> Row:
    call = pass_call(session.llm.engine.runner, tokens, context)
    ms = clock.ms(call)
    limit = floor.limit_ms(context + tokens, session.bytes_per_s)
    stated = floor.limit_ms(context + tokens, REFERENCE_TB_PER_S * 1e12)
    row: Row = {"tokens": tokens, "context": context, "ms": ms, "host_ms": clock.host_ms(call)}
    row |= {"floor_ms": limit, "over_floor": ms / limit, "over_reference_floor": ms / stated}
    session.say(
        f"{tokens:4d} tokens at context {context:6d}: {ms:8.3f} ms ({ms / limit:.3f} of the floor, "
        f"{ms / stated:.3f} of the reference's), host {row['host_ms']:.3f}"
    )
    return row


def attention_row(
    session: BenchSession, clock: Clock, floor: StreamedBytes, tokens: int, context: int
) -> Row:
    runner = session.llm.engine.runner
    call, short = pass_call(runner, tokens, context), pass_call(runner, tokens, 64)
    clock.ms(call)
    found = profile_call(call, 4)
    read_ms = (context + tokens) * floor.kv_bytes / session.bytes_per_s * 1e3
    grown_ms = clock.ms(call) - clock.ms(short)
    stated_ms = (context + tokens) * floor.kv_bytes / REFERENCE_TB_PER_S * 1e-9
    row: Row = {"tokens": tokens, "context": context, "read_ms": read_ms, "reference_read_ms": stated_ms}
    row |= {"more_than_behind_64_ms": grown_ms, "over_read": grown_ms / read_ms}
    # NOTE: kernels that are launched early wait within their measured time, so the sum is too large.
    row |= {"kernels_ms": found.attention_ms, "largest_kernels_ms": found.largest()}
    alone_ms = attention_alone_ms(session, clock, tokens, context)
    if alone_ms is not None:
        row |= {"alone_ms": alone_ms, "alone_over_read": alone_ms / read_ms}
        row["alone_over_reference_read"] = alone_ms / stated_ms
    session.say(
        f"attention of {tokens} tokens at context {context}: {grown_ms:.3f} ms more than at 64, "
        f"its kernels by themselves {alone_ms or 0.0:.3f}; reading takes {read_ms:.3f}, "
        f"at the reference's rate {stated_ms:.3f}"
    )
    return row


def attention_alone_ms(session: BenchSession, clock: Clock, tokens: int, context: int) -> float | None:
    """All layers' attention of a pass in one graph; None without kernels."""
    runner = session.llm.engine.runner
    if not runner.has_kernels or not session.is_cuda:
        return None
    from wager.nn.kernels.attention import attend
    from wager.target.graphs import GraphRunner

    assert isinstance(runner, GraphRunner)
    pass_call(runner, tokens, context)()
    plan, tables = runner.plan_of(tokens, 1, context), runner.attention_tables
    heads, pool = runner.decoder.spec.heads, runner.pool
    queries = torch.randn(tokens, heads.num_heads, heads.head_dim, device=session.device).to(pool.store.dtype)
    cut, launch = tables.first(tokens, plan.tiling.max_items), runner.device_info.launch

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
    """Rows of a block drafter with filled contexts, and a draft for all of them."""

    def __init__(
        self, session: BenchSession, drafter: Drafter, num_rows: int, context: int, new_tokens: int
    ) -> None:
        self.drafter, self.noise, self.new = drafter, session.llm.engine.parts.noise, new_tokens
        runner = session.llm.engine.runner
        size = runner.pool.spec.page_size
        self.start = context - new_tokens
        each = -(-(context + 32) // size)
        pages = [range(row * each, (row + 1) * each) for row in range(num_rows)]
        tokens = [_ROOT_TOKEN] * (context + 1)
        self.rows = [DraftRow(f"draft-{row}", tokens, 1, own) for row, own in enumerate(pages)]
        width = len(runner.feature_layers) * runner.hidden_size
        self.features = torch.randn(new_tokens, width, device=session.device).to(session.plan.dtype)

    def prepare(self) -> None:
        for row in self.rows:
            self.drafter.adopt(row.request_id, self.start)
        self.drafter.keep(
            [KeptTokens(row.request_id, self.start, self.features, row.pages) for row in self.rows]
        )

    def draft(self) -> None:
        proposals = self.drafter.propose(self.rows, self.noise)
        assert all(proposal is not None for proposal in proposals)

    def end(self) -> None:
        for row in self.rows:
            self.drafter.forget(row.request_id)


def drafter_row(session: BenchSession, clock: Clock, options: Options, num_rows: int) -> Row:
    drafter = session.llm.engine.drafters["block"]
    drafting = Drafting(session, drafter, num_rows, options.draft_context, options.new_tokens)
    try:
        ms = clock.alone_ms(drafting.draft, drafting.prepare)
    finally:
        drafting.end()
    floor = drafter_bytes(session.plan)
    limit = (
        (floor.weight_bytes + num_rows * options.draft_context * floor.kv_bytes) / session.bytes_per_s * 1e3
    )
    at = f"{num_rows:3d} rows at context {options.draft_context}"
    session.say(f"draft of {at}: {ms:7.3f} ms ({ms / limit:.2f} of the floor)")
    return {
        "rows": num_rows,
        "context": options.draft_context,
        "ms": ms,
        "floor_ms": limit,
        "over_floor": ms / limit,
    }


def run(session: BenchSession, options: Options) -> None:
    clock, floor = Clock(session, options.rounds, options.in_a_row), target_bytes(session.plan)
    found: dict[str, list[Row]] = {part: [] for part in options.parts}
    room = session.llm.engine.runner.pool.num_slots - max(options.tokens)
    longest = min(session.llm.engine.parts.max_context - max(options.tokens), room)
    fill(session)

    def add(part: str, label: object, make: Callable[[], Row]) -> None:
        if part not in options.parts:
            return
        with session.case(f"{part} {label}"):
            found[part].append(make())
        session.save("passes", {"options": asdict(options)}, found)

    for context in options.contexts:
        for tokens in options.tokens if context <= longest else ():
            add("target", (tokens, context), partial(target_row, session, clock, floor, tokens, context))
    for rows in _fitting(session, options):
        add("drafter", rows, partial(drafter_row, session, clock, options, rows))
    plain: dict[str, list[Answer]] = {}
    if "steps" in options.parts:
        for policy in options.policies:
            with session.case(f"steps {policy}"):
                plain[policy] = timed_answers(session, policy, options.step_tokens)
    at = min(options.attention_context, longest)
    for tokens in options.attention_tokens:
        add("attention", tokens, partial(attention_row, session, clock, floor, tokens, at))
    for policy, answers in plain.items():
        add("steps", policy, partial(steps_row, session, policy, options.step_tokens, answers))


def _fitting(session: BenchSession, options: Options) -> Sequence[int]:
    """Numbers of rows whose contexts fit into the pool."""
    pool = session.llm.engine.runner.pool.spec
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
