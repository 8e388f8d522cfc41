"""What a look at a draft is worth: `auto` after a look and sight unseen, on recorded drafts, at equal costs.

    python -m bench.blind --traces F.npz [--costs h200] [--docs]

A replay, not wall time. Both pay the same for their passes and drafts, so what the look gains is what it may
cost: `worth_ms` is the time a step may stand still for it before it loses. Every policy goes over a trace
once before it is scored, as on a server that has run for a while. `--docs` rewrites the table in the page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.pages import markdown, with_table
from bench.policy_tables import geometric_mean
from bench.results import RESULTS, ROOT, write_result
from wager.policy import Controller
from wager.trace import Content, ReplayOptions, StepCosts, load_costs, load_traces, replay, select
from wager.trace.blindly import Blindly

RESULT = RESULTS / "blind.json"
PAGE = ROOT / "docs" / "policy.md"
ROWS = (1, 4, 16)


def measured(content: Content, costs: StepCosts, rows: int) -> dict[str, Any]:
    """One content with so many rows in a step."""
    options, found, steps = ReplayOptions(rows=rows), dict[str, float](), 0
    blindly = Blindly("auto")
    for name, controller in {"looked": Controller("auto"), "blind": blindly}.items():
        replay(content.traces, costs, controller, options)
        run = replay(content.traces, costs, controller, options)
        found[name] = run.time_ms / run.tokens
        if name == "looked":
            steps, tokens = len(run.steps), run.tokens
    plain = replay(content.traces, costs, "ar", options)
    plain_ms = plain.time_ms / plain.tokens
    return {
        "kind": content.kind,
        "temperature": content.temperature,
        "rows": rows,
        "looked": plain_ms / found["looked"],
        "blind": plain_ms / found["blind"],
        "worth_ms": (found["blind"] - found["looked"]) * tokens / steps,
        "bets_unseen": blindly.unread / max(1, blindly.unread + blindly.looked),
    }


def summary(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the contents, by rows and temperature."""
    found = []
    for rows in dict.fromkeys(cell["rows"] for cell in cells):
        for heat in dict.fromkeys(cell["temperature"] for cell in cells):
            own = [cell for cell in cells if cell["rows"] == rows and cell["temperature"] == heat]
            means = {name: geometric_mean(cell[name] for cell in own) for name in ("looked", "blind")}
            worth = sum(cell["worth_ms"] for cell in own) / len(own)
            found.append({"rows": rows, "temperature": heat, **means, "worth_ms": worth})
    return found


def table(path: Path) -> str:
    """The means of a result file as Markdown."""
    data = json.loads(path.read_text(encoding="utf-8"))["data"]
    head = ("rows", "temperature", "after a look", "sight unseen", "worth of a look, ms a step")
    lines = [
        (
            str(one["rows"]),
            "0.8" if one["temperature"] != "t0" else "0",
            f"{one['looked']:.3f}",
            f"{one['blind']:.3f}",
            f"{one['worth_ms']:.3f}",
        )
        for one in data["summary"]
    ]
    return markdown(head, lines, words=2)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.blind",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", type=Path, metavar="F.npz", help="recorded drafts to replay")
    parser.add_argument(
        "--costs", default="h200", help="what steps cost, as `wager simulate` knows it [h200]"
    )
    parser.add_argument("--json", type=Path, default=RESULT, help="result file [bench/results/blind.json]")
    parser.add_argument("--docs", action="store_true", help="rewrite the table in the page")
    given = parser.parse_args()
    if given.traces is None and not given.docs:
        parser.error("--traces or --docs is needed")
    if given.traces is not None:
        costs, cells = load_costs(given.costs), list[dict[str, Any]]()
        for content in select(load_traces(given.traces).traces):
            for rows in ROWS:
                cells.append(measured(content, costs, rows))
                one = cells[-1]
                print(
                    f"{one['kind']:8s} {one['temperature']:4s} {rows} rows: after a look "
                    f"{one['looked']:.3f}, "
                    f"sight unseen {one['blind']:.3f}, a look is worth {one['worth_ms']:.3f} ms a step",
                    flush=True,
                )
        config = {
            "traces": given.traces.name,
            "traces_sha256": hashlib.sha256(given.traces.read_bytes()).hexdigest(),
            "costs": given.costs,
        }
        print(
            "written to",
            write_result("blind", config, {"summary": summary(cells), "cells": cells}, given.json),
        )
    if given.docs:
        PAGE.write_text(
            with_table(PAGE.read_text(encoding="utf-8"), "blind", table(given.json)), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
