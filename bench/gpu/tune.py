"""Find the fastest cuts, tiles and launches on this device: attention, products, then whole layers by search.

    python -m bench.gpu.tune [--only attention products layer passes] [--json PATH]

Several processes first compile everything into Triton's cache. Then attention is timed in many configurations
per case and products in some. The search for a layer starts from the library's products and from our own, and
changes one choice at a time. `passes` times whole passes as the runtime runs them. Early launches are checked
to give the same numbers. `--dry` runs a small part on a tiny shape; without a device it needs
TRITON_INTERPRET=1.
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
from bench.gpu.kernel_layer import (
    LayerVariant,
    PassInputs,
    Stream,
    make_heads,
    make_layer,
    make_pass,
    variant_us,
    with_cutting,
)
from bench.gpu.tune_choices import (
    ATTENTION_CASES,
    AttentionConfig,
    Case,
    attention_configs,
    kernel_variant,
    library_variant,
    product_configs,
    variant_options,
)
from bench.gpu.tune_compile import compile_share
from bench.gpu.tune_pass import PASS_SIZES, show_pass, tune_passes
from bench.results import write_result
from wager.nn.kernels.attention import attend
from wager.nn.kernels.device import Launch
from wager.nn.kernels.matmul import ProductConfig, gated_product, product, split_product

Best = dict[Case, list[AttentionConfig]]
_SEARCH_S = 12.0


def attention_us(bench: Bench, inputs: PassInputs, config: AttentionConfig, launch: Launch) -> float:
    heads, tokens = bench.shape.heads, inputs.tables.limits.max_tokens
    queries = bench.random(tokens, heads.num_heads, heads.head_dim)
    out = bench.random(tokens, heads.num_heads * heads.head_dim)
    cut = with_cutting(inputs, bench, config.cutting)
    plan = config.plan(cut.plan)

    def call() -> None:
        for store in cut.stores:
            attend(queries, store, cut.attention, plan, None, out, launch)

    return bench.clock.us(call, len(cut.stores))


def tune_attention(bench: Bench, cases: tuple[Case, ...], best: Best, can_early: bool) -> Iterator[Row]:
    heads, launch = bench.shape.heads, Launch(can_early)
    for case in cases:
        inputs = make_pass(bench, *case)
        configs = {config.label: config for config in attention_configs(case, heads)}
        us = {
            label: time_or_infinity(partial(attention_us, bench, inputs, config, launch))
            for label, config in configs.items()
        }
        best[case] = [configs[label] for label in sorted(us, key=us.__getitem__)[:3]]
        keys = case.rows * (case.context + case.tokens // case.rows)
        num_bytes = 2 * keys * heads.num_kv_heads * heads.head_dim * bench.dtype.itemsize
        yield bench.row("attention", case.tokens, num_bytes, us, rows=case.rows, context=case.context)


def time_or_infinity(time_of: Callable[[], float]) -> float:
    """The measured time, or infinity where the configuration does not fit the device."""
    try:
        return time_of()
    except Exception as error:
        print(f"   left out: {str(error).splitlines()[0][:100]!r}", flush=True)
        return float("inf")


def tune_products(bench: Bench, can_early: bool) -> Iterator[Row]:
    """Products by themselves, so that early launches have no kernel before them to overlap with."""
    launch = Launch(can_early)
    for name, (num_out, inner) in bench.shape.products.items():
        weights = bench.rotated(num_out, inner)
        for tokens in bench.tokens:
            x = bench.random(tokens, inner)
            us = {"library": time_or_infinity(partial(product_us, bench, x, weights, None, launch, False))}
            for config in product_configs(name, tokens):
                label = "x".join(map(str, config))
                us[label] = time_or_infinity(
                    partial(product_us, bench, x, weights, config, launch, name == "gate_up")
                )
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
    """Searches the fastest variant of a layer for one number of tokens, one choice at a time."""

    def __init__(self, bench: Bench, tokens: int, context: int, config: AttentionConfig) -> None:
        self.bench, self.tokens = bench, tokens
        self.layers = [make_layer(bench) for _ in range(4 if bench.device.type == "cuda" else 1)]
        self.turn = make_heads(bench).turn
        inputs = make_pass(bench, 1, tokens, context, config.cutting)
        self.inputs = inputs._replace(plan=config.plan(inputs.plan))
        self.times: dict[LayerVariant, float] = {}

    def us(self, variant: LayerVariant) -> float:
        if variant not in self.times:
            call = partial(variant_us, self.bench, self.tokens, self.layers, self.turn, self.inputs, variant)
            self.times[variant] = time_or_infinity(call)
        return self.times[variant]

    def descend(self, variant: LayerVariant, options: dict[str, list[Any]], limit_s: float) -> LayerVariant:
        """Change one field at a time until a round changes nothing or the time is up."""
        ends, before = time.perf_counter() + limit_s, None
        while variant != before:
            before = variant
            for field, values in options.items():
                if time.perf_counter() > ends:
                    return variant
                tries = [variant._replace(**{field: value}) for value in values]
                variant = min([variant, *tries], key=self.us)
        return variant

    def early_difference(self, variant: LayerVariant) -> float:
        """Relative difference between a variant with and without early launches; anything but 0 is a race."""
        ends = []
        for pdl in (False, True):
            torch.manual_seed(1)
            stream = Stream(self.bench, self.tokens, self.inputs)
            for weights, store in zip(self.layers, self.inputs.stores * 4, strict=False):
                stream.layer(weights, weights.qkv, self.turn, store, variant._replace(pdl=pdl))
            ends.append(stream.residual.double())
        return float((ends[0] - ends[1]).norm() / ends[0].norm())


def tune_layer(bench: Bench, tokens: int, best: Best, can_early: bool) -> Row:
    context, heads = bench.contexts[0], bench.shape.heads
    config = best.get(
        Case(1, tokens, context), [AttentionConfig(tile_rows=64 if tokens * heads.group > 16 else 16)]
    )[0]
    search = Search(bench, tokens, context, config)
    options = variant_options(tokens, can_early)
    if bench.device.type != "cuda":
        options = {field: values[:2] for field, values in options.items()}
    starts = {"library": library_variant(can_early), "own": kernel_variant(tokens, can_early)}
    ends = {name: search.descend(variant, options, _SEARCH_S) for name, variant in starts.items()}
    us = {"library, plain": search.us(LayerVariant())}
    for variant, took in sorted(search.times.items(), key=lambda pair: pair[1])[:8]:
        us[variant_label(variant)] = took
    for name, variant in ends.items():
        us[f"from {name}: {variant_label(variant)}"] = search.us(variant)
    early_difference = (
        {name: search.early_difference(variant) for name, variant in ends.items()} if can_early else {}
    )
    quick = bench._replace(clock=Clock(bench.device, 12.0, 9))
    again = Search(quick, tokens, context, config)
    for name, variant in (("library, plain", LayerVariant()), *ends.items()):
        us[f"again: {name}"] = again.us(variant)
    one = search.layers[0]
    num_bytes = sum(weight.nbytes for weight in (one.qkv, one.out, one.gate_up, one.down))
    num_bytes += 2 * (context + tokens) * heads.num_kv_heads * heads.head_dim * bench.dtype.itemsize
    return bench.row("layer", tokens, num_bytes, us, context=context, early_parts_by=early_difference)


def variant_label(variant: LayerVariant) -> str:
    """A variant as text: product configurations (- is the library's), early launches, MiB prefetched."""
    configs = ["-" if config is None else "x".join(map(str, config)) for config in variant[:4]]
    prefetch = "/".join(f"{one:g}" for one in variant[5:9])
    return f"{' '.join(configs)} {'early' if variant.pdl else 'plain'} ahead {prefetch} in {variant.pieces}"


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
                save()  # a run that is cut short leaves what it has
        except Exception as error:  # a section that fails does not stop the others
            rows.append({"kernel": name, "error": repr(error)})
            print(f"{name} failed: {error!r}", flush=True)
        print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)
    save()
    print(f"-- all: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
