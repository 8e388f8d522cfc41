"""Quality and speed of narrow weights: the grown pair in full width, in 8 bits and in 4 bits.

    python -m bench.gpu.quality [--kinds int8,int4] [--limit 2] [--max-tokens 96]

Every engine scores the text that the full-width engine writes, position by position. `agreement` is the share
of positions with the same best token, `nats_more` the additional loss per token, `divergence` the Kullback-
Leibler divergence in nats. The control is the full-width engine in passes of another size, which round
differently. Then passes and drafts are timed, engines forth and back. Without a device the same rounding goes
through plain torch, and times mean nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from bench.gpu.grown import BenchSession, load_llm
from bench.gpu.passes import Clock, Drafting, fill, pass_call
from bench.gpu.script import Script, main
from wager.bench.plan import BASELINE
from wager.bench.runs import Encoded, PolicyContender, encode
from wager.bench.suites import first_of_each_kind
from wager.llm import LLM
from wager.nn.kernels.quant_layers import HEAD_BITS, Quantisation, QuantLinear
from wager.nn.kernels.quant_weights import dequantised, quantise
from wager.records import SamplingParams
from wager.target import RunRow
from wager.train.grow_tensors import GrownReader
from wager.tree import Tree

FULL = "full"
_BITS = {"int8": 8, "int4": 4}
_PROCESSES = 10
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """Kinds of weights, prompts of each kind, and the passes that are timed."""

    kinds: tuple[str, ...] = ("int8", "int4")
    limit: int = 2
    max_tokens: int = 96
    piece: int = 64
    control_piece: int = 16
    policy: str = "fixed:8"
    tokens: tuple[int, ...] = (1, 16, 64)
    context: int = 1024
    rounds: int = 5
    in_a_row: int = 6


class Scored(NamedTuple):
    """Mean scores of one engine along a text, relative to the full-width engine."""

    agreement: float
    nats: float
    divergence: float
    num_tokens: int


@contextmanager
def rounded_weights(bits: int) -> Iterator[None]:
    """While this is active, grown matrices are rounded to what narrow weights represent."""
    read = GrownReader.get

    def get(self: GrownReader, name: str, shape: Sequence[int], check_finite: bool = True) -> Tensor:
        tensor = read(self, name, shape, check_finite)
        if tensor.ndim != 2 or "embed_tokens" in name:
            return tensor
        own = max(bits, HEAD_BITS) if name.startswith("lm_head") else bits
        return dequantised(quantise(tensor, own), tensor.dtype)

    with patch.object(GrownReader, "get", get):
        yield


def load_kind(session: BenchSession, kind: str) -> BenchSession:
    """A session around the same pair with another kind of weights."""
    one = BenchSession(session.shape, session.tiny, session.out, session.began)
    one.__dict__ |= {"plan": session.plan, "folder": session.folder, "prompts": session.prompts}
    settings: Row = {"memory_gib": 0.25 if session.tiny else 2.0, "max_rows": 1, "calibrate": False}
    rounding: Any = nullcontext()
    if session.is_cuda:
        settings |= {"weights": kind, "max_step_tokens": 512}
    else:
        settings |= {"native": "off", "threads": torch.get_num_threads()}
        rounding = rounded_weights(_BITS[kind]) if kind in _BITS else rounding
    with rounding:
        one.__dict__["llm"] = load_llm(session.plan, session.folder, session.device, **settings)
    return one


def timed_load(session: BenchSession, kind: str) -> tuple[BenchSession, Row]:
    """Load an engine, and return time and memory of loading it."""
    session.synchronize()
    began, before = time.perf_counter(), 0
    if session.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    one = load_kind(session, kind)
    session.synchronize()
    decoder = one.llm.engine.runner.decoder
    row: Row = {"load_s": time.perf_counter() - began, "layout": str(decoder.layout)}
    row["streamed_bytes"] = decoder.streamed_bytes
    if session.is_cuda:
        row["memory_bytes"] = torch.cuda.memory_allocated() - before
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    sizes = "".join(
        f", {name} {row[name] / 1e9:.2f} GB" for name in row if name.endswith("bytes") and row[name]
    )
    session.say(f"{kind}: loaded in {row['load_s']:.1f} s{sizes}")
    return one, row


def logprobs_of(llm: LLM, prompt: Sequence[int], text: Sequence[int], piece: int) -> Tensor:
    """Log-probabilities [text, vocabulary] in float32 at every token of the text, `piece` tokens per pass."""
    runner = llm.engine.runner
    known = [*prompt, *text[:-1]]
    pages = range(-(-(len(known) + 1) // runner.pool.spec.page_size))
    for start in range(0, len(prompt) - 1, 512):
        part = list(prompt[:-1])[start : start + 512]
        runner.run([RunRow(part, Tree.empty(), start, pages, judged=False)])
    found = []
    for start in range(len(prompt) - 1, len(known), piece):
        part = known[start : start + piece]
        logits = runner.run([RunRow(part[:1], Tree.chain(part[1:]), start, pages)]).logits
        assert logits is not None and len(logits) == len(part)
        found.append(torch.log_softmax(logits.float(), dim=-1))
    return torch.cat(found)


def score_text(own: Tensor, full: Tensor, text: Sequence[int]) -> Scored:
    """Compare an engine's log-probabilities with the full-width engine's."""
    text_ids = torch.tensor(text, device=own.device)[:, None]
    agrees = own.argmax(dim=-1) == full.argmax(dim=-1)
    apart = (full.exp() * (full - own)).sum(dim=-1)
    return Scored(float(agrees.double().mean()), -float(own.gather(1, text_ids).double().mean()),
                  float(apart.double().mean()), len(text))  # fmt: skip


def mean_score(rows: Sequence[Scored]) -> Scored:
    """The mean over all tokens."""
    count = sum(row.num_tokens for row in rows)
    means = [sum(row[at] * row.num_tokens for row in rows) / count for at in range(3)]
    return Scored(means[0], means[1], means[2], count)


def score(
    session: BenchSession, engines: Mapping[str, BenchSession], options: Options
) -> dict[str, dict[str, list[Scored]]]:
    """Scores by engine and kind of prompt along the full-width engine's text, with the control."""
    full = engines[FULL].llm
    plain = PolicyContender(full, BASELINE)
    params = SamplingParams(max_tokens=options.max_tokens, ignore_eos=True)
    found: dict[str, dict[str, list[Scored]]] = {}
    for one in encode(full, first_of_each_kind(session.prompts, options.limit), options.max_tokens):
        text = plain.answer(one.token_ids, params).token_ids
        score_one = partial(_score_one, one, text, options, full)
        for name, engine, piece in _scorers(engines, options):
            by_kind = found.setdefault(name, {})
            by_kind.setdefault(one.prompt.kind, []).append(score_one(engine.llm, piece))
    return found


