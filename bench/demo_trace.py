"""Record the trace that ships: the demo pair on the prompts that ship, five kinds, greedy and at 0.8.

    python -m bench.demo_trace [--tokens 512] [--out wager/trace/demo.npz]

Texts end where they end of themselves, or at --max-tokens; of each kind and temperature the first ones are
kept until they make --tokens. `wager simulate` replays this file where no other is named, and the tests of
the trace room hold policies against it: run them afterwards, and redraw what docs show of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.results import ROOT
from wager.bench.runs import encode
from wager.bench.suites import first_of_each_kind, kinds_of, load_suite
from wager.errors import InputError, WagerError
from wager.llm import LLM
from wager.pairs import DEMO
from wager.records import SamplingParams
from wager.trace import StepCosts, Trace, load_traces, replay, save_traces, step_costs

OUT = ROOT / "wager" / "trace" / "demo.npz"
MOST_BYTES = 1 << 20
LEAST_SEQUENCES = 2
TEMPERATURES = (0.0, 0.8)
_FREE: StepCosts = step_costs("free", 0.0, {1: 1.0})


def first_sequences(trace: Trace, num_tokens: int) -> Trace:
    """The first sequences that together have so many tokens, two at least; all where they have not."""
    lengths = np.array([trace.length(i) for i in range(trace.num_sequences)])
    enough = int(np.searchsorted(lengths.cumsum(), num_tokens)) + 1
    num = max(enough, LEAST_SEQUENCES)
    own = (slice(num), slice(int(lengths[:num].max())))
    p1 = None if trace.target_p1 is None else trace.target_p1[own]
    return replace(trace, logprobs=trace.logprobs[own], ranks=trace.ranks[own], target_p1=p1)


def coarse(trace: Trace) -> Trace:
    """Log-probabilities to within a hundredth of themselves: a third less to ship, and bets hardly notice."""
    bits = trace.logprobs.astype(np.float16).view(np.uint16)
    rounded = ((bits.astype(np.uint32) + 8) & 0xFFF0).astype(np.uint16).view(np.float16)
    return replace(trace, logprobs=rounded.astype(np.float32))


def record_kind(llm: LLM, kind: str, prompts: Sequence[list[int]], max_tokens: int) -> list[Trace]:
    """One trace for each temperature."""
    params = [
        SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=i)
        for temperature in TEMPERATURES
        for i in range(len(prompts))
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.npz"
        llm.record_trace(list(prompts) * len(TEMPERATURES), params, path, kind)
        return list(load_traces(path).traces)


def tokens_of(trace: Trace) -> int:
    return sum(trace.length(i) for i in range(trace.num_sequences))


def tokens_per_step(trace: Trace) -> float:
    """With every guess of the best chain verified at every step."""
    run = replay(trace, _FREE, f"fixed:{trace.num_depths}")
    return run.tokens / len(run.steps)


def describe(llm: LLM, traces: Sequence[Trace]) -> dict[str, object]:
    name = next(iter(llm.engine.drafters))
    drafter = llm.engine.drafters[name].describe()
    said = [part for part in ("layers", "block_size") if part in drafter]
    return {
        "model": Path(str(llm.notes["model"])).name,
        "drafter": name,
        **{part: drafter[part] for part in said},
        "noised": True,
        "temperature": {"t0": TEMPERATURES[0], "t08": TEMPERATURES[1]},
        "licence": "Apache-2.0",
        "tokens": sum(map(tokens_of, traces)),
    }


def write(path: Path, traces: Sequence[Trace], meta: dict[str, object]) -> None:
    """The file, if it is small enough to ship. Raises InputError."""
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / "trace.npz"
        save_traces(new, traces, meta)
        if new.stat().st_size > MOST_BYTES:
            raise InputError(f"{new.stat().st_size} bytes are too many to ship: ask for fewer", "tokens")
        path.write_bytes(new.read_bytes())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo_trace",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokens", type=int, default=512, help="of each kind and temperature [512]")
    parser.add_argument("--max-tokens", type=int, default=256, help="of one text [256]")
    parser.add_argument("--limit", type=int, help="prompts of each kind [all]")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="prompts [those that ship]")
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--drafter")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT, help="[wager/trace/demo.npz]")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    prompts = first_of_each_kind(load_suite(None if given.texts else "demo", given.texts), given.limit)
    llm = LLM(given.model, given.drafter or "auto", prefix_reuse=False, threads=given.threads)
    llm.settle(print)
    traces: list[Trace] = []
    for kind in kinds_of(prompts):
        own = encode(llm, [one for one in prompts if one.kind == kind], given.max_tokens)
        recorded = record_kind(llm, kind, [one.token_ids for one in own], given.max_tokens)
        for trace in recorded:
            kept = coarse(first_sequences(trace, given.tokens))
            traces.append(kept)
            print(
                f"{kind:<8} {kept.temperature:<4} {kept.num_sequences} texts, {tokens_of(kept)} tokens, "
                f"{tokens_per_step(kept):.2f} tokens per step with every guess verified",
                flush=True,
            )
    write(given.out, traces, describe(llm, traces))
    print(f"written to {given.out.name}, {given.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except WagerError as error:
        sys.exit(f"bench.demo_trace: {error}")
