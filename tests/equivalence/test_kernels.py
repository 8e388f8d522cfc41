"""The whole engine on kernels, in Triton's interpreter or on a CUDA device: the same texts as plain torch's.

Rows of every kind go through: prompt chunks, plain rows, chains and trees, greedy and drawn, alone and
together, with drafts that are begun before they are asked for.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.equivalence.kernel_engines import MARKS, engine_of, jobs
from tests.equivalence.world import Job, World, alone, drive, is_clean, prompt
from tests.nn.kernels import ways
from wager.draft.block import BlockDrafter
from wager.draft.lookup import LookupDrafter
from wager.engine.engine import Engine
from wager.policy import Experience, Offer, Row
from wager.policy.simple import Fixed

pytestmark = MARKS
assert ways


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
    assert is_clean(engine) and engine.unlearned is None


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
        call = getattr(drafter.device, name)
        setattr(drafter.device, name, lambda asked, name=name, call=call: begun.append(name) or call(asked))
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

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        self._steps += 1
        offers = []
        for i, row in enumerate(rows):
            names = [None, *row.drafters]
            offers.append(Offer(names[(self._steps // 2 + i) % len(names)], 0))
        return offers


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rows_change_from_drafter_to_drafter(world: World, on_kernels: None, temperature: float) -> None:
    """One is aborted with its next draft under way, one comes late."""
    engine, plain = engine_of(world, "fixed:4"), engine_of(world, "ar", kernels="off")
    engine.controller.policy, engine.drafters["lookup"] = Mixed(), LookupDrafter(min_match=1)
    asked = [replace(job, params=replace(job.params, max_tokens=24)) for job in jobs(temperature)]
    late, gone = Job(asked[0].prompt[::-1], asked[0].params), Job(asked[1].prompt[::-1], asked[1].params)
    run = drive(engine, {0: [*enumerate(asked), ("gone", gone)], 7: [("late", late)]}, {5: ["gone"]})
    used = [set(report.drafters) for report in run.reports]
    assert any({"block", "lookup"} <= names for names in used)
    found = [run.tokens(index) for index in (*range(len(asked)), "late")]
    assert found == alone(plain, [*asked, late])
    assert run.tokens("gone") == alone(plain, [gone])[0][: len(run.tokens("gone"))]
    assert is_clean(engine)


def ahead_of(engine: Engine) -> list[tuple[int, int]]:
    """Fills as passes begin behind others: how many rows chose, and how many go on."""
    run_behind, begun = engine.runner.run_behind, list[tuple[int, int]]()

    def counted(rows: Any, chosen: torch.Tensor, places: Any) -> Any:
        begun.append((len(chosen), len(rows)))
        return run_behind(rows, chosen, places)

    engine.runner.run_behind = counted  # type: ignore[method-assign]
    return begun


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_plain_passes_run_ahead(world: World, on_kernels: None, temperature: float) -> None:
    """Rows of other lengths, one that ends by itself, one that is aborted, one that comes late."""
    engine, plain = engine_of(world, "ar"), engine_of(world, "ar", kernels="off")
    asked = jobs(temperature)
    whole = alone(plain, asked)
    ending = replace(asked[1].params, stop_token_ids=(whole[1][4],), ignore_eos=False)
    shorter = replace(asked[2].params, max_tokens=6)
    named = [asked[0], replace(asked[1], params=ending), replace(asked[2], params=shorter)]
    begun = ahead_of(engine)
    late, gone = Job(asked[0].prompt[::-1], asked[0].params), Job(asked[1].prompt[::-1], asked[1].params)
    run = drive(engine, {0: [*enumerate(named), ("gone", gone)], 7: [("late", late)]}, {4: ["gone"]})
    found = [run.tokens(index) for index in range(3)]
    assert found == [whole[0], whole[1][: len(found[1])], whole[2][:6]] and len(found[1]) < 10
    assert run.tokens("late") == alone(plain, [late])[0]
    assert (4, 4) in begun and any(chose > left for chose, left in begun), "all went on; some had ended"
    assert is_clean(engine)


def test_a_plain_pass_begins_behind_the_end_of_a_prompt(world: World, on_kernels: None) -> None:
    """In the step that has read the prompts, and in the one in which a late one is read beside the others."""
    engine, plain = engine_of(world, "ar"), engine_of(world, "ar", kernels="off")
    asked, late = jobs(0.0), Job(jobs(0.0)[0].prompt[::-1], jobs(0.0)[0].params)
    begun, tokens = ahead_of(engine), dict[Any, list[int]]()
    for index, job in enumerate(asked):
        engine.add(index, job.prompt, job.params)
    after = list[int]()
    for step in range(24):
        if step == 4:
            engine.add("late", late.prompt, late.params)
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
        after.append(len(begun))
    assert after[0] == 1 and begun[0] == (3, 3), "the first step reads prompts"
    assert (4, 4) in begun and begun.index((4, 4)) == after[4], "the late one is read in the sixth"
    assert [tokens[index] for index in (0, 1, 2, "late")] == alone(plain, [*asked, late])


def test_what_the_host_has_a_word_in_does_not_run_ahead(world: World, on_kernels: None) -> None:
    engine, plain = engine_of(world, "ar"), engine_of(world, "ar", kernels="off")
    begun = ahead_of(engine)
    for params in ({"logprobs": 2}, {"repetition_penalty": 1.3}):
        asked = jobs(0.0, **params)
        run = drive(engine, {0: list(enumerate(asked))}, {})
        assert [run.tokens(index) for index in range(3)] == alone(plain, asked)
    assert not begun


def test_drafting_goes_on_behind_passes_that_ran_ahead(world: World, on_kernels: None) -> None:
    """Features of such passes are kept: the drafter has seen all of the text when it is asked again."""
    engine, plain = engine_of(world, "ar"), engine_of(world, "ar", kernels="off")
    asked = jobs(0.0)
    for index, job in enumerate(asked):
        engine.add(index, job.prompt, job.params)
    begun, tokens = ahead_of(engine), dict[Any, list[int]]()
    for step in range(40):
        if step == 5:
            engine.set_policy("tree:6")
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    assert begun and engine.telemetry.verified > 0
    assert [tokens[index] for index in range(3)] == alone(plain, asked)
