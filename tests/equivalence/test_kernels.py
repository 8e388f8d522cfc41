"""The whole engine on kernels, in Triton's interpreter or on a CUDA device: the same texts as plain torch's.

Rows of every kind go through: prompt chunks, plain rows, chains and trees, greedy and drawn, alone and
together, with drafts that are begun before they are asked for.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.equivalence.kernel_engines import MARKS, engine_of, jobs
from tests.equivalence.world import Job, World, alone, drive, is_clean, prompt
from tests.nn.kernels import interpreter
from wager.draft.block import BlockDrafter
from wager.draft.lookup import LookupDrafter
from wager.policy import Coming, Experience, Inquiry, Offer, Plan, Row
from wager.policy.simple import Fixed

pytestmark = MARKS
assert interpreter


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "top_k": 20, "top_p": 0.9}])
@pytest.mark.parametrize("policy", ["ar", "fixed:4", "tree:9", "auto"])
def test_texts_are_plain_torchs(world: World, on_kernels: None, policy: str, params: dict[str, Any]) -> None:
    asked = jobs(**params)
    engine = engine_of(world, policy)
    assert engine.runner.has_kernels
    plain = engine_of(world, "ar", kernels="off")
    assert not plain.runner.has_kernels
    named = list(enumerate(asked))
    run = drive(engine, {0: named[:2], 3: named[2:]}, {})
    assert [run.tokens(index) for index in range(len(asked))] == alone(plain, asked)
    assert is_clean(engine) and engine.learning.waiting is None


@pytest.mark.parametrize("policy", ["fixed:4", "tree:6"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_drafts_follow_their_pass_on_the_device(
    world: World, on_kernels: None, num_rows: int, policy: str
) -> None:
    engine = engine_of(world, policy)
    drafter = engine.drafters["block"]
    assert isinstance(drafter, BlockDrafter) and drafter.device is not None
    begun: list[str] = []
    for name in ("launch", "follow"):
        call = getattr(drafter.device.kernels, name)
        kernels = drafter.device.kernels
        setattr(kernels, name, lambda asked, name=name, call=call: begun.append(name) or call(asked))
    # Prompts of one length come in together.
    asked = [Job(prompt(index, 9, period=4), jobs(0.0)[0].params) for index in range(num_rows)]
    run = drive(engine, {0: list(enumerate(asked))}, {})
    drafted = sum("block" in report.drafters for report in run.reports)
    # The first is asked for, every other one was begun behind the pass before; the last nobody asks for.
    assert drafted > 1 and begun == ["launch"] + ["follow"] * drafted
    plain = engine_of(world, "ar", kernels="off")
    assert [run.tokens(index) for index in range(num_rows)] == alone(plain, asked)


class Mixed(Fixed):
    """Trees by now this drafter and now that, and for some rows none."""

    def __init__(self) -> None:
        super().__init__(Experience(), 6, chain=False)
        self._steps = 0

    def inquire(self, coming: Coming) -> Inquiry:
        return Inquiry(asks=True)

    def plan(self, rows: Sequence[Row]) -> Plan:
        self._steps += 1
        offers = []
        for i, row in enumerate(rows):
            names = [None, *row.drafters]
            offers.append(Offer(names[(self._steps // 2 + i) % len(names)], 0))
        return Plan(tuple(offers))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rows_change_from_drafter_to_drafter(world: World, on_kernels: None, temperature: float) -> None:
    """One is aborted with its next draft under way, one comes late."""
    engine, plain = engine_of(world, "fixed:4"), engine_of(world, "ar", kernels="off")
    engine.controller.policy, engine.drafters["lookup"] = Mixed(), LookupDrafter(min_match=1)
    engine.controller.prepare = lambda rows, drafts: None  # type: ignore[method-assign]
    asked = [replace(job, params=replace(job.params, max_tokens=24)) for job in jobs(temperature)]
    late, gone = Job(asked[0].prompt[::-1], asked[0].params), Job(asked[1].prompt[::-1], asked[1].params)
    run = drive(engine, {0: [*enumerate(asked), ("gone", gone)], 7: [("late", late)]}, {5: ["gone"]})
    used = [set(report.drafters) for report in run.reports]
    assert any({"block", "lookup"} <= names for names in used)
    found = [run.tokens(index) for index in (*range(len(asked)), "late")]
    assert found == alone(plain, [*asked, late])
    assert run.tokens("gone") == alone(plain, [gone])[0][: len(run.tokens("gone"))]
    assert is_clean(engine)


def test_learning_waits_for_the_next_pass_whoever_observes(world: World, on_kernels: None) -> None:
    """The steps after which learning waits are the same with and without a listener and `on_step`."""
    (job, *_), waited = jobs(0.0), list[list[bool]]()
    for is_observed in (False, True):
        engine = engine_of(world, "fixed:4")
        if is_observed:
            engine.telemetry.listener = lambda report: None
            engine.controller.on_step = lambda outcome, expected: None
        engine.add("one", job.prompt, job.params)
        waited.append([])
        while engine.has_work:
            engine.step()
            waited[-1].append(engine.learning.waiting is not None)
    assert waited[0] == waited[1] and any(waited[0])
