"""Decoding beside busy processes: tokens per second with none, one and two of them, `ar` and `auto`.

    python -m bench.cpu.busy [--model demo --model smollm2] [--native on] [--native off] [--json PATH]

A busy process is a plain Python loop that this benchmark starts and ends. The numbers of busy processes take
turns in one process, and the policies in the order A B B A. A sample in which other programs used the machine
is measured again, a few times at most, and what they used is written beside it. Every text must be equal to
the first one of its prompt.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.results import write_result
from wager.bench.results import load_average
from wager.llm import LLM
from wager.records import SamplingParams

BUSY = (0, 1, 2)
TURNS = ("ar", "auto", "auto", "ar")
PROMPTS = ("Tell me about the sea.", "def parse(text):")
QUIET_CORES = 0.15
"""The most that other programs may use during a sample, in cores."""
HOG_S = 600
_HOG = (
    "import os, time\n"
    "parent, end = os.getppid(), time.monotonic() + {seconds}\n"
    "while os.getppid() == parent and time.monotonic() < end:\n"
    "    for _ in range(100_000): pass\n"
)


class Sample(NamedTuple):
    """One answer, and how many cores other programs used meanwhile."""

    tokens_per_s: float
    foreign_cores: float


@contextmanager
def hogs(count: int) -> Iterator[list[int]]:
    """Keeps this many cores busy; yields the process ids."""
    command = [sys.executable, "-I", "-c", _HOG.format(seconds=HOG_S)]
    running = [subprocess.Popen(command) for _ in range(count)]
    try:
        time.sleep(0.3)  # they start, and the system finds a core for each
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


class Clock:
    """Wall time, and the processor time of everything but this process and its busy ones."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._start, self._foreign_s = time.perf_counter(), self._foreign()

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._start

    def foreign_cores(self) -> float:
        return max(0.0, self._foreign() - self._foreign_s) / self.elapsed_s()

    def _foreign(self) -> float:
        """Returns seconds since the machine's start; 0 where the system does not say."""
        try:
            fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            ticks = sum(fields) - fields[3] - fields[4]  # neither idle nor waiting for a disk
            for pid in self._pids:
                own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks -= int(own[11]) + int(own[12])
        except OSError:
            return 0.0
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


class Race:
    """One model with one kind of passes."""

    def __init__(self, model: str, native: str, tokens: int) -> None:
        self.tokens = tokens
        self.llm = LLM(model, policy="auto", native=native, prefix_reuse=False)
        self.llm.settle(print)
        self._texts: dict[str, list[int]] = {}

    def sample(self, policy: str, prompt: str, pids: Sequence[int], retries: int) -> Sample:
        """Measures one answer, again while other programs disturb it; returns the least disturbed one."""
        if self.llm.engine.controller.policy.name != policy:
            self.llm.set_policy(policy)
        best = None
        for _ in range(retries + 1):
            clock = Clock(pids)
            params = SamplingParams(max_tokens=self.tokens, ignore_eos=True)
            (output,) = self.llm.generate(prompt, params)
            found = Sample(self.tokens / clock.elapsed_s(), clock.foreign_cores())
            if self._texts.setdefault(prompt, output.token_ids) != output.token_ids:
                raise SystemExit(f"bench: the text of {prompt!r} has changed")
            if best is None or found.foreign_cores < best.foreign_cores:
                best = found
            if best.foreign_cores <= QUIET_CORES:
                break
        assert best is not None
        return best

    def run(self, rounds: int, retries: int) -> dict[str, Any]:
        samples: dict[tuple[str, int], list[Sample]] = {}
        for policy in TURNS[:2]:  # `auto` learns before it is measured
            for prompt in PROMPTS:
                self.sample(policy, prompt, [], 0)
        for _ in range(rounds):
            for count in BUSY:
                with hogs(count) as pids:
                    for policy in TURNS:
                        for prompt in PROMPTS:
                            found = self.sample(policy, prompt, pids, retries)
                            samples.setdefault((policy, count), []).append(found)
        return summary(samples) | {
            "passes": self.llm.notes["passes"],
            "threads": self.llm.notes["threads"],
            "samples": {f"{policy} {count}": found for (policy, count), found in samples.items()},
        }


def summary(samples: dict[tuple[str, int], list[Sample]]) -> dict[str, Any]:
    """Medians of tokens per second, their share of the idle speed, and `auto` over `ar`."""
    speeds = {key: statistics.median(one.tokens_per_s for one in found) for key, found in samples.items()}
    return {
        policy: {
            str(count): {
                "tokens_per_s": round(speeds[policy, count], 1),
                "of_idle": round(speeds[policy, count] / speeds[policy, 0], 3),
                "over_ar": round(speeds[policy, count] / speeds["ar", count], 3),
                "disturbed": sum(one.foreign_cores > QUIET_CORES for one in samples[policy, count]),
            }
            for count in BUSY
        }
        for policy in TURNS[:2]
    }


def show(name: str, data: dict[str, Any]) -> None:
    for policy in TURNS[:2]:
        for count, found in data[policy].items():
            print(
                f"{name:14} {policy:5} {count} busy: {found['tokens_per_s']:7.1f} tokens/s, "
                f"{found['of_idle']:.2f} of idle, {found['over_ar']:.2f} of ar, "
                f"{found['disturbed']} of {len(data['samples'][f'{policy} {count}'])} disturbed",
                flush=True,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", default=None)
    parser.add_argument("--native", action="append", choices=("on", "off"), default=None)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    before, data = load_average(), dict[str, Any]()
    for model in options.model or ["demo", "smollm2"]:
        for native in options.native or ["on"]:
            name = model if native == "on" else f"{model}, torch"
            data[name] = Race(model, native, options.tokens).run(options.rounds, options.retries)
            show(name, data[name])
    config = {key: value for key, value in vars(options).items() if key != "json"}
    config |= {"busy": BUSY, "prompts": PROMPTS, "load_average": [before, load_average()]}
    print(f"wrote {write_result('busy', config, data, options.json)}")


if __name__ == "__main__":
    main()
