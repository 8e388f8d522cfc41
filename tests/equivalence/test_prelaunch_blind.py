"""Verify passes that are launched behind an unread draft: the same texts, and the same trees as read ones."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.equivalence.kernel_engines import MARKS, engine_of, jobs
from tests.equivalence.world import World, alone, drive, is_clean
from tests.nn.kernels import interpreter
from wager.draft.base import UnreadDraft
from wager.draft.block import BlockDrafter
from wager.draft.block_prelaunch import BlockPrelaunch
from wager.draft.lookup import LookupDrafter
from wager.draft.scores import HostTop
from wager.engine.engine import Engine
from wager.policy import PLAIN, Blind, Inquiry, Offer, Plan
from wager.tree import Tree

pytestmark = MARKS
assert interpreter


def blind_passes_of(engine: Engine) -> list[list[int]]:
    """Collects the nodes of every row of the passes that are launched behind their unread draft."""
    run_blind, begun = engine.runner.run_blind, list[list[int]]()

    def counted(rows: Any, top: Any) -> Any:
        begun.append([row.num_nodes for row in rows])
        return run_blind(rows, top)

    engine.runner.run_blind = counted  # type: ignore[method-assign]
    return begun


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9}])
@pytest.mark.parametrize("policy", ["fixed:4", "tree:9", "auto", "ema+tree:5"])
def test_texts_are_those_of_plain_decoding(
    world: World, on_kernels: None, policy: str, params: dict[str, Any]
) -> None:
    engine, asked = engine_of(world, policy), jobs(**params)
    begun = blind_passes_of(engine)
    for job, own in zip(asked, alone(engine_of(world, "ar", kernels="off"), asked), strict=True):
        assert drive(engine, {0: [("one", job)]}, {}).tokens("one") == own
    assert is_clean(engine) and engine.pipeline.in_flight is None
    if policy != "auto":  # which may find the drafter of this small world not worth its time
        assert begun and all(nodes for (nodes,) in begun)


def test_a_calibrated_bet_gives_the_same_texts(world: World, on_kernels: None) -> None:
    """As `auto` bets: fewer nodes than there are candidates, chosen by a calibration of its own."""
    engine, (job, *_) = engine_of(world, "tree:9"), jobs(0.9)
    begun = blind_passes_of(engine)
    blind = Blind([7], [(0.2, 0.8, -0.1)])
    engine.controller.blind_bet = lambda plan, rows, drafts: blind  # type: ignore[method-assign]
    run = drive(engine, {0: [("one", job)]}, {})
    assert [run.tokens("one")] == alone(engine_of(world, "ar", kernels="off"), [job])
    assert begun and all(0 < nodes <= 7 for (nodes,) in begun)


def started_in(engine: Engine) -> list[tuple[Hashable, bool]]:
    """Collects whose drafts are launched before their step, and whether that is behind the prompt."""
    device, found = engine.drafters["block"].device, list[tuple[Hashable, bool]]()
    assert device is not None
    start = device.start

    def noted(rows: Any) -> None:
        for row in rows:
            sequence = engine.scheduler.find(row.request_id)
            assert sequence is not None
            found.append((row.request_id, not sequence.stats.steps))
        start(rows)

    device.start = noted  # type: ignore[method-assign]
    return found


def test_the_first_draft_begins_behind_the_prompt_if_it_did_so_before(world: World, on_kernels: None) -> None:
    engine, (job, *_) = engine_of(world, "fixed:4"), jobs(0.0)
    own, begun = alone(engine_of(world, "ar", kernels="off"), [job]), started_in(engine)
    names = ["first", "second", "plain", "third", "fourth"]
    for name in names:
        params = replace(job.params, speculation="off") if name == "plain" else job.params
        run = drive(engine, {0: [(name, replace(job, params=params))]}, {})
        assert [run.tokens(name)] == own
    assert [name for name, is_first in begun if is_first] == ["second", "fourth"]
    engine.drafters.clear()
    assert [drive(engine, {0: [("none", job)]}, {}).tokens("none")] == own
    assert is_clean(engine) and not engine.telemetry.drafter_failures


def test_a_first_draft_that_fails_costs_bets_alone(
    world: World, on_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("injected")

    engine, (job, *_) = engine_of(world, "fixed:4"), jobs(0.0)
    drive(engine, {0: [("first", job)]}, {})
    monkeypatch.setattr(BlockPrelaunch, "start", fail)
    run = drive(engine, {0: [("second", job)]}, {})
    assert [run.tokens("second")] == alone(engine_of(world, "ar", kernels="off"), [job]) and is_clean(engine)
    assert engine.telemetry.drafter_failures == 1 and not engine.telemetry.failed_requests


def test_several_rows_at_once(world: World, on_kernels: None) -> None:
    engine, asked = engine_of(world, "tree:9"), jobs(0.0)
    begun = blind_passes_of(engine)
    run = drive(engine, {0: list(enumerate(asked))}, {})
    assert [run.tokens(index) for index in range(3)] == alone(engine_of(world, "ar", kernels="off"), asked)
    assert [9, 9, 9] in begun


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("policy", ["fixed:4", "tree:9"])
def test_copies_take_part_in_a_pass_behind_a_draft(
    world: World, on_kernels: None, policy: str, temperature: float
) -> None:
    engine, asked = engine_of(world, policy), jobs(temperature)
    engine.drafters["lookup"] = LookupDrafter(min_match=1)
    run_blind, begun = engine.runner.run_blind, list[list[tuple[int, bool]]]()

    def plan(rows: Any) -> Plan:
        """Every second row copies as soon as it can."""
        able = [
            "lookup" if "lookup" in row.drafters and i % 2 == 0 else "block" for i, row in enumerate(rows)
        ]
        offers = [
            Offer(name) if name in row.drafters and row.max_depth > 0 else PLAIN
            for name, row in zip(able, rows, strict=True)
        ]
        return Plan(tuple(offers))

    def counted(rows: Any, top: Any) -> Any:
        begun.append([(row.num_nodes, row.tree is not None) for row in rows])
        return run_blind(rows, top)

    engine.controller.inquire = lambda coming: Inquiry(asks=True)  # type: ignore[method-assign]
    engine.controller.plan = plan  # type: ignore[method-assign]
    engine.runner.run_blind = counted  # type: ignore[method-assign]
    run = drive(engine, {0: list(enumerate(asked))}, {})
    assert [run.tokens(index) for index in range(3)] == alone(engine_of(world, "ar", kernels="off"), asked)
    assert is_clean(engine) and not engine.telemetry.drafter_failures
    mixed = [rows for rows in begun if len({known for _, known in rows}) == 2]
    assert mixed and all(count > 0 for rows in mixed for count, known in rows if known)


def test_the_tree_is_the_one_that_a_look_would_have_given(world: World, on_kernels: None) -> None:
    (job, *_) = jobs(0.0)
    trees: dict[bool, list[Tree]] = {True: [], False: []}
    for blind in (True, False):
        engine = engine_of(world, "tree:9")
        if not blind:
            engine.controller.blind_bet = lambda plan, rows, drafts: None  # type: ignore[method-assign]
        launch = engine.sampler.launch

        def noted(logits: Any, rows: Any, *rest: Any, blind: bool = blind, launch: Any = launch) -> Any:
            trees[blind] += [row.tree for row in rows]
            return launch(logits, rows, *rest)

        engine.sampler.launch = noted  # type: ignore[method-assign]
        drive(engine, {0: [("one", job)]}, {})
    assert len(trees[True]) == len(trees[False])
    for one, other in zip(trees[True], trees[False], strict=True):
        assert np.array_equal(one.token_ids, other.token_ids) and np.array_equal(one.parents, other.parents)
    assert max(tree.num_nodes for tree in trees[True]) == 9


def test_requests_that_ask_for_guesses_themselves_are_looked_at(world: World, on_kernels: None) -> None:
    engine, (job, *_) = engine_of(world, "tree:9"), jobs(0.0)
    begun = blind_passes_of(engine)
    own = replace(job, params=replace(job.params, speculation="fixed:3"))
    reports = drive(engine, {0: [("one", own)]}, {}).reports
    assert max(report.num_nodes for report in reports) == 3 and not begun


def test_a_draft_that_is_no_number_costs_its_row_no_more_than_its_bets(
    world: World, on_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, (job, *_) = engine_of(world, "tree:9"), jobs(0.0)
    drafter = engine.drafters["block"]
    assert isinstance(drafter, BlockDrafter) and drafter.device is not None
    begun, unseen, result = (
        blind_passes_of(engine),
        drafter.device.begin_unread,
        drafter.device.kernels.result,
    )

    def on_the_device(rows: Any) -> UnreadDraft | None:
        found = unseen(rows)
        if found is not None:
            found.top.fill_(float("nan"))
        return found

    def on_the_host() -> HostTop:
        found = result()
        return found._replace(logprobs=np.full_like(found.logprobs, np.nan))

    monkeypatch.setattr(drafter.device, "begin_unread", on_the_device)
    monkeypatch.setattr(drafter.device.kernels, "result", on_the_host)
    assert (
        drive(engine, {0: [("one", job)]}, {}).tokens("one")
        == alone(engine_of(world, "ar", kernels="off"), [job])[0]
    )
    assert begun == [[9]] and engine.telemetry.drafter_failures == 1
    assert is_clean(engine)


def test_a_runner_without_kernels_builds_none(world: World) -> None:
    runner = engine_of(world, "tree:9", kernels="off").runner
    assert not runner.can_build_trees([]) and runner.max_built_nodes(15, 8) == 0
    with pytest.raises(NotImplementedError):
        runner.run_blind([], None)  # type: ignore[arg-type]
