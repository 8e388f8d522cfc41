"""Which cuts, tiles and launches are quickest here: attention, products, then whole layers by search.

    python -m bench.gpu.tune [--only attention products layer passes] [--json PATH]

Everything is compiled first, by several processes into Triton's cache. Then attention is timed in many
configurations per case and products in some; a layer is searched from two ends, the library's products and
our own, changing one choice at a time. `passes` times whole passes as the runtime takes them. What launches
early is checked to give the same numbers as what does not.
`--dry` runs a little of it on a tiny shape, without a device if need be (then with TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from bench.gpu.kernel_clock import TINY, Bench, Clock, Row, Shape, read_rate
from bench.gpu.kernel_layer import Pass, Stream, Way, make_heads, make_layer, make_pass, recut, way_us
from bench.gpu.tune_choices import (
    ATTENTION_CASES,
    Attending,
    Case,
    attendings,
    first_way,
    own_way,
    product_configs,
    way_options,
)
from bench.gpu.tune_compile import compile_share
from bench.gpu.tune_pass import PASS_SIZES, show_pass, tune_passes
from bench.results import write_result
from wager.nn.kernels.attention import attend
from wager.nn.kernels.device import Launch
from wager.nn.kernels.matmul import ProductConfig, gated_product, product, split_product

Best = dict[Case, list[Attending]]
_SEARCH_S = 12.0


def attention_us(bench: Bench, world: Pass, how: Attending, launch: Launch) -> float:
    heads, tokens = bench.shape.heads, world.tables.limits.max_tokens
    queries = bench.random(tokens, heads.num_heads, heads.head_dim)
    out = bench.random(tokens, heads.num_heads * heads.head_dim)
    cut = recut(world, bench, how.cutting)
    plan = how.plan(cut.plan)

    def call() -> None:
        for store in cut.stores:
            attend(queries, store, cut.attention, plan, None, out, launch)

    return bench.clock.us(call, len(cut.stores))


def tune_attention(bench: Bench, cases: tuple[Case, ...], best: Best, can_early: bool) -> Iterator[Row]:
    heads, launch = bench.shape.heads, Launch(can_early)
    for case in cases:
        world = make_pass(bench, *case)
        hows = {how.label: how for how in attendings(case, heads)}
        us = {label: tried(partial(attention_us, bench, world, how, launch)) for label, how in hows.items()}
        best[case] = [hows[label] for label in sorted(us, key=us.__getitem__)[:3]]
        keys = case.rows * (case.context + case.tokens // case.rows)
        num_bytes = 2 * keys * heads.num_kv_heads * heads.head_dim * bench.dtype.itemsize
        yield bench.row("attention", case.tokens, num_bytes, us, rows=case.rows, context=case.context)


def tried(time_of: Callable[[], float]) -> float:
    """A time, or infinity where the configuration does not fit the device."""
    try:
        return time_of()
    except Exception as error:
        print(f"   left out: {str(error).splitlines()[0][:100]!r}", flush=True)
        return float("inf")


def tune_products(bench: Bench, can_early: bool) -> Iterator[Row]:
    """Products alone, one behind another: without a kernel in front whose end an early launch could use."""
    launch = Launch(can_early)
    for name, (num_out, inner) in bench.shape.products.items():
        weights = bench.rotated(num_out, inner)
        for tokens in bench.tokens:
            x = bench.random(tokens, inner)
            us = {"library": tried(partial(product_us, bench, x, weights, None, launch, False))}
            for config in product_configs(name, tokens):
                label = "x".join(map(str, config))
                us[label] = tried(partial(product_us, bench, x, weights, config, launch, name == "gate_up"))
            yield bench.row(f"product {name}", tokens, weights[0].nbytes, us)


def product_us(
    bench: Bench, x: Tensor, weights: list[Tensor], config: ProductConfig | None, launch: Launch,
    is_gated: bool,
) -> float:  # fmt: skip
    def run() -> None:
        for weight in weights:
            if config is None:
                F.linear(x, weight)
            elif is_gated:
                gated_product(x, weight, config, launch)
            elif config.splits > 1:
                split_product(x, weight, config, launch)
            else:
                product(x, weight, None, config, None, launch)

    return bench.clock.us(run, len(weights))


class Search:
    """The quickest way of a layer for one number of tokens, one choice at a time."""

    def __init__(self, bench: Bench, tokens: int, context: int, how: Attending) -> None:
        self.bench, self.tokens = bench, tokens
        self.layers = [make_layer(bench) for _ in range(4 if bench.device.type == "cuda" else 1)]
        self.turn = make_heads(bench).turn
        world = make_pass(bench, 1, tokens, context, how.cutting)
        self.world = world._replace(plan=how.plan(world.plan))
        self.times: dict[Way, float] = {}

    def us(self, way: Way) -> float:
        if way not in self.times:
            call = partial(way_us, self.bench, self.tokens, self.layers, self.turn, self.world, way)
            self.times[way] = tried(call)
        return self.times[way]

    def descend(self, way: Way, options: dict[str, list[Any]], limit_s: float) -> Way:
        """Change one field at a time for as long as a round changes any, and time is left."""
        ends, before = time.perf_counter() + limit_s, None
        while way != before:
            before = way
            for field, values in options.items():
                if time.perf_counter() > ends:
                    return way
                tries = [way._replace(**{field: value}) for value in values]
                way = min([way, *tries], key=self.us)
        return way

    def parting(self, way: Way) -> float:
        """How far a way that launches early parts from the same way without: anything but 0 is a race."""
        ends = []
        for early in (False, True):
            torch.manual_seed(1)
            stream = Stream(self.bench, self.tokens, self.world)
            for weights, store in zip(self.layers, self.world.stores * 4, strict=False):
                stream.layer(weights, weights.qkv, self.turn, store, way._replace(early=early))
            ends.append(stream.residual.double())
        return float((ends[0] - ends[1]).norm() / ends[0].norm())


def tune_layer(bench: Bench, tokens: int, best: Best, can_early: bool) -> Row:
    context, heads = bench.contexts[0], bench.shape.heads
    how = best.get(Case(1, tokens, context), [Attending(lines=64 if tokens * heads.group > 16 else 16)])[0]
    search = Search(bench, tokens, context, how)
    options = way_options(tokens, can_early)
    if bench.device.type != "cuda":
        options = {field: values[:2] for field, values in options.items()}
    starts = {"library": first_way(can_early), "own": own_way(tokens, can_early)}
    ends = {name: search.descend(way, options, _SEARCH_S) for name, way in starts.items()}
    us = {"library, plain": search.us(Way())}
    for way, took in sorted(search.times.items(), key=lambda pair: pair[1])[:8]:
        us[way_label(way)] = took
    for name, way in ends.items():
        us[f"from {name}: {way_label(way)}"] = search.us(way)
    parting = {name: search.parting(way) for name, way in ends.items()} if can_early else {}
    quick = bench._replace(clock=Clock(bench.device, 12.0, 9))
    again = Search(quick, tokens, context, how)
    for name, way in (("library, plain", Way()), *ends.items()):
        us[f"again: {name}"] = again.us(way)
    one = search.layers[0]
    num_bytes = sum(weight.nbytes for weight in (one.qkv, one.out, one.gate_up, one.down))
    num_bytes += 2 * (context + tokens) * heads.num_kv_heads * heads.head_dim * bench.dtype.itemsize
    return bench.row("layer", tokens, num_bytes, us, context=context, early_parts_by=parting)


def way_label(way: Way) -> str:
    """The products' configurations (- for the library's), early, MiB ahead of each product."""
    configs = ["-" if config is None else "x".join(map(str, config)) for config in way[:4]]
    ahead = "/".join(f"{one:g}" for one in way[5:9])
    return f"{' '.join(configs)} {'early' if way.early else 'plain'} ahead {ahead} in {way.pieces}"


def show(row: Row, most: int) -> None:
    print(f"{row['kernel']} {row['tokens']} tok, rows {row.get('rows', 1)}, context {row.get('context', 0)}: "
          f"floor {row['floor_us']:.1f} us")  # fmt: skip
    ordered = sorted(row["us"], key=row["us"].__getitem__)
    kept = ordered[:most] + [name for name in ordered[most:] if "library" in name or "again" in name]
    for name in kept:
        print(f"   {row['us'][name]:8.2f}  {name}")
    if "early_parts_by" in row:
        print(f"   early parts from plain by {row['early_parts_by']}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["attention", "products", "layer"])
    parser.add_argument("--dry", action="store_true", help="a tiny shape, a few configurations")
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def compile_all(only: list[str], workers: int) -> None:
    began = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        counts = list(pool.map(compile_share, range(workers), [workers] * workers, [only] * workers))
    print(f"-- compiled {sum(counts)} kernels: {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    options, began = parse(), time.perf_counter()
    torch.manual_seed(0)
    has_device = torch.cuda.is_available()
    device = torch.device("cuda" if has_device else "cpu")
    assert has_device or options.dry, "no CUDA device; --dry runs without one"
    can_early = has_device and torch.cuda.get_device_capability() >= (9, 0)
    if has_device:
        compile_all(options.only, options.workers)
    shape, clock = (TINY if options.dry else Shape()), Clock(device, 3.0, 3)
    rate = read_rate(shape, clock)
    print(f"reading at {rate * 1e-6:.2f} TB/s", flush=True)
    tokens = (1, 4) if options.dry else (1, 16, 64)
    bench = Bench(shape, clock, tokens, (40,) if options.dry else (1024, 16_384), rate)
    cases = (Case(1, 4, 40), Case(2, 2, 40)) if options.dry else ATTENTION_CASES
    sizes = ((1, 40), (8, 1024)) if options.dry else PASS_SIZES
    best: Best = {}
    rows: list[Row] = []

    def sections() -> Iterator[tuple[str, Iterator[Row]]]:
        yield "attention", tune_attention(bench, cases, best, can_early)
        yield "products", tune_products(bench, can_early)
        yield "layer", (tune_layer(bench, count, best, can_early) for count in tokens)
        yield "passes", tune_passes(bench, sizes)

    def save() -> None:
        if options.json is not None or not options.dry:
            config = {"triton": triton.__version__, "shape": shape._asdict(), "read_tb_per_s": rate * 1e-6}
            write_result("gpu_tune", config, rows, options.json)

    for name, section in sections():
        start = time.perf_counter()
        try:
            for row in section if name in options.only else ():
                rows.append(row)
                show_pass(row) if name == "passes" else show(row, 6)
                save()  # a run that is cut short keeps what it has
        except Exception as error:  # one section that fails must not cost the others
            rows.append({"kernel": name, "error": repr(error)})
            print(f"{name} failed: {error!r}", flush=True)
        print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)
    save()
    print(f"-- all: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