def _scorers(
    engines: Mapping[str, BenchSession], options: Options
) -> Iterator[tuple[str, BenchSession, int]]:
    yield FULL, engines[FULL], options.piece
    yield "control", engines[FULL], options.control_piece
    yield from ((name, engine, options.piece) for name, engine in engines.items() if name != FULL)


@torch.inference_mode()
def _score_one(
    one: Encoded, text: Sequence[int], options: Options, full: LLM, llm: LLM, piece: int
) -> Scored:
    want = logprobs_of(full, one.token_ids, text, options.piece)
    return score_text(logprobs_of(llm, one.token_ids, text, piece), want, text)


def quality_rows(found: Mapping[str, Mapping[str, list[Scored]]]) -> dict[str, Row]:
    """Figures by engine: over all tokens, and by kind of prompt."""
    base = {kind: mean_score(rows).nats for kind, rows in found[FULL].items()}
    base["all"] = mean_score([row for rows in found[FULL].values() for row in rows]).nats
    table: dict[str, Row] = {}
    for name, by_kind in found.items():
        sets = {"all": [row for rows in by_kind.values() for row in rows], **by_kind}
        table[name] = {
            kind: (mean := mean_score(rows))._asdict() | {"nats_more": mean.nats - base[kind]}
            for kind, rows in sets.items()
        }
    return table


def guess_row(session: BenchSession, options: Options) -> Row:
    """Tokens per step of one engine on its own texts, by kind of prompt."""
    contender, by_kind = PolicyContender(session.llm, options.policy), dict[str, list[int]]()
    params = SamplingParams(max_tokens=options.max_tokens, ignore_eos=True)
    for one in encode(session.llm, first_of_each_kind(session.prompts, options.limit), options.max_tokens):
        counts = contender.answer(one.token_ids, params).counts
        assert counts is not None
        sums = by_kind.setdefault(one.prompt.kind, [0, 0])
        sums[0], sums[1] = sums[0] + counts.emitted, sums[1] + counts.steps
    return {kind: emitted / max(steps, 1) for kind, (emitted, steps) in by_kind.items()}


