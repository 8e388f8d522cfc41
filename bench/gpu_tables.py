"""Write the tables of docs/results-gpu.md from the result files of bench/gpu.

    python -m bench.gpu_tables

Reads bench/results/gpu_{passes,narrow,pair,batch,batch_chains,load}.json and measures nothing. A table stands
between two comment lines that name it; a test compares the page with the results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bench.pages import markdown, with_table
from bench.results import RESULTS, ROOT

PAGE = ROOT / "docs" / "results-gpu.md"
KINDS = ("code", "math", "prose", "chat", "dialog")
MIXES = ("mixed", "code", "prose", "code and prose", "half sampled")
TOKENS = (1, 4, 8, 16, 32, 64, 128)
CONTEXT = 1024


def _data(name: str) -> Any:
    return json.loads((RESULTS / f"gpu_{name}.json").read_text(encoding="utf-8"))["data"]


def passes_table() -> str:
    rows = {row["tokens"]: row for row in _data("passes")["figures"]["target"] if row["context"] == CONTEXT}
    lines = [
        (name, *[f"{rows[tokens][field]:.2f}" for tokens in TOKENS])
        for name, field in (
            ("pass, ms", "ms"),
            ("over the reference floor", "over_reference_floor"),
            ("over the measured floor", "over_floor"),
        )
    ]
    return markdown((f"tokens after a context of {CONTEXT:,}", *map(str, TOKENS)), lines)


def narrow_table() -> str:
    """Milliseconds of the products of a pass.

    NOTE: the sums of the result file are in milliseconds, although their key is `best_us`.
    """
    sums = [row for row in _data("narrow") if "pass_tokens" in row]
    lines = [("bfloat16, the library's", *[f"{row['library_ms']:.2f}" for row in sums])]
    for kind in sums[0]["ways_ms"]:
        bits, _, group = kind.partition(" by ")
        times = [f"{row['ways_ms'][kind]['best_us']:.2f}" for row in sums]
        lines.append((f"{bits}, groups of {group}", *times))
    return markdown(("ms by tokens", *[str(row["pass_tokens"]) for row in sums]), lines)


def pair_table() -> str:
    """Speed-up over plain decoding after the first token; of the sampled chains only the longest is shown."""
    figures = _data("pair")["figures"]
    lines = []
    for label, heat, hidden in (("greedy", "", ()), ("T=0.8", ", 0.8", ("fixed:4",))):
        race = figures[label]
        means = race["geometric_mean_behind_the_first_token"]
        for name in _ordered([one for one in means if one not in hidden]):
            cells = [race["by_kind"][kind][name]["decode_speedup"] for kind in KINDS]
            lines.append((f"`{name}`{heat}", *[f"{cell:.2f}" for cell in (*cells, means[name])]))
    return markdown(("", *KINDS, "mean"), lines)


def _ordered(names: Sequence[str]) -> list[str]:
    """Policies in the order of the table: `auto`, trees, chains."""
    return sorted(names, key=lambda name: ("auto", "tree", "fixed").index(name.partition(":")[0]))


def batch_table() -> str:
    """Total speed over plain decoding; for few requests also the mean speed of a request."""
    cells, chains = _cells("batch"), _cells("batch_chains")
    lines = []
    for batch in (64, 16, 4):
        for policy in ("auto", "fixed:15"):
            lines.append(_batch_line(f"{batch} requests, `{policy}`", cells, batch, "over_ar", policy))
        if batch > 4:
            what = f"{batch} requests, `fixed:4`, another run"
            lines.append(_batch_line(what, chains, batch, "over_ar", "fixed:4"))
    for batch in (16, 4):
        for policy in ("auto", "fixed:15"):
            what = f"{batch} requests, mean speed of a request, `{policy}`"
            lines.append(_batch_line(what, cells, batch, "mean_request_over_ar", policy))
    return markdown(("total speed over plain decoding", *MIXES), lines)


def _cells(name: str) -> dict[tuple[int, str], Any]:
    return {(cell["batch"], cell["mix"]): cell for cell in _data(name)["figures"]["cells"]}


def _batch_line(
    what: str, cells: dict[tuple[int, str], Any], batch: int, field: str, policy: str
) -> tuple[str, ...]:
    found = [cells.get((batch, mix)) for mix in MIXES]
    values = [None if cell is None else cell[field][policy] for cell in found]
    near = policy == "auto" and batch > 4  # differences are small there
    return what, *["" if value is None else f"{value:.{3 if near else 2}f}" for value in values]


def load_table() -> str:
    """The closed loop by places: plain decoding, `auto` over it, and the control, greedy and sampled."""
    cells = {
        (cell["places"], cell["temperature"]): cell
        for cell in _data("load")["figures"]["cells"]
        if cell["driver"] == "direct"
    }
    temperatures = sorted({temperature for _, temperature in cells})
    head = ["places"]
    for temperature in temperatures:
        name = "greedy" if temperature == 0.0 else f"{temperature:g}"
        head += [f"`ar` tokens/s, {name}", f"`auto` over `ar`, {name}", f"control, {name}"]
    lines = []
    for places in sorted({places for places, _ in cells}):
        found = [cells.get((places, temperature)) for temperature in temperatures]
        lines.append((str(places), *[text for cell in found for text in _load_figures(cell)]))
    return markdown(head, lines)


def _load_figures(cell: Any) -> tuple[str, str, str]:
    if cell is None:
        return "", "", ""
    return f"{cell['tokens_per_s']['ar']:.0f}", f"{cell['over_ar']['auto']:.3f}", f"{cell['control']:.3f}"


TABLES = {"passes": passes_table, "narrow": narrow_table, "pair": pair_table, "batches": batch_table}
if (RESULTS / "gpu_load.json").exists():
    TABLES["load"] = load_table


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        text = with_table(text, name, table())
    PAGE.write_text(text, encoding="utf-8")
    print("rewrote the tables of", PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
