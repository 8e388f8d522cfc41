"""Does anybody wait for the compiler? The first request's first token, in processes with an empty cache.

    python -m bench.cpu.first_token [--rounds 5] [--json PATH]

Every process loads the demo pair, answers one request at once, and is timed from the request to its first
token: with native passes being built meanwhile, with none, and with the library at hand. They take turns,
there and back; medians. What passes cost afterwards is bench.cpu.passes'.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.results import ROOT, write_result
from wager.bench.results import load_average

WAYS = ("off", "building", "built")
"""No native passes; an empty cache; the library in the cache."""
BUILD = "from wager.nn.native import build; print(build.build().reason)"
ASK = """
import json, sys, time
begin = time.perf_counter()
from wager.llm import LLM
from wager.records import SamplingParams
llm = LLM("demo", dtype="float32", native=sys.argv[1], threads=int(sys.argv[2]))
loaded = time.perf_counter()
first = None
for event in llm.stream(sys.argv[3], SamplingParams(max_tokens=32, ignore_eos=True)):
    first = first or time.perf_counter()
times = {"load_s": loaded - begin, "first_token_s": first - loaded}
print(json.dumps(times | {"passes": llm.notes["passes"]["value"]}))
"""
PROMPT = "Write a function that adds two numbers.\n\ndef add(a, b):\n"


def ask(way: str, warm: Path, threads: int) -> dict[str, Any]:
    """One process: what it took, in seconds."""
    with tempfile.TemporaryDirectory() as empty:
        home = str(warm) if way == "built" else empty
        command = [sys.executable, "-c", ASK, "off" if way == "off" else "on", str(threads), PROMPT]
        done = subprocess.run(
            command,
            env=os.environ | {"XDG_CACHE_HOME": home},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(rounds: int, threads: int) -> dict[str, Any]:
    """All processes, one after the other."""
    times: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as warm:
        environment = os.environ | {"XDG_CACHE_HOME": warm}
        subprocess.run([sys.executable, "-c", BUILD], env=environment, cwd=ROOT, check=True)
        for _ in range(rounds):
            for way in (*WAYS, *reversed(WAYS)):
                times[way].append(ask(way, Path(warm), threads))
    medians = {
        way: {
            key: round(statistics.median(one[key] for one in found), 4) for key in ("load_s", "first_token_s")
        }
        for way, found in times.items()
    }
    return {"medians": medians, "all": times}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    before = load_average()
    data = run(options.rounds, options.threads)
    for way, found in data["medians"].items():
        first_ms, load_s = found["first_token_s"] * 1e3, found["load_s"]
        print(f"{way:9} first token after {first_ms:6.1f} ms, loaded in {load_s:.2f} s")
    config = {"model": "demo", "rounds": options.rounds, "threads": options.threads, "load_before": before}
    print(f"wrote {write_result('first_token', config, data, options.json)}")


if __name__ == "__main__":
    main()
