"""What policies would make of many requests at once on a device: 64 of them, then 32, 16 and 8.

    python -m bench.crowd --traces F.npz [--json PATH]
    python -m bench.crowd --docs                        its table in docs/policy.md, from the result file

A replay, not wall time, of recorded drafts under the costs of an 8B model on one H200, with what a crowd adds
to a step that drafts: each row's part of the draft and of the host's work, and the first draft behind plain
steps, which reads in all that was missed. Plain steps in which drafters were asked wait for the host as well.
How much that is differs from host to host, so three are played. A policy keeps what it has learned as the
crowd shrinks, and begins with costs as calibration leaves them. Beside it stand chains that always bet: where
one of those is faster than plain decoding, `auto` should be.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.pages import markdown, with_table
from bench.results import RESULTS, ROOT, write_result
from wager.costs import MAX_TOKENS, CostModel, DraftTime, PassTime
from wager.errors import WagerError
from wager.policy import Controller, Experience
from wager.trace.costs import StepCosts, step_costs
from wager.trace.format import Trace, load_traces
from wager.trace.replay import ReplayOptions, replay

PAGE = ROOT / "docs" / "policy.md"
RESULT = RESULTS / "crowd.json"
MIXED = "all"
ROWS = (64, 32, 16, 8)
POLICIES = ("auto", "fixed:2", "fixed:4")
DRAFT_MS, ROW_MS = 0.9, 0.06
"""A draft on the device alone, which is what calibration sees: of one row, and for each further one."""
HOSTS = {"quick": (0.06, 3.0), "middling": (0.12, 6.0), "slow": (0.25, 10.0)}
"""Milliseconds that the host adds for each row that drafts, or is asked in a plain step, and how late a first
draft is."""
PASSES = {1: 4.2, 16: 4.6, 32: 4.9, 64: 5.6, 128: 6.6, 256: 8.8, 512: 14.1, 1024: 25.6}
"""Times of passes by tokens, as measured with 1 to 64 rows behind short contexts, rounded."""
WAVES = 3
"""How often all rows of a crowd are taken by new requests, at least."""


def costs_of(host: str) -> StepCosts:
    host_ms, begin_ms = HOSTS[host]
    others = {"row_ms": ROW_MS + host_ms, "begin_ms": begin_ms, "ask_ms": host_ms}
    return step_costs(f"h200, {host} host", DRAFT_MS, PASSES, **others)


def calibrated() -> Experience:
    """What an engine on that device knows before its first request."""
    costs, curve = CostModel(warm_up=0), costs_of("quick").verify
    sizes = [(rows, rows * each) for rows in (1, 4, 16, 64) for each in (1, 2, 4, 8, 16)]
    costs.load(
        [PassTime(tokens, rows, 0, curve(tokens)) for rows, tokens in sizes if tokens <= MAX_TOKENS],
        [DraftTime("draft", rows, 0, DRAFT_MS + ROW_MS * (rows - 1)) for rows in (1, 4, 16, 64)],
    )
    return Experience(costs)


def play(traces: Sequence[Trace], policy: str, costs: StepCosts) -> list[dict[str, Any]]:
    """One policy, through every size of crowd in turn."""
    controller, found = Controller(policy, calibrated()), []
    for rows in ROWS:
        each = sum(trace.num_sequences for trace in traces)
        run = replay(list(traces) * -(-rows * WAVES // each), costs, controller, ReplayOptions(rows))
        share = run.drafted_steps / len(run.steps)
        found.append({"rows": rows, "speedup": round(run.speedup, 4), "drafted_share": round(share, 4)})
    return found


def measure(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    contents = {f"{trace.kind} {trace.temperature}": [trace] for trace in traces} | {MIXED: list(traces)}
    cells = []
    for number, (content, own) in enumerate(contents.items(), 1):
        for host in HOSTS:
            for policy in POLICIES:
                for one in play(own, policy, costs_of(host)):
                    cells.append({"content": content, "host": host, "policy": policy, **one})
        print(f"{number} of {len(contents)}: {content}", file=sys.stderr, flush=True)
    return cells


def show(cells: Sequence[dict[str, Any]]) -> None:
    """A line for every content, host and size: `auto`, how often it drafts, and the better chain."""
    speeds = {(one["content"], one["host"], one["rows"], one["policy"]): one for one in cells}
    print(f"{'':18}{'host':10}" + "".join(f"{rows:>6} rows         " for rows in ROWS))
    for content, host in dict.fromkeys((one["content"], one["host"]) for one in cells):
        line = f"{content:18}{host:10}"
        for rows in ROWS:
            auto = speeds[content, host, rows, "auto"]
            chain = max(speeds[content, host, rows, policy]["speedup"] for policy in POLICIES[1:])
            line += f"{auto['speedup']:6.3f} {auto['drafted_share']:4.0%} ({chain:.2f})  "
        print(line)


def summary(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each size: the slowest of `auto`, and the least it has of the better of chain and plain decoding."""
    found = {}
    for rows in ROWS:
        own = {(c["content"], c["host"], c["policy"]): c["speedup"] for c in cells if c["rows"] == rows}
        auto = {key[:2]: value for key, value in own.items() if key[2] == "auto"}
        best = {key: max(1.0, *[own[*key, policy] for policy in POLICIES[1:]]) for key in auto}
        ratios = {key: auto[key] / best[key] for key in auto}
        least = min(ratios, key=lambda key: ratios[key])
        found[str(rows)] = {
            "slowest": min(auto.values()),
            "least_of_best": round(ratios[least], 4),
            "least_of_best_at": ", ".join(least),
        }
    return found


