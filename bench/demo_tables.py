"""The table of a demo's result file as Markdown, and its places in the pages.

    wager demo --json > bench/results/demo.json
    python -m bench.demo_tables

Reads the file, measures nothing. A table stands between two comment lines that name it; a test compares the
pages with the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.pages import markdown, place_of, with_table
from bench.results import RESULTS, ROOT

RESULT = RESULTS / "demo.json"
TABLE = "demo"
PAGES = ("README.md", "docs/demo.md")
"""Pages that may have a place for the table."""


def demo_table(result: Mapping[str, Any]) -> str:
    """The demo's own table, and a line on what was measured where."""
    data = result["data"]
    head = ("kind", "plain tokens/s", "Wager tokens/s", "speed-up", "by prompt", "tokens per step", "verdict")
    lines = [
        (
            one["kind"],
            f"{one['plain_tokens_per_s']:.0f}",
            f"{one['wager_tokens_per_s']:.0f}",
            f"{one['speedup']:.2f}",
            _range(one["lowest"], one["highest"]),
            f"{one['tokens_per_step']:.2f}",
            one["verdict"],
        )
        for one in data["kinds"]
    ]
    whole = data["overall"]
    span = "" if whole["low"] is None else _range(whole["low"], whole["high"])
    lines.append(("mean, 95 % range", "", "", f"{whole['speedup']:.2f}", span, "", whole["verdict"]))
    return f"{markdown(head, lines)}\n\n{_caption(result)}"


def _range(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"


def _caption(result: Mapping[str, Any]) -> str:
    config, data, machine = result["config"], result["data"], result["machine"]
    temperature, passes = config["temperature"], config["passes"]["value"]
    parts = (
        f"`{config['model']}` ({config['num_weights'] / 1e6:.0f} million weights)",
        f"drafter {' and '.join(config['drafter']['value'])}",
        f"temperature {temperature:g}" if temperature else "greedy",
        f"{len(data['trials'])} answers of at most {config['max_tokens']} tokens",
    )
    place = (
        machine["cpu"],
        f"{machine['cores']} cores",
        f"{config['threads']} threads",
        f"{'plain torch' if passes == 'torch' else passes} passes",
    )
    return (
        f"{', '.join(parts)}. {', '.join(place)}. "
        f"Two plain runs of one prompt differ by {data['scatter']['difference']:.1%} (median), and "
        f"{data['repeated_8grams']:.0%} of all 8-grams had occurred in the same answer before. "
        "File: `bench/results/demo.json`."
    )


def read_result(path: Path = RESULT) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def pages_with_place() -> list[Path]:
    """The pages that have a place for the table."""
    paths = [ROOT / page for page in PAGES]
    return [path for path in paths if place_of(TABLE).search(path.read_text(encoding="utf-8"))]


def main() -> None:
    table, paths = demo_table(read_result()), pages_with_place()
    for path in paths:
        path.write_text(with_table(path.read_text(encoding="utf-8"), TABLE, table), encoding="utf-8")
        print("rewrote the table of", path.name)
    if not paths:
        print(f"{table}\n\nno page has a place for it: <!-- table: {TABLE} --> and <!-- end -->")


if __name__ == "__main__":
    main()
