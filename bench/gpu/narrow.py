"""Products with weights in 8 and 4 bits at the shape of an 8B model, beside the library's in bfloat16.

    python -m bench.gpu.narrow [--only NAME ...] [--tokens N ...] [--json PATH]

Every kernel is compiled first, by several processes into Triton's cache; then each kind of weight is timed in
some configurations, over weights that rotate through more memory than the cache holds. The floor is the time
to read a kind's bytes. The last lines add the products of a whole pass. `many` finds out from how many tokens
on it is quicker to widen the weights for the library. `--dry` runs a little of it on a tiny shape, without a
device if need be (then with TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from bench.gpu.kernel_clock import TINY, Bench, Clock, Row, Shape, read_rate
from bench.results import write_result
from wager.nn.kernels.gate import gate, gate_reference
from wager.nn.kernels.matmul import ProductSpace, product_space
from wager.nn.kernels.narrow import (
    GATED_CONFIGS,
    MAX_TOKENS,
    NARROW_CONFIGS,
    NarrowConfig,
    narrow_gated_product,
    narrow_product,
    narrow_split_product,
    widened_product,
)
from wager.nn.kernels.narrow_weights import NarrowWeight, dequantised

SWEEP = (
    *NARROW_CONFIGS,
    NarrowConfig(32, 8, 2, 6),
    NarrowConfig(64, 1, 2, 6),
    NarrowConfig(64, 2, 4, 6),
    NarrowConfig(64, 4, 4, 9),
    NarrowConfig(64, 4, 2, 6),
    NarrowConfig(128, 2, 4, 6),
)
GATED_SWEEP = (*GATED_CONFIGS, NarrowConfig(16, 1, 2, 6), NarrowConfig(32, 1, 4, 9))
MANY = (NarrowConfig(64, 1, 4, 5), NarrowConfig(64, 4, 4, 5), NarrowConfig(128, 4, 4, 4))
_PROCESSES = 12


class Kind(NamedTuple):
    """A way to keep weights."""

    bits: int
    group: int

    def __str__(self) -> str:
        return f"int{self.bits} by {self.group}"

    def nbytes(self, num_out: int, inner: int) -> float:
        return num_out * inner * (self.bits + (32 if self.bits == 8 else 16) / self.group) / 8


KINDS = (Kind(8, 128), Kind(4, 64), Kind(4, 128))


def made_up(bench: Bench, num_out: int, inner: int, kind: Kind) -> NarrowWeight:
    """A weight of random bits: its values do not matter here."""
    chunks = -(-inner // (kind.group * 8 // kind.bits))
    size = (chunks, num_out, kind.group // 2)
    packed = torch.randint(-32_768, 32_768, size, dtype=torch.int16, device=bench.device)
    kept = torch.float32 if kind.bits == 8 else torch.bfloat16
    scales = torch.rand((chunks, num_out, 8 // kind.bits), device=bench.device).add_(0.5).mul_(1e-3).to(kept)
    return NarrowWeight(packed, scales, kind.bits, kind.group, inner)


def rotated(bench: Bench, num_out: int, inner: int, kind: Kind) -> list[NarrowWeight]:
    one = made_up(bench, num_out, inner, kind)
    copies = max(1, min(64, -(-bench.shape.rotate_bytes // one.nbytes)))
    return [one, *(made_up(bench, num_out, inner, kind) for _ in range(copies - 1))]


class Weights(NamedTuple):
    """One product's weights in every kind, as many of each as are larger than the cache."""

    name: str
    size: tuple[int, int]
    wide: list[Tensor]
    narrow: dict[Kind, list[NarrowWeight]]


def weights_of(bench: Bench, name: str, kinds: Sequence[Kind]) -> Weights:
    size = bench.shape.products[name]
    return Weights(name, size, bench.rotated(*size), {kind: rotated(bench, *size, kind) for kind in kinds})


def over(bench: Bench, weights: Sequence[Tensor | NarrowWeight], call: Callable[..., object]) -> float:
    """Microseconds of one of the calls over all weights in turn."""

    def run() -> None:
        for weight in weights:
            call(weight)

    return bench.clock.us(run, len(weights))


Calls = Mapping[str, Callable[..., object]]


def tried(bench: Bench, weights: list[NarrowWeight], calls: Calls) -> Row:
    """Microseconds by configuration; one that cannot be costs the others nothing."""
    us: Row = {}
    for label, call in calls.items():
        try:
            us[label] = over(bench, weights, call)
        except Exception as error:
            print(f"  {label} failed: {error!r}"[:300], flush=True)
    return us


