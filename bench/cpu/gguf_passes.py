"""One pass of a GGUF target on this CPU: narrow weights beside float32, int8 and plain torch.

    python -m bench.cpu.gguf_passes MODEL.gguf [--rounds 15] [--context 256]

Milliseconds over 1 to 32 tokens behind a context, every token scored; all ways take turns in one process,
there and back; medians. The memory of each way is that of a process of its own after loading: what is not
backed by a file, less what such a process has before it loads anything.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.results import write_result
from wager.kvcache.pool import KVPool
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder
from wager.nn.native.library import library, wait_for_library
from wager.nn.native.loader import PassOptions

WAYS = {
    "narrow": PassOptions("on", "auto"),
    "float32": PassOptions("on", "full"),
    "int8": PassOptions("on", "int8"),
    "torch": PassOptions("off"),
}
TOKENS = (1, 2, 4, 8, 12, 16, 32)
PAGE_SIZE = 32
_MEMORY_FLAG = "--memory-of"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--out", type=Path)
    parser.add_argument(_MEMORY_FLAG, choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    library()
    wait_for_library()
    if options.memory_of:
        print(loaded_bytes(options.model, WAYS[options.memory_of]))
        return 0
    found = {
        "milliseconds": measure(options.model, options.rounds, options.context),
        "file_bytes": options.model.stat().st_size,
        "memory_bytes": {name: own_process(options.model, name) for name in WAYS},
    }
    config = {"model": options.model.name, "rounds": options.rounds, "context": options.context}
    print(found)
    print(write_result("gguf_passes", config, found, options.out))
    return 0


@torch.inference_mode()
def measure(path: Path, rounds: int, context: int) -> dict[str, dict[str, float]]:
    """Returns the median times by way and number of tokens."""
    decoders = {name: load_target(path, options=options) for name, options in WAYS.items()}
    for name, decoder in decoders.items():
        print(f"{name}: {decoder.layout}", file=sys.stderr)
    runs = {
        (name, count): token_pass(decoder, context, count)
        for count in TOKENS
        for name, decoder in decoders.items()
    }
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for number in range(rounds + 1):
        for key, run in runs.items() if number % 2 else reversed(runs.items()):
            run()
            began = time.perf_counter()
            run()
            if number:
                seconds[key].append(time.perf_counter() - began)
    return {
        name: {str(count): round(statistics.median(seconds[name, count]) * 1e3, 4) for count in TOKENS}
        for name in WAYS
    }


def token_pass(decoder: Decoder, context: int, count: int) -> Callable[[], Any]:
    """Returns a pass over `count` tokens behind a context that was read before."""
    num_pages = -(-(context + count) // PAGE_SIZE)
    pool, pages = KVPool(decoder.pool_spec(num_pages, PAGE_SIZE)), list(range(num_pages))
    ids = torch.randint(
        0, decoder.spec.vocab_size, (context + count,), generator=torch.Generator().manual_seed(0)
    )

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
