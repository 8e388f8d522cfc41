"""One pass on this CPU: plain torch beside native passes with float32, bfloat16 and int8 weights.

    python -m bench.cpu.passes [--rounds 15] [--context 64 --context 256 --context 1024] [--json PATH]

Milliseconds of the demo target over 1 to 64 tokens behind a context, every token scored, as when guesses are
verified; and of the demo's block drafter with the target's head. All ways take turns in one process, there
and back; medians. Beside them the least that a float32 pass could take here (limits.py). Speed of one engine
is bench.cpu.engine's, that of other runtimes bench.cpu.peers'.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.cpu.limits import Limits, measure_limits
from bench.results import write_result
from wager.bench.results import load_average
from wager.kvcache.pool import KVPool
from wager.nn.batch import BlockBatch, BlockRow, PassBatch, PassRow
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder, DecoderSpec
from wager.nn.models.dflash import DFlash, load_drafter
from wager.nn.native.library import library, wait_for_library
from wager.nn.native.loader import PassOptions
from wager.pairs import DEMO_FOLDER

WAYS = {
    "torch": PassOptions("off"),
    "native float32": PassOptions("on", "full"),
    "native bfloat16": PassOptions("on", "auto"),
    "native int8": PassOptions("on", "int8"),
}
TOKENS = (1, 2, 4, 8, 12, 16, 32, 64)
BLOCKS = (4, 8, 16)
CHUNK = 512
PAGE_SIZE = 32
_IN_A_ROW = (
    3  # passes of one way before the next takes its turn; the first is behind another's, and not counted
)

Runs = Mapping[str, Callable[[], object]]


class Pair(NamedTuple):
    """Target and drafter in one way, each with a pool."""

    target: Decoder
    target_pool: KVPool
    drafter: DFlash
    drafter_pool: KVPool


def load_pair(options: PassOptions, num_pages: int) -> Pair:
    target = load_target(DEMO_FOLDER / "target", options=options)
    drafter = load_drafter(DEMO_FOLDER / "drafter", options=options)
    if options.native != "off" and (target.native_loader.reason or drafter.native_loader.reason):
        sys.exit(
            f"bench: no native passes here: {target.native_loader.reason or drafter.native_loader.reason}"
        )
    return Pair(
        target,
        KVPool(target.pool_spec(num_pages, PAGE_SIZE)),
        drafter,
        KVPool(drafter.pool_spec(num_pages, PAGE_SIZE)),
    )


def token_pass(pair: Pair, token_ids: torch.Tensor, context: int, count: int) -> Callable[[], object]:
    """A target pass over `count` tokens behind the context, as the engine runs it with a block drafter."""
    places = torch.arange(context, context + count)
    row = PassRow(0, count, context, range(pair.target_pool.spec.num_pages))
    batch = PassBatch(token_ids[context : context + count].contiguous(), places, places, [row])
    taps = pair.drafter.spec.target_layer_ids

    def run() -> object:
        return pair.target.logits(pair.target.forward(batch, pair.target_pool, taps).hidden)

    return run


def block_pass(pair: Pair, token_ids: torch.Tensor, context: int, count: int) -> Callable[[], object]:
    """A draft: a block behind the context, scored by the target's head."""
    block = torch.full((count,), pair.drafter.spec.mask_token_id)
    block[0] = token_ids[context]
    row = BlockRow(0, count, context, range(pair.drafter_pool.spec.num_pages), spare=True)
    places = torch.arange(context, context + count)

    def run() -> object:
        batch = BlockBatch(pair.target.embed(block), places, [row])
        return pair.target.logits(pair.drafter.forward(batch, pair.drafter_pool)[1:])

    return run


def lay_context(pair: Pair, token_ids: torch.Tensor, length: int) -> None:
    """Fill both pools up to `length`."""
    taps = pair.drafter.spec.target_layer_ids
    for start in range(0, length, CHUNK):
        places = torch.arange(start, min(start + CHUNK, length))
        row = PassRow(0, len(places), start, range(pair.target_pool.spec.num_pages))
        batch = PassBatch(token_ids[places], places, places, [row])
        features = pair.target.forward(batch, pair.target_pool, taps).features
        assert features is not None
        pair.drafter.ingest(features, places, places, pair.drafter_pool)