def row_of(
    bench: Bench, weights: Weights, case: tuple[str, int], library: Callable[..., object], calls: Calls
) -> Row:
    """A product's name and number of tokens; the library's time, and of every kind all times and the best."""
    name, tokens = case
    row: Row = {"product": name, "tokens": tokens, "ways": {}}
    row["library_us"] = over(bench, weights.wide, library)
    row["floor_us"] = weights.wide[0].nbytes / bench.bytes_per_us
    for kind, narrow in weights.narrow.items():
        row["ways"][str(kind)] = way_of(bench, kind, weights.size, tried(bench, narrow, calls))
    return row


def way_of(bench: Bench, kind: Kind, size: tuple[int, int], us: Row) -> Row:
    best = min(us, key=us.__getitem__) if us else None
    floor = kind.nbytes(*size) / bench.bytes_per_us
    return {"floor_us": floor, "best": best, "best_us": us[best] if best else None, "us": us}


def label_of(config: NarrowConfig) -> str:
    return "x".join(str(one) for one in config)


def labelled(configs: Iterable[NarrowConfig], call: Callable[[NarrowConfig], Callable[..., object]]) -> Calls:
    return {label_of(config): call(config) for config in configs}


def _product(x: Tensor, space: ProductSpace | None, config: NarrowConfig, weight: NarrowWeight) -> Tensor:
    return narrow_product(x, weight, None, config, space)


def _parts(x: Tensor, config: NarrowConfig, weight: NarrowWeight) -> Tensor:
    return narrow_split_product(x, weight, config)


def _gated(x: Tensor, config: NarrowConfig, weight: NarrowWeight) -> Tensor:
    return narrow_gated_product(x, weight, config)


def product_rows(bench: Bench, weights: Weights, tokens: int) -> Iterator[Row]:
    """The plain product; the parts of it that a norm adds up; with SiLU(gate) * up behind it."""
    name, x = weights.name, bench.random(tokens, weights.size[1])
    space = product_space(tokens, weights.size[0], bench.device)
    configs = [config for config in SWEEP if name != "head" or config.splits == 1]
    linear = partial(F.linear, x)
    calls = labelled(configs, lambda config: partial(_product, x, space, config))
    yield row_of(bench, weights, (name, tokens), linear, calls)
    if name in ("out", "down"):
        split = [config for config in configs if config.splits > 1]
        calls = labelled(split, lambda config: partial(_parts, x, config))
        yield row_of(bench, weights, (f"{name} in parts", tokens), linear, calls)
    if name == "gate_up":
        calls = labelled(GATED_SWEEP, lambda config: partial(_gated, x, config))
        yield row_of(bench, weights, ("gated", tokens), lambda weight: gate(linear(weight)), calls)


def many_row(bench: Bench, weights: Weights, tokens: int) -> Row:
    """Many tokens: our product, as long as it can, against widening the weights for the library's."""
    x = bench.random(tokens, weights.size[1])
    calls: dict[str, Callable[..., object]] = {"widened": partial(widened_product, x)}
    if tokens <= MAX_TOKENS:
        calls |= labelled(MANY, lambda config: partial(_product, x, None, config))
    return row_of(bench, weights, (f"{weights.name} of many", tokens), partial(F.linear, x), calls)


def rows_of(bench: Bench, name: str, many: Sequence[int]) -> Iterator[Row]:
    weights = weights_of(bench, name, KINDS)
    for tokens in bench.tokens:
        yield from product_rows(bench, weights, tokens)
    if name in ("qkv", "gate_up"):
        yield from (many_row(bench, weights, tokens) for tokens in many)


def check(bench: Bench, kind: Kind) -> str:
    """That the products timed are products: a few against float64, with their errors."""
    num_out, inner = bench.shape.products["qkv"]
    weight = made_up(bench, num_out, inner, kind)
    errors = []
    for tokens in (1, 64):
        x = bench.random(tokens, inner)
        want = F.linear(x.double(), dequantised(weight, torch.float64))
        pairs = [(narrow_product(x, weight, None, one), want) for one in NARROW_CONFIGS]
        pairs += [(narrow_gated_product(x, weight, one), gate_reference(want)) for one in GATED_CONFIGS]
        pairs.append((widened_product(x, weight), want))
        errors += [float((got.double() - true).norm() / true.norm()) for got, true in pairs]
    return f"{kind}: errors of {len(errors)} products up to {max(errors):.2e}"


