"""What policies would have made of a recorded trace: every content, three cost curves, three conditions.

A replay, not wall time: drafts and verdicts are recorded, step times come from measured curves. Conditions
are undisturbed times, disturbed ones (spread and stalls, which policies see and the score does not), and four
rows in a pass. `python -m bench.policy --traces F.npz` measures; `--docs` rewrites the tables in the pages
from the result file (policy_tables.py).
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.policy_tables import Entry, rewrite_pages, summaries
from bench.results import RESULTS, write_result
from wager.errors import WagerError
from wager.trace import (
    Comparison,
    Noise,
    Run,
    SimulateOptions,
    compare,
    load_costs,
    load_traces,
    plan,
    select,
)
from wager.trace.simulate import Progress

POLICIES = (
    "auto",
    "bod",
    "bod:tree",
    "ema+fixed:5",
    "fixed:3",
    "fixed:7",
    "fixed:15",
    "tree:16",
    "tree:64",
)
CURVES = ("cpu", "h200", "moe")
RESULT = RESULTS / "policy.json"


class Condition(NamedTuple):
    """One way to replay everything."""

    name: str
    options: SimulateOptions


def conditions(seed: int) -> tuple[Condition, ...]:
    disturbed = Noise(spread=0.2, stall_chance=0.01, stall_factor=20.0, seed=seed)
    return (
        Condition("quiet", SimulateOptions()),
        Condition("noisy", SimulateOptions(noise=disturbed)),
        Condition("rows 4", SimulateOptions(rows=4)),
    )


def entries(condition: str, runs: Sequence[Run]) -> list[Entry]:
    """One entry per content and curve: the speed-up of every policy, and what `auto` did there."""
    found: dict[tuple[str, str, str], Entry] = {}
    for run in runs:
        cell = run.cell
        entry = found.setdefault(
            (cell.kind, cell.temperature, cell.costs),
            {
                "condition": condition,
                "kind": cell.kind,
                "temperature": cell.temperature,
                "costs": cell.costs,
                "tokens": cell.tokens,
                "speedup": {},
            },
        )
        entry["speedup"][cell.policy] = round(cell.speedup, 4)
        if cell.policy == "ar":
            entry["plain_tokens_per_s"] = round(cell.tokens_per_s, 2)
        elif cell.policy == "best-fixed":
            entry["best_fixed"] = cell.detail
        elif cell.policy == "auto":
            entry["auto_drafted_share"] = round(cell.drafted_steps / cell.steps, 4)
            entry["auto_step_by_step"] = round(run.replay.speedup, 4)
            entry["auto_mean_nodes"] = round(cell.mean_nodes, 2)
            entry["auto_ledger_min_ms"] = round(cell.ledger_min, 2)
    return list(found.values())


def measure(traces: Path, seed: int) -> list[Entry]:
    contents = select(load_traces(traces).traces)
    curves = [load_costs(name) for name in CURVES]
    found: list[Entry] = []
    for condition in conditions(seed):
        comparison = plan(contents, curves, POLICIES, condition.options)
        found += entries(condition.name, compare(comparison, _progress(condition.name, comparison)))
    return found


def _progress(condition: str, comparison: Comparison) -> Progress:
    step = max(comparison.num_cells // 10, 1)

    def show(done: int, total: int, _label: str) -> None:
        if done and done % step == 0:
            print(f"{condition}: {done} of {total} cells", file=sys.stderr, flush=True)

    return show


def show(found: Sequence[Entry]) -> None:
    """A line per condition."""
    for one in summaries(found):
        print(
            f"{one['condition']:<7} {one['cells']} cells: "
            f"auto/ar at least {one['min_auto_over_plain']:.3f} ({one['min_auto_over_plain_at']}), "
            f"auto/best-fixed at least {one['min_auto_over_best_fixed']:.3f} "
            f"({one['min_auto_over_best_fixed_at']}), mean {one['mean_auto_over_best_fixed']:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.policy", description=__doc__)
    parser.add_argument("--traces", type=Path, metavar="F.npz", help="recorded drafts to replay")
    parser.add_argument("--json", type=Path, default=RESULT, help="result file [bench/results/policy.json]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the disturbed times")
    parser.add_argument("--docs", action="store_true", help="rewrite the tables in the pages")
    options = parser.parse_args()
    if options.traces is None and not options.docs:
        parser.error("--traces or --docs is needed")
    if options.traces is not None:
        try:
            found = measure(options.traces, options.seed)
        except WagerError as error:
            parser.error(str(error))
        config = {
            "traces": options.traces.name,
            "traces_sha256": hashlib.sha256(options.traces.read_bytes()).hexdigest(),
            "seed": options.seed,
            "policies": list(POLICIES),
            "costs": list(CURVES),
            "conditions": {"quiet": "", "noisy": "--noise 0.2 --stalls 0.01x20", "rows 4": "--rows 4"},
        }
        path = write_result("policy", config, {"summary": summaries(found), "cells": found}, options.json)
        print(f"written to {path}")
        show(found)
    if options.docs:
        for page in rewrite_pages(options.json):
            print(f"rewrote the tables of {page}")


if __name__ == "__main__":
    main()
