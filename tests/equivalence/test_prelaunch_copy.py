"""Verify passes launched on the assumption that a copy is fully accepted: the same texts, right or wrong.

The drafter of these tests knows the text, except for places at which it is told to guess wrongly.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.equivalence.kernel_engines import MARKS, engine_of, jobs
from tests.equivalence.world import Job, Run, World, alone, drive, is_clean
from tests.nn.kernels import interpreter
from wager.draft.base import Drafter, DraftRow, Proposal
from wager.engine.engine import Engine
from wager.engine.pipeline import InFlight, Strategy
from wager.engine.telemetry import StepReport
from wager.nn.noise import NoiseSource
from wager.policy import Coming, Experience, Inquiry, Offer, Plan, Row
from wager.policy.simple import Fixed
from wager.target import PreparedPass, RunResult

pytestmark = MARKS
assert interpreter
DEPTH = 5


class Knowing(Drafter):
    """Guesses what plain decoding wrote, but for tokens at these places of the text."""

    name = "knowing"
    runs_no_network = True

    def __init__(self, texts: dict[Hashable, list[int]], lies: Sequence[int] = ()) -> None:
        self.texts, self.lies = texts, lies

    def can_propose(self, row: DraftRow) -> bool:
        return len(row.tokens) < len(self.texts[row.request_id])

    def propose(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        found = [self._guesses(row, len(row.tokens), row.depth or DEPTH) for row in rows]
        return [Proposal(np.array(own, np.int64)[:, None], None) if own else None for own in found]

    def continuation(self, row: DraftRow, num_accepted: int) -> Sequence[int] | None:
        return self._guesses(row, len(row.tokens) + num_accepted, 1 + DEPTH)

    def _guesses(self, row: DraftRow, start: int, count: int) -> list[int]:
        text = self.texts[row.request_id]
        places = range(start, min(start + count, len(text)))
        return [(text[place] + 1) % 50 if place in self.lies else text[place] for place in places]


class Watch:
    """Counts passes that are prepared and launched, and those of them that a step took."""

    def __init__(self, engine: Engine) -> None:
        self.prepared = self.launched = self.taken = 0
        self.has_taken = False
        """Whether the latest step took one."""
        prepare, run_prepared, take = engine.runner.prepare, engine.runner.run_prepared, engine.pipeline.take

        def preparing(rows: Any) -> PreparedPass | None:
            self.prepared += 1
            return prepare(rows)

        def running(prepared: PreparedPass) -> RunResult:
            self.launched += 1
            return run_prepared(prepared)

        def taking(rows: Any) -> InFlight | None:
            found = take(rows)
            self.has_taken = found is not None and found.strategy is Strategy.COPY
            self.taken += self.has_taken
            return found

        engine.runner.prepare = preparing  # type: ignore[method-assign]
        engine.runner.run_prepared = running  # type: ignore[method-assign]
        engine.pipeline.take = taking  # type: ignore[method-assign]


def job(temperature: float = 0.0, **params: Any) -> Job:
    one = jobs(temperature)[1]
    return replace(one, params=replace(one.params, max_tokens=40, **params))


def knowing(world: World, asked: Job, lies: Sequence[int] = ()) -> tuple[Engine, Watch, list[int]]:
    """An engine whose drafter knows the answer of this job, and that answer."""
    (text,) = alone(engine_of(world, "ar", kernels="off"), [asked])
    engine = engine_of(world, "fixed:4", num_pages=64)
    at = len(asked.prompt)
    engine.drafters.clear()
    engine.drafters["knowing"] = Knowing(
        dict.fromkeys(("r", "other"), asked.prompt + text), [at + place for place in lies]
    )
    return engine, Watch(engine), text


def run_of(engine: Engine, asked: Job) -> Run:
    return drive(engine, {0: [("r", asked)]}, {})


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_copy_that_goes_on_finds_its_pass_under_way(
    world: World, on_kernels: None, temperature: float
) -> None:
    asked = job(temperature)
    engine, watch, text = knowing(world, asked)
    run = run_of(engine, asked)
    assert run.tokens("r") == text and is_clean(engine)
    # Every step has five tokens: all passes but the first began early.
    assert len(run.reports) == 8 and watch.taken == watch.launched == 7


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_does_not_stand_was_assumed_in_vain(world: World, on_kernels: None, temperature: float) -> None:
    asked = job(temperature)
    engine, watch, text = knowing(world, asked, lies=[8, 20])
    assert run_of(engine, asked).tokens("r") == text and is_clean(engine)
    assert watch.prepared > watch.launched == watch.taken > 0


def test_a_request_that_ends_leaves_nothing_under_way(world: World, on_kernels: None) -> None:
    asked = job()
    engine, watch, text = knowing(world, asked)
    ending = replace(asked, params=replace(asked.params, stop_token_ids=(text[22],), ignore_eos=False))
    first = text.index(text[22])
    assert run_of(engine, ending).tokens("r") == text[: first + 1]
    assert run_of(engine, asked).tokens("r") == text and is_clean(engine) and watch.taken


def test_aborted_while_its_pass_is_under_way(world: World, on_kernels: None) -> None:
    asked = job()
    engine, watch, text = knowing(world, asked)
    run = drive(engine, {0: [("r", asked)], 4: [("other", asked)]}, {4: ["r"]})
    assert watch.launched > watch.taken, "one was for nothing"
    assert run.tokens("other") == text and is_clean(engine)


def test_who_comes_late_is_read_behind_the_pass_under_way(world: World, on_kernels: None) -> None:
    asked = job()
    engine, watch, text = knowing(world, asked)
    run = drive(engine, {0: [("r", asked)], 4: [("other", asked)]}, {})
    assert run.tokens("r") == run.tokens("other") == text and is_clean(engine)
    assert watch.taken


def test_a_policy_that_bets_otherwise_runs_its_own_pass(world: World, on_kernels: None) -> None:
    asked = job()
    engine, watch, text = knowing(world, asked)
    engine.add("r", asked.prompt, asked.params)
    tokens = list[int]()
    for step in range(60):
        if step == 4:
            engine.set_policy("ar")
        for event in engine.step():
            tokens += event.token_ids
    assert tokens == text and watch.launched == watch.taken + 1


@pytest.mark.parametrize("other", [2, 5])
def test_another_number_of_guesses_is_bet_a_step_later(world: World, on_kernels: None, other: int) -> None:
    """The pass under way has as many as before, the next one as many as the policy wishes."""
    asked, reports = job(), list[StepReport]()
    engine, watch, text = knowing(world, asked)
    engine.telemetry.listener = reports.append
    engine.add("r", asked.prompt, asked.params)
    tokens = list[int]()
    for step in range(60):
        if step == 3:
            engine.set_policy(f"fixed:{other}")
        for event in engine.step():
            tokens += event.token_ids
    assert tokens == text and watch.launched == watch.taken > 4
    assert [report.bets[0] for report in reports[:6]] == [4, 4, 4, 4, other, other]


def test_another_copy_is_no_reason_to_run_another_pass(
    world: World, on_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is at the pass already: its guesses are as good as those the host has found since."""
    asked = job()
    engine, watch, text = knowing(world, asked)

    def doubtful(self: Knowing, row: DraftRow, num_accepted: int) -> list[int]:
        first, second, *others = self._guesses(row, len(row.tokens) + num_accepted, 1 + DEPTH)
        return [first, second, *[(token + 1) % 50 for token in others]]

    monkeypatch.setattr(Knowing, "continuation", doubtful)
    run = run_of(engine, asked)
    assert run.tokens("r") == text and is_clean(engine)
    assert watch.launched == watch.taken > 3