def timed(runs: Runs, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taking turns there and back."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in [*runs, *reversed(list(runs))]:
            for turn in range(_IN_A_ROW):
                start = time.perf_counter()
                runs[name]()
                if turn:
                    times[name].append((time.perf_counter() - start) * 1e3)
    return {name: round(statistics.median(found), 4) for name, found in times.items()}


Table = dict[str, dict[str, dict[int, float]]]
"""Milliseconds by way, context and tokens."""


def measure(
    pairs: Mapping[str, Pair],
    make: Callable[[Pair, torch.Tensor, int, int], Callable[[], object]],
    places: Iterable[tuple[int, int]],
    rounds: int,
) -> Table:
    """Times at every (context, tokens) in `places`."""
    table: Table = {name: {} for name in pairs}
    token_ids = random_ids(pairs)
    for context, count in places:
        runs = {name: make(pair, token_ids, context, count) for name, pair in pairs.items()}
        for name, ms in timed(runs, rounds).items():
            table[name].setdefault(str(context), {})[count] = ms
    return table


def random_ids(pairs: Mapping[str, Pair]) -> torch.Tensor:
    pair = next(iter(pairs.values()))
    vocab, length = pair.target.spec.vocab_size, pair.target_pool.num_slots
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(0))


def print_table(title: str, table: Table, counts: Sequence[int]) -> None:
    print(f"\n{title}, milliseconds by tokens")
    print(f"{'':26}" + "".join(f"{count:>8}" for count in counts))
    for name, by_context in table.items():
        for context, by_count in by_context.items():
            cells = "".join(f"{by_count[count]:8.2f}" for count in counts)
            print(f"{name:16} after {context:>4}{cells}")


def show_limits(limits: Limits, spec: DecoderSpec, contexts: Sequence[int]) -> dict[str, Any]:
    """The least time of float32 passes, printed and as the result file has it."""
    print(f"\nat best, {limits.gflop_per_s:.0f} GFLOP/s and {limits.gb_per_s:.1f} GB/s, float32")
    least = {
        str(context): {count: round(limits.least_ms(spec, context, count), 4) for count in TOKENS}
        for context in contexts
    }
    for context, by_count in least.items():
        cells = "".join(f"{by_count[count]:8.2f}" for count in TOKENS)
        print(f"{'':16} after {context:>4}{cells}")
    return {"gflop_per_s": limits.gflop_per_s, "gb_per_s": limits.gb_per_s, "least_ms": least}


def run_all(contexts: Sequence[int], rounds: int) -> dict[str, Any]:
    num_pages = -(-(max(contexts) + max(TOKENS)) // PAGE_SIZE)
    num_pages = max(num_pages, CHUNK // PAGE_SIZE)
    with torch.inference_mode():
        pairs = {name: load_pair(options, num_pages) for name, options in WAYS.items()}
        for pair in pairs.values():
            lay_context(pair, random_ids(pairs), max(contexts))
        grid = [(context, count) for context in contexts for count in TOKENS]
        target = measure(pairs, token_pass, grid, rounds)
        drafter = measure(pairs, block_pass, [(c, n) for c in contexts for n in BLOCKS], rounds)
        chunk = measure(pairs, token_pass, [(0, CHUNK)], max(1, rounds // 5))
        native, spec = library(), pairs["torch"].target.spec
        assert native is not None
        limits = measure_limits(native, spec, 3 * rounds)
    print_table("target", target, TOKENS)
    least = show_limits(limits, spec, contexts)
    print_table("block drafter and head", drafter, BLOCKS)
    print_table("prompt chunk", chunk, (CHUNK,))
    layouts = {name: [str(pair.target.layout), str(pair.drafter.layout)] for name, pair in pairs.items()}
    return {
        "target_ms": target,
        "limits": least,
        "drafter_ms": drafter,
        "chunk_ms": chunk,
        "layouts": layouts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--context", type=int, action="append", default=None)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    wait_for_library()
    torch.set_num_threads(options.threads)
    contexts = options.context or [64, 256, 1024]
    before = load_average()
    data = run_all(contexts, options.rounds)
    config = {"model": "demo", "rounds": options.rounds, "contexts": contexts, "threads": options.threads}
    path = write_result("passes", config, data | {"load_average": [before, load_average()]}, options.json)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
