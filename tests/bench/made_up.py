"""A run that never happened: clocks and counts from known speeds, so that every figure can be foretold."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from wager.bench.plan import BASELINE, PEERS, sets
from wager.bench.records import Counts, Measured, Run, Timing
from wager.bench.report import Report

KINDS = ("code", "prose")
SPEEDS = {"ar": 1.0, "auto": 2.0, "fixed:2": 1.5, "fixed:4": 1.25, "fixed:8": 0.5, "transformers": 0.5}
Clock = Callable[[str, str, int], float]
"""Seconds of an answer from contender, kind and place."""


def steady(contender: str, kind: str, place: int) -> float:
    """One second for plain decoding; on prose fixed:4 is the quickest of the fixed ones."""
    if (contender, kind) == ("fixed:4", "prose"):
        return 1.0 / 1.75
    return 1.0 / SPEEDS[contender]


def measured(
    contenders: Sequence[str] = tuple(SPEEDS), num: int = 3, rounds: int = 1, clock: Clock = steady
) -> Measured:
    prompts = [(kind, f"{kind}/{i}") for kind in KINDS for i in range(num)]
    found = Measured(list(contenders), prompts, finished=True)
    for one in sets([kind for kind, _ in prompts], list(contenders)[1:], rounds):
        kind = prompts[one.prompt][0]
        for place, name in enumerate(one.turns):
            wall_s = clock(name, kind, place)
            found.runs.append(Run(name, one.prompt, one.round, place, Timing(wall_s, wall_s / 4, 16, 1)))
            found.compared[name] += 1
            if name not in PEERS:
                found.add_counts(name, kind, counts(name))
    return found


def counts(name: str) -> Counts:
    """Ten steps behind the prompt. Policies bet 0 twice, 2 five times and 6 three times."""
    plain = name == BASELINE
    return Counts(
        answers=1,
        steps=10,
        emitted=15,
        prompt_steps=1,
        bets=Counter({0: 10}) if plain else Counter({0: 2, 2: 5, 6: 3}),
        accepted=Counter() if plain else Counter({0: 4, 1: 3, 2: 1}),
        drafters=Counter({"": 10}) if plain else Counter({"": 2, "block": 8}),
        stage_ms={"plan": 1.5, "draft": 0.0 if plain else 3.0, "verify": 30.0},
        prompt_ms=4.0,
        outside_ms=0.5,
        spent_ms=40.0,
        plain_ms=40.0 if plain else 60.0,
    )


def report(found: Measured | None = None, **config: Any) -> Report:
    found = found or measured()
    settings: dict[str, Any] = {
        "model": "tiny",
        "suite": "demo",
        "temperature": 0.0,
        "max_tokens": 16,
        "warmup_tokens": 8,
        "device": {"value": "cpu", "source": "test"},
        "dtype": "float32",
        "threads": 1,
        "peers": [name for name in found.contenders if name in PEERS],
    }
    origin = {
        "name": "wager bench",
        "date": "2026-01-01T00:00:00+00:00",
        "commit": None,
        "command": "wager bench",
        "machine": {"cpu": "a made-up one", "cores": 2},
    }
    return Report(origin, settings | config, found)
