"""Products with 8-bit and 4-bit weights at the shape of an 8B model, compared with the library's in bfloat16.

    python -m bench.gpu.narrow [--only NAME ...] [--tokens N ...] [--json PATH]

Several processes first compile every kernel into Triton's cache. Then each kind of weight is timed in several
configurations, over weights that rotate through more memory than the cache holds. The floor is the time to
read the weights. The last lines add up the products of a whole pass. `--many` finds the number of tokens from
which it is faster to widen the weights for the library. `--dry` runs a small part on a tiny shape; without a
device it needs TRITON_INTERPRET=1.
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
from wager.nn.kernels.quant_matmul import (
    GATED_CONFIGS,
    MAX_TOKENS,
    QUANT_CONFIGS,
    QuantConfig,
    dequantised_product,
    quant_gated_product,
    quant_product,
    quant_split_product,
)
from wager.nn.kernels.quant_weights import QuantWeight, dequantised

SWEEP = (
    *QUANT_CONFIGS,
    QuantConfig(32, 8, 2, 6),
    QuantConfig(64, 1, 2, 6),
    QuantConfig(64, 2, 4, 6),
    QuantConfig(64, 4, 4, 9),
    QuantConfig(64, 4, 2, 6),
    QuantConfig(128, 2, 4, 6),
)
GATED_SWEEP = (*GATED_CONFIGS, QuantConfig(16, 1, 2, 6), QuantConfig(32, 1, 4, 9))
MANY = (QuantConfig(64, 1, 4, 5), QuantConfig(64, 4, 4, 5), QuantConfig(128, 4, 4, 4))
_PROCESSES = 12


class WeightKind(NamedTuple):
    """Bits and group size of stored weights."""

    bits: int
    group: int

    def __str__(self) -> str:
        return f"int{self.bits} by {self.group}"

    def nbytes(self, num_out: int, inner: int) -> float:
        return num_out * inner * (self.bits + (32 if self.bits == 8 else 16) / self.group) / 8


KINDS = (WeightKind(8, 128), WeightKind(4, 64), WeightKind(4, 128))


def random_weight(bench: Bench, num_out: int, inner: int, kind: WeightKind) -> QuantWeight:
    """A weight of random bits; its values do not matter for timing."""
    chunks = -(-inner // (kind.group * 8 // kind.bits))
    size = (chunks, num_out, kind.group // 2)
    packed = torch.randint(-32_768, 32_768, size, dtype=torch.int16, device=bench.device)
    kept = torch.float32 if kind.bits == 8 else torch.bfloat16
    scales = torch.rand((chunks, num_out, 8 // kind.bits), device=bench.device).add_(0.5).mul_(1e-3).to(kept)
    return QuantWeight(packed, scales, kind.bits, kind.group, inner)


def rotated_weights(bench: Bench, num_out: int, inner: int, kind: WeightKind) -> list[QuantWeight]:
    one = random_weight(bench, num_out, inner, kind)
    copies = max(1, min(64, -(-bench.shape.rotate_bytes // one.nbytes)))
    return [one, *(random_weight(bench, num_out, inner, kind) for _ in range(copies - 1))]


class Weights(NamedTuple):
    """One product's weights in every kind, as many of each as are larger than the cache."""

    name: str
    size: tuple[int, int]
    wide: list[Tensor]
    narrow: dict[WeightKind, list[QuantWeight]]


def weights_of(bench: Bench, name: str, kinds: Sequence[WeightKind]) -> Weights:
    size = bench.shape.products[name]
    return Weights(
        name, size, bench.rotated(*size), {kind: rotated_weights(bench, *size, kind) for kind in kinds}
    )


def call_us(bench: Bench, weights: Sequence[Tensor | QuantWeight], call: Callable[..., object]) -> float:
    """Microseconds of one call, measured over all weights in turn."""

    def run() -> None:
        for weight in weights:
            call(weight)

    return bench.clock.us(run, len(weights))


Calls = Mapping[str, Callable[..., object]]


def config_times(bench: Bench, weights: list[QuantWeight], calls: Calls) -> Row:
    """Microseconds by configuration; a configuration that fails is reported and left out."""
    us: Row = {}
    for label, call in calls.items():
        try:
            us[label] = call_us(bench, weights, call)
        except Exception as error:
            print(f"  {label} failed: {error!r}"[:300], flush=True)
    return us


def row_of(
    bench: Bench, weights: Weights, case: tuple[str, int], library: Callable[..., object], calls: Calls
) -> Row:
    """The library's time for one product, and for every kind all times and the best."""
    name, tokens = case
    row: Row = {"product": name, "tokens": tokens, "ways": {}}
    row["library_us"] = call_us(bench, weights.wide, library)
    row["floor_us"] = weights.wide[0].nbytes / bench.bytes_per_us
    for kind, narrow in weights.narrow.items():
        row["ways"][str(kind)] = kind_figures(bench, kind, weights.size, config_times(bench, narrow, calls))
    return row


