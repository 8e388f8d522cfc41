"""Each kernel at the shape of an 8B model, compared with plain torch, the library and the memory floor.

    python -m bench.gpu.kernels [--quick] [--only NAME ...] [--json PATH]

Times come from replaying CUDA graphs of many calls. Weights and caches rotate through more memory than the
cache holds. Times are microseconds per call, medians of several replays. `layer` runs a whole decoder layer
in several variants. `--dry` runs every case once on a tiny shape to check the script; without a device it
needs TRITON_INTERPRET=1, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from bench.gpu.kernel_clock import EPS, TINY, Bench, Clock, Row, Shape, read_rate
from bench.gpu.kernel_layer import bench_layer, make_heads, make_pass
from bench.results import write_result
from wager.nn.kernels.attention import AttentionPlan, attend
from wager.nn.kernels.filter import ActiveFilters, SamplingRows
from wager.nn.kernels.gate import gate, gate_reference
from wager.nn.kernels.matmul import (
    CONFIGS,
    ProductConfig,
    ProductSpace,
    gated_product,
    product,
    product_space,
)
from wager.nn.kernels.norm import Norm, Normed, add_norm, add_norm_reference
from wager.nn.kernels.qkv import TokenSlots, write_qkv
from wager.nn.kernels.sample import sample_tokens
from wager.nn.kernels.top_logprobs import RowSampling, top_logprobs
from wager.nn.layers.attention import attend_one
from wager.nn.rope import rotate


def norm_row(bench: Bench, tokens: int) -> Row:
    x, residual = bench.random(tokens, bench.shape.hidden), bench.random(tokens, bench.shape.hidden)
    norm = Norm(bench.random(bench.shape.hidden), EPS)
    out = Normed(torch.empty_like(x), torch.empty_like(x))
    us = {
        "kernel": bench.many(lambda: add_norm(x, residual, norm, out)),
        "plain": bench.many(lambda: add_norm_reference(x, residual, norm)),
    }
    return bench.row("norm", tokens, 4 * x.nbytes, us)


def gate_row(bench: Bench, tokens: int) -> Row:
    both = bench.random(tokens, 2 * bench.shape.middle)
    out = bench.random(tokens, bench.shape.middle)
    us = {
        "kernel": bench.many(lambda: gate(both, out)),
        "plain": bench.many(lambda: gate_reference(both)),
    }
    return bench.row("gate", tokens, both.nbytes + out.nbytes, us)


def qkv_row(bench: Bench, tokens: int) -> Row:
    heads, (turn, norm, rotary) = bench.shape.heads, make_heads(bench)
    num_heads, num_kv_heads, size = heads
    rotated = num_heads + num_kv_heads
    fused = bench.random(tokens, bench.shape.qkv)
    places = TokenSlots(*(torch.arange(tokens, device=bench.device) for _ in range(2)))
    store = bench.random(2, num_kv_heads, max(tokens, 256), size)
    queries = bench.random(tokens, num_heads, size)
    rotation = rotary.compute(places.positions)

    def plain() -> None:
        all_heads = fused.view(tokens, -1, size)
        turned = rotate(norm(all_heads[:, :rotated]), rotation)
        both = torch.cat((turned[:, num_heads:], all_heads[:, rotated:]), dim=1)
        store.index_copy_(2, places.slots, both.unflatten(1, (2, num_kv_heads)).permute(1, 2, 0, 3))

    us = {
        "kernel": bench.many(lambda: write_qkv(fused, turn, places, store, queries)),
        "plain": bench.many(plain),
    }
    return bench.row("qkv", tokens, 2 * fused.nbytes, us)


def bench_attention(bench: Bench) -> Iterator[Row]:
    cases = [(1, tokens, context) for context in bench.contexts for tokens in bench.tokens]
    cases += [(rows, tokens, bench.contexts[0]) for rows, tokens in bench.batches]
    for rows, tokens, context in cases:
        yield attention_row(bench, rows, tokens, context)


def attention_row(bench: Bench, rows: int, tokens: int, context: int) -> Row:
    heads = bench.shape.heads
    inputs = make_pass(bench, rows, tokens, context)
    queries = bench.random(tokens, heads.num_heads, heads.head_dim)
    out = bench.random(tokens, heads.num_heads * heads.head_dim)
    count = len(inputs.stores)
    keys = context + tokens // rows
    us: dict[str, float] = {}
    for merge in ("last", "after"):
        plan = inputs.plan._replace(merge=merge)

        def call(plan: AttentionPlan = plan) -> None:
            for store in inputs.stores:
                attend(queries, store, inputs.attention, plan, None, out)

        us["kernel" if merge == "last" else "two kernels"] = bench.clock.us(call, count)

    def plain() -> None:
        for store in inputs.stores:
            attend_one(queries[: tokens // rows], store[0, :, :keys], store[1, :, :keys], inputs.mask)

    us["plain, first row, one run of pages"] = bench.clock.us(plain, count)
    num_bytes = 2 * rows * keys * heads.num_kv_heads * heads.head_dim * bench.dtype.itemsize
    return bench.row("attention", tokens, num_bytes, us, rows=rows, context=context)


def sampling_inputs(
    bench: Bench, rows: int, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> SamplingRows:
    device = bench.device
    places = torch.arange(rows, device=device)
    return SamplingRows(
        torch.full((rows,), temperature, device=device),
        torch.full((rows,), top_k, dtype=torch.int32, device=device),
        torch.full((rows,), top_p, device=device),
        torch.zeros(rows, device=device),
        places * 7,
        places + 1000,
    )


def sample_row(bench: Bench, rows: int) -> Row:
    logits = bench.random(rows, bench.shape.vocab, scale=3.0)
    greedy, warm, both = (sampling_inputs(bench, rows, *one) for one in ((0.0,), (0.8,), (0.8, 20, 0.95)))
    heat = RowSampling(warm.temperature, warm.seeds, warm.positions)
    cool = heat._replace(temperature=greedy.temperature)
    calls: dict[str, Callable[[], object]] = {
        "greedy": lambda: sample_tokens(logits, greedy),
        "noised": lambda: sample_tokens(logits, warm),
        "top-k and top-p": lambda: sample_tokens(logits, both, ActiveFilters(True, True)),
        "top-p": lambda: sample_tokens(logits, both, ActiveFilters(False, True)),
        "top 8": lambda: top_logprobs(logits, 8, cool),
        "top 8 noised": lambda: top_logprobs(logits, 8, heat),
        "plain greedy": lambda: logits.max(dim=-1),
        "plain filter by sorting": lambda: plain_filter(logits),
        "plain top 8": lambda: logits.float().log_softmax(dim=-1).topk(8, dim=-1),
    }
    return bench.row(
        "sample", rows, logits.nbytes, {name: bench.many(call, 8) for name, call in calls.items()}
    )


def plain_filter(logits: Tensor) -> Tensor:
    """Top-k and top-p in plain torch, without noise."""
    scores = logits.float() / 0.8
    scores = scores.masked_fill(scores < scores.topk(20, dim=-1).values[:, -1:], -torch.inf)
    ordered, places = scores.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(dim=-1)
    drop = probs.cumsum(dim=-1) - probs >= 0.95
    return scores.masked_fill(drop.scatter(1, places, drop), -torch.inf).argmax(dim=-1)


def bench_matmul(bench: Bench) -> Iterator[Row]:
    for name, (num_out, inner) in bench.shape.products.items():
        weights = bench.rotated(num_out, inner)
        for tokens in bench.few_tokens:
            yield matmul_row(bench, name, tokens, weights)


def matmul_row(bench: Bench, name: str, tokens: int, weights: list[Tensor]) -> Row:
    count, (num_out, inner) = len(weights), weights[0].shape
    x = bench.random(tokens, inner)
    space = product_space(tokens, num_out, bench.device)
    us: dict[str, float] = {}

    def timed(label: str, call: Callable[[Tensor], object]) -> None:
        def run() -> None:
            for weight in weights:
                call(weight)

        us[label] = bench.clock.us(run, count)

    timed("library", lambda weight: F.linear(x, weight))
    for config in CONFIGS:
        timed(label_of(config), partial(_kernel_product, x, config, space))
    if name == "gate_up":
        for config in (ProductConfig(32, 128, 1, 4, 4), ProductConfig(64, 64, 1, 4, 5)):
            timed(f"gated {label_of(config)}", partial(_kernel_gated, x, config))
    num_bytes = weights[0].nbytes + x.nbytes + tokens * num_out * x.itemsize
    return bench.row(f"product {name}", tokens, num_bytes, us)


def _kernel_product(x: Tensor, config: ProductConfig, space: ProductSpace, weight: Tensor) -> Tensor:
    return product(x, weight, None, config, space)


def _kernel_gated(x: Tensor, config: ProductConfig, weight: Tensor) -> Tensor:
    return gated_product(x, weight, config)


def label_of(config: ProductConfig) -> str:
    return "x".join(str(one) for one in config)


def per_token_count(row_of: Callable[[Bench, int], Row]) -> Callable[[Bench], Iterator[Row]]:
    """A case with one result row per number of tokens."""

    def rows(bench: Bench) -> Iterator[Row]:
        return (row_of(bench, tokens) for tokens in bench.tokens)

    return rows


CASES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "norm": per_token_count(norm_row),
    "gate": per_token_count(gate_row),
    "qkv": per_token_count(qkv_row),
    "attention": bench_attention,
    "layer": bench_layer,
    "sample": per_token_count(sample_row),
    "matmul": bench_matmul,
}


def format_row(row: Row) -> str:
    """A result row as one line: the case, its floor, then every variant's time, the best first."""
    case = " ".join(str(row[name]) for name in ("rows", "context") if name in row)
    best = min(row["us"], key=row["us"].__getitem__)
    order = sorted(row["us"], key=lambda name: (name != best, list(row["us"]).index(name)))
    times = ", ".join(f"{name} {row['us'][name]:.1f}" for name in order)
    return f"{row['kernel']:16s} {row['tokens']:4d} tok {case:9s} floor {row['floor_us']:7.1f} us | {times}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three token counts instead of six")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--dry", action="store_true", help="a tiny shape, once")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    has_device = torch.cuda.is_available()
    device = torch.device("cuda" if has_device else "cpu")
    assert has_device or options.dry, "no CUDA device; --dry runs without one"
    shape = TINY if options.dry else Shape()
    clock = Clock(device)
    tokens = (1, 4) if options.dry else (1, 16, 64) if options.quick else (1, 8, 16, 32, 64, 128)
    contexts = (40,) if options.dry else (1024, 16_384)
    rate = read_rate(shape, clock)
    print(f"reading at {rate * 1e-6:.2f} TB/s")
    bench = Bench(shape, clock, tokens, contexts, rate)
    if options.dry:
        bench = bench._replace(batches=((2, 4),))
    rows, began = [], time.perf_counter()
    for name in options.only:
        start = time.perf_counter()
        try:
            for row in CASES[name](bench):
                rows.append(row)
                print(format_row(row), flush=True)
        except Exception as error:  # a case that fails does not stop the others
            rows.append({"kernel": name, "error": repr(error)})
            print(f"{name} failed: {error!r}", flush=True)
        print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)
    print(f"-- all: {time.perf_counter() - began:.1f} s")
    config = {
        "device": torch.cuda.get_device_name() if has_device else "interpreter",
        "triton": triton.__version__,
        "shape": shape._asdict(),
        "dtype": "bfloat16",
        "tokens": tokens,
        "contexts": contexts,
        "read_tb_per_s": rate * 1e-6,
    }
    if options.json is not None or not options.dry:
        print(f"written to {write_result('gpu_kernels', config, rows, options.json).name}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