def times(engines: Mapping[str, BenchSession], options: Options) -> dict[str, Row]:
    """Milliseconds of a pass by tokens, and of a draft, engines forth and back."""
    rounds: dict[str, dict[str, list[float]]] = {name: {} for name in engines}
    for name in [*engines, *reversed(list(engines))]:
        session = engines[name]
        fill(session)
        clock, runner = Clock(session, options.rounds, options.in_a_row), session.llm.engine.runner
        for tokens in options.tokens:
            ms = clock.ms(pass_call(runner, tokens, options.context))
            rounds[name].setdefault(f"pass_{tokens}", []).append(ms)
        drafting = Drafting(session, session.llm.engine.drafters["block"], 1, options.context, 4)
        try:
            ms = clock.alone_ms(drafting.draft, drafting.prepare)
        finally:
            drafting.end()
        rounds[name].setdefault("draft", []).append(ms)
    return {
        name: {what: statistics.median(both) for what, both in own.items()} for name, own in rounds.items()
    }


def compile_share(index: int, count: int, kinds: Sequence[str]) -> int:
    """Compile one process's share of the narrow kernels by calling them once; returns how many succeeded."""
    from wager.nn.kernels.device import read_device_info
    from wager.nn.kernels.passes import kernel_linear
    from wager.nn.kernels.product_plan import ProductRole

    done, device_info = 0, read_device_info("cuda")
    jobs = [(bits, tokens) for bits in {_BITS[kind] for kind in kinds} for tokens in (16, 32, 64, 128, 160)]
    for bits, tokens in jobs[index::count]:
        small = torch.zeros(2048, 1024, dtype=torch.bfloat16, device="cuda")
        large = torch.zeros(32_768, 1024, dtype=torch.bfloat16, device="cuda")
        narrow, x = Quantisation(bits), small.new_ones((tokens, 1024))
        kernel_linear(QuantLinear(narrow.weight(small)), ProductRole.SUMMED, device_info).partial_sums(x)
        kernel_linear(QuantLinear(narrow.weight(large)), ProductRole.GATED, device_info).gated(x)
        kernel_linear(QuantLinear(narrow.head(large)), ProductRole.WHOLE, device_info)(x)
        done += 3
    torch.cuda.synchronize()
    return done


def compile_all(session: BenchSession, kinds: Sequence[str]) -> None:
    """Compile into Triton's cache with several processes, because one would take longer than all the rest."""
    count = min(_PROCESSES, os.cpu_count() or 1)
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        done = sum(pool.map(partial(compile_share, count=count, kinds=kinds), range(count)))
    session.say(f"{done} first calls of narrow products, by {count} processes")


def run(session: BenchSession, options: Options) -> None:
    found: Row = {}
    if session.is_cuda:
        with session.case("compiling"):
            compile_all(session, options.kinds)
    engines: dict[str, BenchSession] = {}
    for kind in (FULL, *options.kinds):
        with session.case(kind):
            engines[kind], found.setdefault("loaded", {})[kind] = timed_load(session, kind)
    save = partial(session.save, "quality", {"options": asdict(options)}, found)
    with session.case("scores"):
        found["quality"] = quality_rows(score(session, engines, options))
        show_quality(session, found["quality"])
        save()
    for name, engine in engines.items():
        with session.case(f"guesses {name}"):
            found.setdefault("tokens_per_step", {})[name] = guess_row(engine, options)
            rates = found["tokens_per_step"][name]
            session.say(f"{name:7s} {options.policy}: " + ", ".join(f"{k} {v:.2f}" for k, v in rates.items()))
    with session.case("times"):
        found["ms"] = times(engines, options)
        show_times(session, found, options)
    save()


def show_quality(session: BenchSession, table: Mapping[str, Row]) -> None:
    for name, row in table.items():
        for kind, one in row.items():
            session.say(
                f"{name:7s} {kind:7s} agreement {one['agreement']:7.2%}, nats {one['nats']:.4f} "
                f"({one['nats_more']:+.4f}), divergence {one['divergence']:.5f}, {one['num_tokens']} tokens"
            )


def show_times(session: BenchSession, found: Row, options: Options) -> None:
    for name, row in found["ms"].items():
        size = found["loaded"][name]["streamed_bytes"]
        floor = f", floor {size / session.bytes_per_s * 1e3:.3f}" if size else ""
        passes = ", ".join(f"{tokens} tokens {row[f'pass_{tokens}']:.3f}" for tokens in options.tokens)
        session.say(f"{name:7s} pass, ms: {passes}{floor}; draft {row['draft']:.3f}")


TINY: dict[str, Any] = {
    "limit": 1,
    "max_tokens": 12,
    "piece": 8,
    "control_piece": 3,
    "policy": "fixed:4",
    "tokens": (1, 4),
    "context": 64,
    "rounds": 1,
    "in_a_row": 1,
}
SCRIPT = Script("quality", __doc__ or "", Options, TINY, run)

if __name__ == "__main__":
    main(SCRIPT)
