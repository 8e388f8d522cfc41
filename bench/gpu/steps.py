"""Whole steps of the engine at batch 1: their time by the host's clock, and how long the device worked.

Answers are timed without a profiler, and other answers to the same prompt are profiled, because profiling
takes time. The pair with the most similar bets is compared. Used by passes.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from bench.gpu.grown import BenchSession
from bench.gpu.profiled import Profile, profile_call
from wager.bench.records import Answer, Counts
from wager.bench.runs import PolicyContender
from wager.records import SamplingParams

Row = dict[str, Any]


def timed_answers(session: BenchSession, policy: str, num_tokens: int, times: int = 10) -> list[Answer]:
    """Warm answers, timed by the host's clock.

    NOTE: take them before anything is profiled, because a profiler makes later launches slower.
    """
    contender = PolicyContender(session.llm, policy)
    prompt = session.llm.encode(next(one.text for one in session.prompts if one.kind == "code"))
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return [contender.answer(prompt, params) for _ in range(2 + times)][2:]


class ProfiledAnswer(NamedTuple):
    """The step counts of a profiled answer, and its profile."""

    counts: Counts
    profile: Profile


def profiled_answers(
    session: BenchSession, policy: str, num_tokens: int, times: int = 6
) -> tuple[list[ProfiledAnswer], Profile]:
    """Profiled answers, and the profile of reading their prompt."""
    contender = PolicyContender(session.llm, policy)
    prompt = session.llm.encode(next(one.text for one in session.prompts if one.kind == "code"))

    def answer(count: int = num_tokens) -> Answer:
        return contender.answer(prompt, SamplingParams(max_tokens=count, ignore_eos=True))

    found = []
    for _ in range(2 + times):
        answers: list[Answer] = []
        profile = profile_call(lambda own=answers: own.append(answer()))  # type: ignore[misc]
        counts = answers[0].counts
        assert counts is not None
        found.append(ProfiledAnswer(counts, profile))
    # An answer of one token shows what reading the prompt takes.
    return found[2:], profile_call(lambda: answer(1))


def mean_bet(counts: Counts) -> float:
    return sum(nodes * steps for nodes, steps in counts.bets.items()) / max(counts.steps, 1)


def step_ms(answer: Answer) -> float:
    assert answer.counts is not None
    return answer.timing.decode_s * 1e3 / max(answer.counts.steps, 1)


def most_similar(
    answers: Sequence[Answer], profiles: Sequence[ProfiledAnswer]
) -> tuple[Answer, ProfiledAnswer]:
    """The answer and the profile with the most similar bets, since the bet decides most of a step's time.

    Among equals it is the answer whose step time is nearest to the median.
    """
    usual = statistics.median(map(step_ms, answers))

    def apart(pair: tuple[Answer, ProfiledAnswer]) -> tuple[float, float]:
        counts = pair[0].counts
        assert counts is not None
        return abs(mean_bet(counts) - mean_bet(pair[1].counts)), abs(step_ms(pair[0]) - usual)

    return min(product(answers, profiles), key=apart)


def steps_row(session: BenchSession, policy: str, num_tokens: int, answers: Sequence[Answer]) -> Row:
    """Wall time, device time and tokens of a step after the first token."""
    profiles, reading = profiled_answers(session, policy, num_tokens)
    answer, seen = most_similar(answers, profiles)
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
    session.say(
        f"{policy}: a step of {row['tokens_per_step']:.2f} tokens takes {row['step_ms']:.3f} ms, "
        f"the device {busy_ms:.3f}; gap {row['gap']:.1%} (nodes {mean_bet(counts):.1f} and "
        f"{mean_bet(seen.counts):.1f})"
    )
    return row


def step_figures(step_ms: float, device_ms: float) -> Row:
    """`gap` is the share of a step in which the device is idle, `of_kernels` the other share."""
    return {
        "step_ms": step_ms,
        "device_ms": device_ms,
        "gap": 1.0 - device_ms / step_ms,
        "of_kernels": device_ms / step_ms,
    }