class Changing(Fixed):
    """Chains by one drafter, and from a step on by the other; each plan is of another step."""

    def __init__(self, step: int) -> None:
        super().__init__(Experience(), 4, chain=True)
        self._left = step

    def inquire(self, coming: Coming) -> Inquiry:
        return Inquiry(asks=True)

    def plan(self, rows: Sequence[Row]) -> Plan:
        self._left -= 1
        return Plan(tuple(Offer("knowing" if self._left >= 0 else "block", 4) for _ in rows))


def test_a_row_that_changes_to_a_drafter_of_the_device(world: World, on_kernels: None) -> None:
    """The pass under way is dropped, and those behind it are timed as they are."""
    asked = job()
    engine, _, text = knowing(world, asked)
    other = engine_of(world, "fixed:4", num_pages=64)
    other.drafters["knowing"] = engine.drafters["knowing"]
    watch, other.controller.policy = Watch(other), Changing(4)
    other.controller.prepare = lambda rows, drafts: None  # type: ignore[method-assign]
    other.add("r", asked.prompt, asked.params)
    taken, tokens = list[bool](), list[int]()
    while other.has_work:
        for event in other.step():
            tokens += event.token_ids
        taken.append(watch.has_taken)
    assert tokens == text and is_clean(other)
    assert watch.launched == watch.taken + 1 and taken[:4] == [False, True, True, True]
    assert len(taken) > 5 and not any(taken[4:])


def test_a_drafter_that_fails_to_go_on_costs_bets_alone(
    world: World, on_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("injected")

    asked = job()
    engine, watch, text = knowing(world, asked)
    monkeypatch.setattr(Knowing, "continuation", fail)
    assert run_of(engine, asked).tokens("r") == text and is_clean(engine)
    assert (
        engine.telemetry.drafter_failures == 1 and not engine.telemetry.failed_requests and not watch.prepared
    )
