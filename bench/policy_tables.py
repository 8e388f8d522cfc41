"""The tables of the policy comparison as Markdown, and their places in the pages.

Reads the entries of bench/results/policy.json; replays nothing. A table stands between two comment lines
that name it, so that `python -m bench.policy --docs` can rewrite it and a test can compare it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.pages import markdown, with_table
from bench.results import ROOT

Entry = dict[str, Any]
"""One content and curve under one condition; its keys are those of the result file."""

CONDITIONS = ("quiet", "noisy", "rows 4")
SHOWN = ("auto", "best-fixed", "fixed:3", "fixed:7", "fixed:15", "tree:16", "tree:64", "bod", "bod:tree")
PER_CELL = ("bod", "bod:tree", "ema+fixed:5", "fixed:7", "tree:64", "oracle-chain")


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def summaries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The figures per condition that say most, and where the minima are.

    Step by step is the ledger's way: plain time of each step's tokens, at the same number of rows.
    """
    found = []
    for condition in dict.fromkeys(entry["condition"] for entry in entries):
        group = [entry for entry in entries if entry["condition"] == condition]
        slowest, weakest = min(group, key=_over_plain), min(group, key=_over_best)
        found.append(
            {
                "condition": condition,
                "cells": len(group),
                "min_auto_over_plain": round(_over_plain(slowest), 4),
                "min_auto_over_plain_at": _place(slowest),
                "min_auto_step_by_step": min(entry["auto_step_by_step"] for entry in group),
                "min_auto_over_best_fixed": round(_over_best(weakest), 4),
                "min_auto_over_best_fixed_at": _place(weakest),
                "mean_auto_over_best_fixed": round(geometric_mean(map(_over_best, group)), 4),
            }
        )
    return found


def _over_plain(entry: Entry) -> float:
    return float(entry["speedup"]["auto"])


def _over_best(entry: Entry) -> float:
    return float(entry["speedup"]["auto"] / entry["speedup"]["best-fixed"])


def _place(entry: Entry) -> str:
    return f"{entry['kind']} {_temperature(entry)} {entry['costs']}"


def _temperature(entry: Entry) -> str:
    digits = str(entry["temperature"]).removeprefix("t")
    return f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits


def summary_table(entries: Sequence[Entry]) -> str:
    """A line per condition."""
    head = (
        "condition",
        "cells",
        "slowest `auto` / plain",
        "step by step",
        "weakest `auto` / best fixed",
        "mean of the latter",
    )
    lines = [
        (
            one["condition"],
            str(one["cells"]),
            f"{one['min_auto_over_plain']:.3f} ({one['min_auto_over_plain_at']})",
            f"{one['min_auto_step_by_step']:.3f}",
            f"{one['min_auto_over_best_fixed']:.3f} ({one['min_auto_over_best_fixed_at']})",
            f"{one['mean_auto_over_best_fixed']:.3f}",
        )
        for one in summaries(entries)
    ]
    return markdown(head, lines)


def policy_table(entries: Sequence[Entry]) -> str:
    """Mean speed-up of each policy by curve, undisturbed, and its slowest cell."""
    quiet = [entry for entry in entries if entry["condition"] == "quiet"]
    curves = list(dict.fromkeys(entry["costs"] for entry in quiet))
    lines = []
    for policy in SHOWN:
        means = [
            geometric_mean(entry["speedup"][policy] for entry in quiet if entry["costs"] == curve)
            for curve in curves
        ]
        slowest = min(entry["speedup"][policy] for entry in quiet)
        name = "best fixed, in hindsight" if policy == "best-fixed" else f"`{policy}`"
        lines.append((name, *(f"{mean:.2f}" for mean in means), f"{slowest:.3f}"))
    return markdown(("policy", *(f"`{curve}`" for curve in curves), "slowest cell"), lines)


def cell_table(entries: Sequence[Entry]) -> str:
    """Every content and curve; `auto` under all three conditions."""
    head = ("content", "T", "costs", "best fixed", "`auto`", "noisy", "rows 4", *(f"`{p}`" for p in PER_CELL))
    by_place = {(entry["condition"], _place(entry)): entry for entry in entries}
    lines = []
    for entry in entries:
        if entry["condition"] != "quiet":
            continue
        speedup = entry["speedup"]
        others = [by_place[name, _place(entry)]["speedup"]["auto"] for name in CONDITIONS[1:]]
        numbers = [speedup["auto"], *others, *(speedup[name] for name in PER_CELL)]
        best = f"{speedup['best-fixed']:.2f} ({entry['best_fixed']})"
        place = (entry["kind"], _temperature(entry), entry["costs"])
        lines.append((*place, best, *(f"{number:.2f}" for number in numbers)))
    return markdown(head, lines, words=3)


Table = Callable[[Sequence[Entry]], str]
TABLES: dict[str, Table] = {"summary": summary_table, "policies": policy_table, "cells": cell_table}
PAGES = {ROOT / "README.md": ("policies",), ROOT / "docs" / "policy.md": ("summary", "cells")}


def read_entries(result: Path) -> list[Entry]:
    entries: list[Entry] = json.loads(result.read_text(encoding="utf-8"))["data"]["cells"]
    return entries


def rewritten(text: str, names: Iterable[str], entries: Sequence[Entry]) -> str:
    """The page with these tables anew. Raises ValueError where one has no place."""
    for name in names:
        text = with_table(text, name, TABLES[name](entries))
    return text


def rewrite_pages(result: Path) -> list[str]:
    """Put the result's tables into the pages; returns their names."""
    entries = read_entries(result)
    for page, names in PAGES.items():
        page.write_text(rewritten(page.read_text(encoding="utf-8"), names, entries), encoding="utf-8")
    return [str(page.relative_to(ROOT)) for page in PAGES]