def kind_figures(bench: Bench, kind: WeightKind, size: tuple[int, int], us: Row) -> Row:
    best = min(us, key=us.__getitem__) if us else None
    floor = kind.nbytes(*size) / bench.bytes_per_us
    return {"floor_us": floor, "best": best, "best_us": us[best] if best else None, "us": us}


def label_of(config: QuantConfig) -> str:
    return "x".join(str(one) for one in config)


def labelled(configs: Iterable[QuantConfig], call: Callable[[QuantConfig], Callable[..., object]]) -> Calls:
    return {label_of(config): call(config) for config in configs}


def _product(x: Tensor, space: ProductSpace | None, config: QuantConfig, weight: QuantWeight) -> Tensor:
    return quant_product(x, weight, None, config, space)


def _parts(x: Tensor, config: QuantConfig, weight: QuantWeight) -> Tensor:
    return quant_split_product(x, weight, config)


def _gated(x: Tensor, config: QuantConfig, weight: QuantWeight) -> Tensor:
    return quant_gated_product(x, weight, config)


def product_rows(bench: Bench, weights: Weights, tokens: int) -> Iterator[Row]:
    """The plain product, its partial sums for a norm, and the gated product with SiLU(gate) * up."""
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
    """Many tokens: our product, as far as it goes, against widening the weights for the library."""
    x = bench.random(tokens, weights.size[1])
    calls: dict[str, Callable[..., object]] = {"widened": partial(dequantised_product, x)}
    if tokens <= MAX_TOKENS:
        calls |= labelled(MANY, lambda config: partial(_product, x, None, config))
    return row_of(bench, weights, (f"{weights.name} of many", tokens), partial(F.linear, x), calls)


def rows_of(bench: Bench, name: str, many: Sequence[int]) -> Iterator[Row]:
    weights = weights_of(bench, name, KINDS)
    for tokens in bench.tokens:
        yield from product_rows(bench, weights, tokens)
    if name in ("qkv", "gate_up"):
        yield from (many_row(bench, weights, tokens) for tokens in many)


def check(bench: Bench, kind: WeightKind) -> str:
    """Check some of the timed products against float64, and return their largest error."""
    num_out, inner = bench.shape.products["qkv"]
    weight = random_weight(bench, num_out, inner, kind)
    errors = []
    for tokens in (1, 64):
        x = bench.random(tokens, inner)
        want = F.linear(x.double(), dequantised(weight, torch.float64))
        pairs = [(quant_product(x, weight, None, one), want) for one in QUANT_CONFIGS]
        pairs += [(quant_gated_product(x, weight, one), gate_reference(want)) for one in GATED_CONFIGS]
        pairs.append((dequantised_product(x, weight), want))
        errors += [float((got.double() - true).norm() / true.norm()) for got, true in pairs]
    return f"{kind}: errors of {len(errors)} products up to {max(errors):.2e}"


def compile_share(index: int, count: int, most: int) -> int:
    """Compile one process's share of the kernels by calling them once; returns how many succeeded."""
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
            except Exception:  # it is reported when it is timed
                continue
        if device.type == "cuda":
            torch.cuda.synchronize()
    return done


def jobs_of(bench: Bench, kind: WeightKind, tokens: int) -> Iterator[Callable[[], object]]:
    weight, x = random_weight(bench, 512, 1024, kind), bench.random(tokens, 1024)
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


def format_row(row: Row) -> str:
    """A result row as one line: the library's time, then every kind's floor, best time and configuration."""
    line = f"{row['product']:16s} {row['tokens']:4d} tok"
    line += f" | bf16 {row['floor_us']:6.1f} < {row['library_us']:6.1f}"
    for kind, way in row["ways"].items():
        if way["best"] is not None:
            line += f" | {kind} {way['floor_us']:6.1f} < {way['best_us']:6.1f} {way['best']}"
    return line


def pass_sums(bench: Bench, rows: list[Row]) -> Iterator[Row]:
    """The sum of the products of a whole pass, each in its best configuration.

    The products `down` and `out` are left as partial sums, and the gate is fused.
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


def format_sum(row: Row) -> str:
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
                print(format_row(row), flush=True)
        except Exception as error:  # a product that fails does not stop the others
            rows.append({"product": name, "error": repr(error)})
            print(f"{name} failed: {error!r}"[:500], flush=True)
        print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)
    for row in list(pass_sums(bench, rows)):
        rows.append(row)
        print(format_sum(row))
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
