"""What the engine costs around the model's own pass, and that a useless drafter costs next to nothing.

    python -m bench.cpu.engine [--tokens 200] [--rounds 4] [--json PATH]

An 8-layer, 256-wide random target in float32, batch 1. Overhead: wall time of plain steps over the time
inside the decoder's own forward and head, by stage. Never slower: `auto` with a random block drafter against
`ar` in the same process, in the order A B B A, with `ar` against `ar` as the control.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.results import write_result
from wager.kvcache.pool import KVPool
from wager.llm import LLM
from wager.nn.batch import PassBatch, PassRow
from wager.records import SamplingParams

SHAPE: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}


def save_pair(folder: Path) -> None:
    """A random target and a random block drafter for it."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from wager.train.drafter import BlockSampling, DrafterShape, build_drafter, drafter_config, save_drafter

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE))
    model.save_pretrained(folder / "target")
    config = drafter_config(DrafterShape(), model.config, SHAPE["vocab_size"] - 1, BlockSampling())
    save_drafter(build_drafter(config, seed=1), config, folder / "drafter", torch.float32)


class OwnTime:
    """Time inside the decoder's forward and head, summed."""

    def __init__(self, llm: LLM) -> None:
        self.seconds = 0.0
        decoder = llm.engine.runner.decoder
        for name in ("forward", "logits"):
            setattr(decoder, name, self._timed(getattr(decoder, name)))

    def _timed(self, call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return run


def run_once(llm: LLM, prompt: list[int], tokens: int) -> float:
    start = time.perf_counter()
    llm.generate(prompt, SamplingParams(max_tokens=tokens, ignore_eos=True))
    return time.perf_counter() - start


def bare_loop(llm: LLM, prompt: list[int], tokens: int) -> float:
    """Greedy decoding with nothing around the decoder: what any caller of it must do, and no more."""
    runner = llm.engine.runner
    decoder, pool = runner.decoder, KVPool(runner.decoder.pool_spec(64, 32))
    pages = list(range(64))
    start = time.perf_counter()
    with torch.inference_mode():
        pending, context = prompt, 0
        for _ in range(tokens):
            stop = context + len(pending)
            row = PassRow(0, len(pending), context, pages)
            places = torch.arange(context, stop)
            batch = PassBatch(torch.tensor(pending), places, places, [row])
            hidden = decoder.forward(batch, pool, runner.feature_layers).hidden
            pending, context = [int(decoder.logits(hidden[-1:]).argmax())], stop
    return time.perf_counter() - start


def around_bare_loop(llm: LLM, prompt: list[int], tokens: int, rounds: int) -> list[float]:
    """Engine over bare loop, minus one, each of the rounds in the order A B B A."""
    shares = []
    for _ in range(rounds):
        bare, engine = [bare_loop(llm, prompt, tokens)], []
        engine += [run_once(llm, prompt, tokens), run_once(llm, prompt, tokens)]
        bare.append(bare_loop(llm, prompt, tokens))
        shares.append(sum(engine) / sum(bare) - 1.0)
    return shares


def overhead(folder: Path, tokens: int, rounds: int) -> dict[str, Any]:
    """Plain decoding: engine time over the model's own, and where the rest goes."""
    llm = LLM(str(folder / "target"), drafter=str(folder / "drafter"), policy="ar", dtype="float32")
    llm.settle(print)
    prompt = list(range(1, 129))
    run_once(llm, prompt, 32)
    bare = around_bare_loop(llm, prompt, tokens, rounds)
    own = OwnTime(llm)
    shares, stages = [], []
    for _ in range(rounds):
        own.seconds = 0.0
        before = dict(llm.engine.telemetry.stage_ms)
        wall = run_once(llm, prompt, tokens)
        shares.append(wall / own.seconds - 1.0)
        after = llm.engine.telemetry.stage_ms
        stages.append(
            {name: (after[name] - before[name]) / tokens * 1e3 for name in after}
            | {
                "own pass": own.seconds / tokens * 1e6,
                "wall": wall / tokens * 1e6,
            }
        )
    median = {name: statistics.median(s[name] for s in stages) for name in stages[0]}
    return {
        "over_bare_loop": statistics.median(bare),
        "over_bare_loop_all": bare,
        "over_own_pass": statistics.median(shares),
        "us_per_token": median,
    }


def never_slower(folder: Path, tokens: int, rounds: int) -> dict[str, Any]:
    """`auto` with a useless drafter over `ar`, A B B A, and `ar` over `ar` as the control."""
    llm = LLM(str(folder / "target"), drafter=str(folder / "drafter"), policy="auto", dtype="float32")
    llm.settle(print)
    del llm.engine.drafters["lookup"]  # a random target loops, and lookup would be far from useless
    prompt = list(range(1, 129))
    run_once(llm, prompt, tokens)
    ratios, control = [], []
    for _ in range(rounds):
        times: dict[str, list[float]] = {"ar": [], "auto": []}
        for policy in ("ar", "auto", "auto", "ar"):
            if llm.engine.controller.policy.name != policy:
                llm.set_policy(policy)
            times[policy].append(run_once(llm, prompt, tokens))
        ratios.append(sum(times["ar"]) / sum(times["auto"]))
        control.append(times["ar"][0] / times["ar"][1])
    return {
        "auto_over_ar": statistics.median(ratios),
        "all": ratios,
        "ar_over_ar": statistics.median(control),
        "control": control,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_pair(folder)
        around = overhead(folder, options.tokens, options.rounds)
        # Short runs in many rounds: the machine's own drift is larger than what is to be seen.
        slower = never_slower(folder, options.tokens // 2, 3 * options.rounds)
    print(f"engine over the model's own forward and head: {around['over_own_pass']:.1%} (bar 10 %)")
    print(f"engine over a bare greedy loop, no bar: {around['over_bare_loop']:.1%}")
    for stage, micro in around["us_per_token"].items():
        print(f"  {stage:9s} {micro:8.0f} us")
    print(f"auto with a useless drafter / ar: {slower['auto_over_ar']:.3f} (bar 0.98)")
    print(f"ar / ar, the control: {slower['ar_over_ar']:.3f}")
    config = {
        "shape": SHAPE,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
    }
    write_result("engine", config, {"overhead": around, "never_slower": slower}, options.json)


if __name__ == "__main__":
    main()