def crowd_table(cells: Sequence[dict[str, Any]]) -> str:
    """All contents mixed, by host: `auto`, and the better chain."""
    mixed = {(c["host"], c["policy"], c["rows"]): c["speedup"] for c in cells if c["content"] == MIXED}
    lines = []
    for host in HOSTS:
        chains = [max(mixed[host, chain, rows] for chain in POLICIES[1:]) for rows in ROWS]
        for name, speeds in (("`auto`", [mixed[host, "auto", rows] for rows in ROWS]), ("chain", chains)):
            lines.append((f"{host} host, {name}", *[f"{speed:.3f}" for speed in speeds]))
    return markdown(("rows", *map(str, ROWS)), lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.crowd",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", type=Path, metavar="F.npz", help="recorded drafts")
    parser.add_argument("--json", type=Path, default=RESULT, help="result file [bench/results/crowd.json]")
    parser.add_argument("--docs", action="store_true", help="rewrite the table in docs/policy.md")
    options = parser.parse_args()
    if options.traces is None and not options.docs:
        parser.error("--traces or --docs is needed")
    if options.traces is not None:
        run(parser, options)
    if options.docs:
        cells = json.loads(options.json.read_text(encoding="utf-8"))["data"]["cells"]
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_table(page, "crowd", crowd_table(cells)), encoding="utf-8")
        print("rewrote the table of", PAGE.relative_to(ROOT))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    try:
        cells = measure(load_traces(options.traces).traces)
    except WagerError as error:
        parser.error(str(error))
    show(cells)
    found = summary(cells)
    for rows, one in found.items():
        print(
            f"{rows} rows: slowest {one['slowest']:.3f}, at least {one['least_of_best']:.3f} of the best "
            f"({one['least_of_best_at']})"
        )
    config = {
        "traces": options.traces.name,
        "traces_sha256": hashlib.sha256(options.traces.read_bytes()).hexdigest(),
        "rows": ROWS,
        "passes_ms": PASSES,
        "draft_ms": [DRAFT_MS, ROW_MS],
        "hosts": HOSTS,
        "waves": WAVES,
    }
    path = write_result("crowd", config, {"summary": found, "cells": cells}, options.json)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
