"""One pass of a GGUF target on this CPU by weights and activations, beside llama.cpp if it is installed.

    python -m bench.cpu.gguf_passes MODEL.gguf [--rounds 40] [--context 256] [--threads 2]

Milliseconds over 1 to 32 tokens behind a context, every token scored; all ways take turns in one process,
there and back. The figure is the shortest time of all rounds, because other programs may use the machine; the
file has the medians, too. The head for guesses is timed with the choice of the best candidates, as a block
drafter uses it. The memory of each way is that of a process of its own after loading: what is not backed by a
file, less what such a process has before it loads anything.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.cpu.peers_llama import LlamaContext, LlamaModel, LlamaSettings
from bench.cpu.peers_passes import LlamaPasses
from bench.results import write_result
from wager.kvcache.pool import KVPool
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder
from wager.nn.native.library import library, wait_for_library
from wager.nn.native.loader import PassOptions

WAYS = {
    "int16 activations": PassOptions("on"),
    "int8 activations": PassOptions("on", activations="int8"),
    "full activations": PassOptions("on", activations="full"),
    "float32": PassOptions("on", "full"),
    "int8": PassOptions("on", "int8"),
    "torch": PassOptions("off"),
}
"""Ways to run passes; the first is the default."""
LLAMA = "llama.cpp"
RANKS = 8
"""Candidates that are chosen at each position of a draft."""
TOKENS = (1, 2, 4, 8, 12, 16, 32)
PAGE_SIZE = 32
_MEMORY_FLAG = "--memory-of"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, LLAMA], default=[*WAYS, LLAMA])
    parser.add_argument("--out", type=Path)
    parser.add_argument(_MEMORY_FLAG, choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    library()
    wait_for_library()
    if options.memory_of:
        print(loaded_bytes(options.model, WAYS[options.memory_of]))
        return 0
    torch.set_num_threads(options.threads)
    found = {
        **measure(options.model, options.rounds, options.context, options.threads, options.ways),
        "file_bytes": options.model.stat().st_size,
        "memory_bytes": {name: own_process(options.model, name) for name in WAYS if name in options.ways},
    }
    names = ("rounds", "context", "threads")
    config = {"model": options.model.name} | {name: getattr(options, name) for name in names}
    print(found)
    print(write_result("gguf_passes", config, found, options.out))
    return 0


@torch.inference_mode()
def measure(
    path: Path, rounds: int, context: int, threads: int, ways: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Returns shortest times and medians by way and number of tokens, and those of the head for guesses."""
    decoders = {name: load_target(path, options=options) for name, options in WAYS.items() if name in ways}
    for name, decoder in decoders.items():
        print(f"{name}: {decoder.layout}", file=sys.stderr)
    guesser = load_target(path, options=PassOptions("on"))
    ids = token_ids(guesser, context + max(TOKENS))
    runs: dict[tuple[str, int], Callable[[], Any]] = {}
    for count in TOKENS:
        for name, decoder in decoders.items():
            runs[name, count] = token_pass(decoder, context, count)
        runs["head", count] = guesses_of(guesser, count)
    if LLAMA in ways and find_spec("llama_cpp") is not None:
        peer = LlamaPasses(LLAMA, LlamaContext(LlamaModel(path), LlamaSettings(flash=True, threads=threads)))
        peer.read(ids[:context])
        runs |= {(LLAMA, count): peer.run(ids[context : context + count]) for count in TOKENS}
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for number in range(rounds + 1):
        for key, run in runs.items() if number % 2 else reversed(runs.items()):
            run()
            began = time.perf_counter()
            run()
            if number:
                seconds[key].append(time.perf_counter() - began)
    names = list(dict.fromkeys(name for name, _ in runs))

    def table(of: Callable[[list[float]], float]) -> dict[str, dict[str, float]]:
        return {
            name: {str(count): round(of(seconds[name, count]) * 1e3, 4) for count in TOKENS} for name in names
        }

    shortest, medians = table(min), table(statistics.median)
    heads = {"shortest": shortest.pop("head"), "median": medians.pop("head")}
    return {"milliseconds": shortest, "medians": medians, "head_for_guesses": heads}


def token_ids(decoder: Decoder, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, decoder.spec.vocab_size, (count,), generator=generator).tolist()


def guesses_of(decoder: Decoder, count: int) -> Callable[[], Any]:
    """Returns the choice of candidates at `count` positions of a draft."""
    hidden = torch.randn(count, decoder.spec.hidden_size, generator=torch.Generator().manual_seed(0))
    top, head = decoder.top, decoder.draft_head(())
    assert top is not None and head is not None
    return lambda: top(head(hidden), RANKS)


def token_pass(decoder: Decoder, context: int, count: int) -> Callable[[], Any]:
    """Returns a pass over `count` tokens behind a context that was read before."""
    num_pages = -(-(context + count) // PAGE_SIZE)
    pool, pages = KVPool(decoder.pool_spec(num_pages, PAGE_SIZE)), list(range(num_pages))
    ids = torch.tensor(token_ids(decoder, context + count))

    def batch(start: int, stop: int) -> PassBatch:
        row = PassRow(0, stop - start, start, pages, None)
        return PassBatch(ids[start:stop], torch.arange(start, stop), pool.slots(pages, start, stop), [row])

    decoder.forward(batch(0, context), pool)
    own = batch(context, context + count)
    return lambda: decoder.logits(decoder.forward(own, pool).hidden)


def own_process(path: Path, way: str) -> int:
    command = [sys.executable, "-m", "bench.cpu.gguf_passes", str(path), _MEMORY_FLAG, way]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def loaded_bytes(path: Path, options: PassOptions) -> int:
    """Returns by how much loading a target makes this process larger."""
    before = _anonymous_bytes()
    decoder = load_target(path, options=options)
    found = _anonymous_bytes() - before
    assert decoder.spec.num_layers
    return found


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


if __name__ == "__main__":
    sys.exit(main())
