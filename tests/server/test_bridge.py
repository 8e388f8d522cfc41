"""The bridge and its queues alone: merging, order, refusals, and a thread that always answers."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import SETTINGS
from wager.config import with_values
from wager.engine.assemble import build_engine
from wager.engine.engine import Engine
from wager.errors import RequestError
from wager.records import SamplingParams, TokenDetail
from wager.server.bridge import Bridge, NotReady, QueueFull
from wager.server.generation_request import GenerationRequest
from wager.server.response_queue import EngineUpdate, ResponseQueue
from wager.server_config import ServeConfig

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=900, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(speaker: Path) -> Iterator[Engine]:
    config = with_values(ServeConfig(), **{**SETTINGS, "model": str(speaker), "max_rows": 2})
    yield build_engine(config.engine())


async def started(engine: Engine, max_queue: int = 1) -> Bridge:
    bridge = Bridge(lambda: engine, max_queue)
    await bridge.start()
    return bridge


def request_for(*prompts: list[int], params: SamplingParams = PARAMS, n: int = 1) -> GenerationRequest:
    return GenerationRequest("tiny", prompts, params, n)


async def read_all(queue: ResponseQueue, num: int) -> dict[int, EngineUpdate]:
    found: dict[int, EngineUpdate] = {}
    while sum(update.finish is not None for update in found.values()) < num:
        for index, update in (await queue.take(10.0)).items():
            if index in found:
                found[index].merge(update)
            else:
                found[index] = update
    return found


def test_a_queue_merges_unread_updates() -> None:
    async def run() -> None:
        queue = ResponseQueue()
        assert await queue.take(0.01) == {}
        detail = TokenDetail("guess", 3, 1, 0.5)
        queue.put(0, EngineUpdate("a", [1], [detail], ["x"], 2.0))
        queue.put(1, EngineUpdate("z", [9]))
        queue.put(0, EngineUpdate("b", [2, 3], [], ["y"], 3.0, "stop"))
        found = await queue.take(10.0)
        assert found == {
            0: EngineUpdate("ab", [1, 2, 3], [detail], ["x", "y"], 3.0, "stop"),
            1: EngineUpdate("z", [9]),
        }
        waiting = asyncio.ensure_future(queue.take(10.0))
        await asyncio.sleep(0)
        queue.put(0, EngineUpdate("c"))
        assert (await waiting)[0].text == "c"

    asyncio.run(run())


def test_choices_have_derived_seeds() -> None:
    request = request_for([40], [41], params=SamplingParams(seed=3), n=2)
    assert [request.prompt(i) for i in range(4)] == [[40], [40], [41], [41]]
    seeds = [request.choice_params(i).seed for i in range(4)]
    assert seeds[0] == seeds[2] == 3 and seeds[1] == seeds[3] != 3


def test_requests_are_submitted_and_answered(engine: Engine) -> None:
    async def run() -> None:
        bridge, queue, ended = await started(engine), ResponseQueue(), []
        bridge.on_end = lambda choice, update: ended.append((choice.index, update.finish))
        choices = await bridge.submit(request_for([40, 41], [42]), queue)
        found = await read_all(queue, 2)
        assert [len(found[i].token_ids) for i in (0, 1)] == [12, 12]
        assert sorted(ended) == [(0, "length"), (1, "length")] and bridge.num_open == 0
        assert all(choice.first_token_s is not None and choice.ended_s is not None for choice in choices)
        assert found[0].sequence is not None
        assert found[0].sequence.output_ids == found[0].token_ids
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())


def test_a_refused_request_leaves_nothing_behind(engine: Engine) -> None:
    async def run() -> None:
        bridge, queue, ended = await started(engine), ResponseQueue(), []
        bridge.on_end = lambda choice, update: ended.append(choice)
        with pytest.raises(RequestError):
            await bridge.submit(request_for([40], [10**9], params=ENDLESS), queue)
        assert bridge.num_open == 0
        await bridge.call(lambda: None)
        assert not engine.scheduler.has_work and ended == []
        with pytest.raises(QueueFull) as full:
            await bridge.submit(request_for([40], n=4), queue)
        assert full.value.retry_after_s >= 1
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())


def test_an_abort_takes_effect_before_the_next_step(engine: Engine) -> None:
    async def run() -> None:
        bridge, queue = await started(engine), ResponseQueue()
        choices = await bridge.submit(request_for([40, 41], params=ENDLESS, n=2), queue)
        await queue.take(10.0)
        bridge.abort(choices)
        assert await bridge.call(lambda: engine.scheduler.has_work) is False
        bridge.abort(choices)
        assert bridge.num_open == 0
        await asyncio.to_thread(bridge.close)
        engine.check()

    asyncio.run(run())


def test_a_cancelled_submit_is_removed(engine: Engine) -> None:
    async def run() -> None:
        bridge, queue = await started(engine), ResponseQueue()
        task = asyncio.ensure_future(bridge.submit(request_for([40, 41], params=ENDLESS), queue))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await bridge.call(lambda: engine.scheduler.has_work) is False
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())


def test_closing_aborts_running_requests(engine: Engine) -> None:
    async def run() -> None:
        bridge, queue = await started(engine), ResponseQueue()
        await bridge.submit(request_for([40, 41], params=ENDLESS), queue)
        await asyncio.to_thread(bridge.close)
        found = await read_all(queue, 1)
        assert found[0].finish == "abort"
        with pytest.raises(NotReady):
            await bridge.call(lambda: None)

    asyncio.run(run())


def test_a_loading_error_is_reported() -> None:
    def load() -> Engine:
        raise ValueError("no weights")

    async def run() -> None:
        bridge = Bridge(load, 1)
        with pytest.raises(NotReady):
            bridge.ready_engine()
        with pytest.raises(ValueError, match="no weights"):
            await bridge.start()
        with pytest.raises(NotReady, match="no weights"):
            await bridge.submit(request_for([1]), ResponseQueue())
        bridge.close()

    asyncio.run(run())


def test_an_exception_of_a_command_is_raised_to_its_caller(engine: Engine) -> None:
    def fail() -> Any:
        raise KeyError("x")

    async def run() -> None:
        bridge = await started(engine)
        with pytest.raises(KeyError):
            await bridge.call(fail)
        assert await bridge.call(lambda: 5) == 5
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())


def test_spare_time_ends_when_a_request_arrives(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare time is used only while no request runs, even if the engine always wants more of it."""
    used, first_use = [], threading.Event()

    def use() -> bool:
        used.append(engine.has_work)
        first_use.set()
        return True

    monkeypatch.setattr(engine.parts, "spare_time", use)

    async def run() -> None:
        bridge, queue = await started(engine), ResponseQueue()
        assert await asyncio.to_thread(first_use.wait, 10.0)
        await bridge.submit(request_for([40, 41]), queue)
        assert (await read_all(queue, 1))[0].finish is not None
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())
    assert used and not any(used)
