"""The figures of the pairs that ship as Markdown, and their places in the pages.

    python -m bench.pair_tables

Reads the result files that it names under bench/results, measures nothing. A table stands between two comment
lines that name it; a test compares the pages with the results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from bench.pages import markdown, with_table
from bench.results import ROOT

KINDS = ("code", "math", "prose", "chat", "dialog")
RESULTS = ROOT / "bench" / "results"


def _result(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["data"]
    return data


def overview_table() -> str:
    """One line for each machine and target: tokens per second, and the speed-ups of `auto` and of the best
    fixed length or tree.
    """
    llama = _result("cpu_peers_smollm2")["whole_requests"]["tokens_per_s"]["llama.cpp, same file"]["mean"]
    transformers = _mean_speed(_result("bench_peers")["summary"], "transformers", "tokens_per_s")
    lines = [
        ("two CPU cores", "SmolLM2-135M, Q4_1", *_overview("bench_smollm2_greedy"), f"llama.cpp {llama:.0f}"),
        (
            "two CPU cores",
            "the demo pair, 18M",
            *_overview("bench_greedy"),
            f"`transformers` {transformers:.0f}",
        ),
    ]
    device = _result("gpu_pair_policies")["figures"]["greedy"]
    means = device["geometric_mean_behind_the_first_token"]
    speeds = [_mean_speed(device, name, "decode_tokens_per_s") for name in ("ar", "auto")]
    best = max(value for name, value in means.items() if name != "auto")
    figures = (f"{speeds[0]:.0f}", f"{speeds[1]:.0f}", f"{means['auto']:.2f}", f"{best:.2f}")
    lines.append(
        ("one H200", "the demo pair, grown to the shape of an 8B model", *figures, "[below](#on-a-gpu)")
    )
    head = ("machine", "target", "plain", "`auto`", "speed-up", "best fixed", "other decoders, plain")
    return markdown(head, lines)


def _overview(name: str) -> tuple[str, ...]:
    summary = _result(name)["summary"]
    speeds = [_mean_speed(summary, policy, "tokens_per_s") for policy in ("ar", "auto")]
    speedup = summary["geometric_mean_over_kinds"]["auto"]
    best = summary["best_fixed_geometric_mean"]
    return (f"{speeds[0]:.0f}", f"{speeds[1]:.0f}", f"{speedup:.2f}", f"{best:.2f}")


def _mean_speed(summary: dict[str, Any], name: str, field: str) -> float:
    return _mean([summary["by_kind"][kind][name][field] for kind in KINDS])


def busy_table() -> str:
    """Speed beside busy processes as a share of the idle speed."""
    found, lines = _result("busy"), []
    for model, said in (("demo", "demo pair"), ("smollm2", "SmolLM2")):
        for policy in ("ar", "auto"):
            shares = [f"{found[model][policy][count]['of_idle']:.2f}" for count in ("1", "2")]
            lines.append((f"{said}, `{policy}`", *shares))
    return markdown(("", "one busy", "two busy"), lines)


def speed_table() -> str:
    """Speed-up over plain decoding by kind: `auto`, the best fixed length, and the peers."""
    greedy, sampled, peers = (_result(f"bench_{name}")["summary"] for name in ("greedy", "sampled", "peers"))
    lines = [
        ("`auto`, greedy", *_by_kind(greedy, "auto")),
        ("best fixed length in hindsight, greedy", *_best(greedy)),
        ("`auto`, temperature 0.8", *_by_kind(sampled, "auto")),
        ("best fixed length in hindsight, 0.8", *_best(sampled)),
    ]
    names = {"transformers": "plain", "assisted": "assisted, chain drafter", "prompt-lookup": "prompt lookup"}
    lines += [
        (f"`transformers`, {said}, greedy", *_by_kind(peers, name))
        for name, said in names.items()
        if name in peers["geometric_mean_over_kinds"]
    ]
    return markdown(("", *KINDS, "mean"), lines)


def native_table() -> str:
    """Tokens a second of a grown pair on a CPU, native passes and plain torch's."""
    lines = []
    for name, said in (("bench_native", "native"), ("bench_native_off", "plain torch")):
        by_kind = _result(name)["summary"]["by_kind"]
        for policy in ("ar", "auto"):
            speeds = [by_kind[kind][policy]["tokens_per_s"] for kind in KINDS]
            lines.append((f"{said}, `{policy}`", *[f"{speed:.0f}" for speed in (*speeds, _mean(speeds))]))
    return markdown(("tokens a second", *KINDS, "mean"), lines)


def _mean(values: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _by_kind(summary: dict[str, Any], name: str) -> list[str]:
    own = [summary["by_kind"][kind][name]["speedup"]["mean"] for kind in KINDS]
    return [f"{value:.2f}" for value in (*own, summary["geometric_mean_over_kinds"][name])]


def _best(summary: dict[str, Any]) -> list[str]:
    own = [summary["best_fixed"][kind]["speedup"] for kind in KINDS]
    return [f"{value:.2f}" for value in (*own, summary["best_fixed_geometric_mean"])]


def figures_table() -> str:
    """What the pair reached on held-out texts."""
    found = _result("pair")
    kinds = (*KINDS, "math-natural", "math-templated")
    lines = []
    for kind in kinds:
        loss, greedy, sampled = (
            found["heldout_loss"][kind],
            found["drafter"][f"{kind}_t0"],
            found["drafter"][f"{kind}_t0.8"],
        )
        lines.append(
            (
                kind,
                str(greedy["texts"]),
                f"{loss['nats_per_token']:.2f}",
                f"{loss['nats_per_character']:.2f}",
                f"{greedy['tokens_per_step']:.2f}",
                f"{greedy['tokens_per_step_not_repeating']:.2f}",
                f"{greedy['repeated_8grams']:.0%}",
                f"{sampled['tokens_per_step']:.2f}",
                f"{sampled['tokens_per_step_not_repeating']:.2f}",
                f"{sampled['repeated_8grams']:.0%}",
            )
        )
    head = (
        "kind",
        "texts",
        "nats a token",
        "a character",
        "tokens a step, greedy",
        "not repeating",
        "repeated 8-grams",
        "at 0.8",
        "not repeating",
        "repeated 8-grams",
    )
    return markdown(head, lines)


PLACES = {
    "README.md": {"overview": overview_table, "pair speed": speed_table},
    "docs/benchmarks.md": {"pair speed": speed_table},
    "docs/native.md": {"native": native_table, "busy": busy_table},
    "wager/models/demo/README.md": {"figures": figures_table},
}


def main() -> None:
    for page, tables in PLACES.items():
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        for name, table in tables.items():
            text = with_table(text, name, table())
        path.write_text(text, encoding="utf-8")
        print("rewrote the tables of", page)


if __name__ == "__main__":
    main()