def compile_share(index: int, count: int, most: int) -> int:
    """One process's share of the kernels, by a first call with small weights; returns how many went well."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench, done = Bench(Shape(), Clock(device), (1,), (), 1.0), 0
    jobs = [
        job
        for kind in KINDS
        for tokens in (1, 64, 128)
        if tokens <= most
        for job in jobs_of(bench, kind, tokens)
    ]
    with torch.inference_mode():
        for job in jobs[index::count]:
            try:
                job()
                done += 1
            except Exception:  # met again, and said, when it is timed
                continue
        if device.type == "cuda":
            torch.cuda.synchronize()
    return done


def jobs_of(bench: Bench, kind: Kind, tokens: int) -> Iterator[Callable[[], object]]:
    weight, x = made_up(bench, 512, 1024, kind), bench.random(tokens, 1024)
    for config in SWEEP if tokens <= 64 else MANY:
        yield partial(_product, x, None, config, weight)
        if config.splits > 1:
            yield partial(_parts, x, config, weight)
    for config in GATED_SWEEP if tokens <= 64 else ():
        yield partial(_gated, x, config, weight)


def compile_all(most: int) -> None:
    began, count = time.perf_counter(), min(_PROCESSES, os.cpu_count() or 1)
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        done = sum(pool.map(partial(compile_share, count=count, most=most), range(count)))
    print(f"-- {done} kernels compiled in {time.perf_counter() - began:.1f} s", flush=True)


def shown(row: Row) -> str:
    """A line of the table: the library's time, then every kind's floor, best time and configuration."""
    line = f"{row['product']:16s} {row['tokens']:4d} tok"
    line += f" | bf16 {row['floor_us']:6.1f} < {row['library_us']:6.1f}"
    for kind, way in row["ways"].items():
        if way["best"] is not None:
            line += f" | {kind} {way['floor_us']:6.1f} < {way['best_us']:6.1f} {way['best']}"
    return line


def sums(bench: Bench, rows: list[Row]) -> Iterator[Row]:
    """The products of a whole pass: the layers' and the head, each in its best way, and what a layer's
    take where down and out are left in parts and the gate is fused.
    """
    named = {(row["product"], row["tokens"]): row for row in rows if "ways" in row}
    count = bench.shape.num_layers
    times = {"qkv": count, "out in parts": count, "gated": count, "down in parts": count, "head": 1}
    for tokens in bench.tokens:
        if all((name, tokens) in named for name in times):
            own = {name: named[name, tokens] for name in times}
            ways = {
                str(kind): {
                    what: sum(times[name] * row["ways"][str(kind)][what] for name, row in own.items()) / 1e3
                    for what in ("floor_us", "best_us")
                }
                for kind in KINDS
            }
            library, floor = (
                sum(times[name] * row[what] for name, row in own.items()) / 1e3
                for what in ("library_us", "floor_us")
            )
            yield {"pass_tokens": tokens, "library_ms": library, "floor_ms": floor, "ways_ms": ways}


def shown_sum(row: Row) -> str:
    line = f"products of a pass {row['pass_tokens']:3d} tok, ms"
    line += f" | bf16 {row['floor_ms']:.2f} < {row['library_ms']:.2f}"
    for kind, way in row["ways_ms"].items():
        line += f" | {kind} {way['floor_us']:.2f} < {way['best_us']:.2f}"
    return line


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(Shape().products), default=list(Shape().products))
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--many", nargs="*", type=int, default=[128, 256])
    parser.add_argument("--dry", action="store_true", help="a tiny shape, once")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    has_device = torch.cuda.is_available()
    assert has_device or options.dry, "no CUDA device; --dry runs without one"
    if has_device:
        compile_all(max([*options.tokens, *options.many]))
    clock = Clock(torch.device("cuda" if has_device else "cpu"), target_ms=2.0, rounds=3)
    shape = TINY if options.dry else Shape()
    rate = read_rate(shape, clock)
    print(
        f"reading at {rate * 1e-6:.2f} TB/s; microseconds, floor < time, and rows x splits x warps x stages"
    )
    bench = Bench(shape, clock, tuple(options.tokens), (), rate)
    rows: list[Row] = []
    for kind in KINDS:
        print(check(bench, kind), flush=True)
    for name in options.only:
        start = time.perf_counter()
        try:
            for row in rows_of(bench, name, options.many):
                rows.append(row)
                print(shown(row), flush=True)
        except Exception as error:  # one product that fails must not cost the others
            rows.append({"product": name, "error": repr(error)})
            print(f"{name} failed: {error!r}"[:500], flush=True)
        print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)
    for row in list(sums(bench, rows)):
        rows.append(row)
        print(shown_sum(row))
    config = {
        "device": torch.cuda.get_device_name() if has_device else "interpreter",
        "triton": triton.__version__,
        "shape": shape._asdict(),
        "tokens": options.tokens,
        "read_tb_per_s": rate * 1e-6,
    }
    if options.json is not None or not options.dry:
        print(f"written to {write_result('gpu_narrow', config, rows, options.json).name}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
