"""Whole steps of the engine at batch 1: their time by the host's clock, and how much of it the device worked.

An answer is timed without a profiler and another one watched by it, since watching takes time of its own; the
two are of the same prompt, and bet as nearly alike as can be found. Used by passes.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from bench.gpu.grown import World
from bench.gpu.profiled import Profile, profiled
from wager.bench.records import Answer, Counts
from wager.bench.runs import PolicyContender
from wager.records import SamplingParams

Row = dict[str, Any]


def walked(world: World, policy: str, num_tokens: int, times: int = 10) -> list[Answer]:
    """Warm answers, timed by the host's clock alone.

    Taken before anything is profiled: a profiler that was on once makes launches slower for good.
    """
    contender = PolicyContender(world.llm, policy)
    prompt = world.llm.encode(next(one.text for one in world.prompts if one.kind == "code"))
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return [contender.answer(prompt, params) for _ in range(2 + times)][2:]


class Watched(NamedTuple):
    """A profiled answer: what its steps were, and what the device did for them."""

    counts: Counts
    profile: Profile


def watched(world: World, policy: str, num_tokens: int, times: int = 6) -> tuple[list[Watched], Profile]:
    """Profiled answers, and the profile of reading their prompt."""
    contender = PolicyContender(world.llm, policy)
    prompt = world.llm.encode(next(one.text for one in world.prompts if one.kind == "code"))

    def answer(count: int = num_tokens) -> Answer:
        return contender.answer(prompt, SamplingParams(max_tokens=count, ignore_eos=True))

    found = []
    for _ in range(2 + times):
        answers: list[Answer] = []
        profile = profiled(lambda own=answers: own.append(answer()))  # type: ignore[misc]
        counts = answers[0].counts
        assert counts is not None
        found.append(Watched(counts, profile))
    # What reading the prompt took is known from an answer of one token.
    return found[2:], profiled(lambda: answer(1))


def mean_bet(counts: Counts) -> float:
    return sum(nodes * steps for nodes, steps in counts.bets.items()) / max(counts.steps, 1)


def step_ms(answer: Answer) -> float:
    assert answer.counts is not None
    return answer.timing.decode_s * 1e3 / max(answer.counts.steps, 1)


def matched(answers: Sequence[Answer], profiles: Sequence[Watched]) -> tuple[Answer, Watched]:
    """The answer and the profile that bet most alike, since a bet's size is most of what its step takes.

    Among equals the answer whose steps take about as long as those of most.
    """
    usual = statistics.median(map(step_ms, answers))

    def apart(pair: tuple[Answer, Watched]) -> tuple[float, float]:
        counts = pair[0].counts
        assert counts is not None
        return abs(mean_bet(counts) - mean_bet(pair[1].counts)), abs(step_ms(pair[0]) - usual)

    return min(product(answers, profiles), key=apart)


def steps_row(world: World, policy: str, num_tokens: int, answers: Sequence[Answer]) -> Row:
    """Decoding behind the first token: wall time and device time of a step, tokens of a step."""
    profiles, reading = watched(world, policy, num_tokens)
    answer, seen = matched(answers, profiles)
    counts = answer.counts
    assert counts is not None
    row: Row = {"policy": policy, "steps": counts.steps, "tokens_per_step": counts.emitted / counts.steps}
    row |= {"nodes_per_step": mean_bet(counts), "profiled_nodes_per_step": mean_bet(seen.counts)}
    busy_ms = (seen.profile.busy_ms - reading.busy_ms) / max(seen.counts.steps, 1)
    row |= step_figures(step_ms(answer), busy_ms)
    row["all_step_ms"] = [step_ms(one) for one in answers]
    row["stage_ms"] = {name: ms / counts.steps for name, ms in counts.stage_ms.items()}
    row["largest_kernels_ms"] = {
        name: ms / max(seen.counts.steps, 1) for name, ms in seen.profile.largest().items()
    }
    world.say(
        f"{policy}: a step of {row['tokens_per_step']:.2f} tokens takes {row['step_ms']:.3f} ms, "
        f"the device {busy_ms:.3f}; gap {row['gap']:.1%} (nodes {mean_bet(counts):.1f} and "
        f"{mean_bet(seen.counts):.1f})"
    )
    return row


def step_figures(step_ms: float, device_ms: float) -> Row:
    """`gap`: the part of a step in which the device has nothing to do; `of_kernels`: speed end to end over
    the speed that kernel time alone would give.
    """
    return {
        "step_ms": step_ms,
        "device_ms": device_ms,
        "gap": 1.0 - device_ms / step_ms,
        "of_kernels": device_ms / step_ms,
    }
