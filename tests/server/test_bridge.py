"""The bridge and its inboxes by themselves: merging, order, refusals, and a thread that always answers."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import SETTINGS
from wager.config import with_values
from wager.engine.engine import Engine
from wager.errors import RequestError
from wager.records import SamplingParams, TokenDetail
from wager.server.bridge import Asked, Bridge, Busy, NotReady
from wager.server.inbox import Delivery, End, Inbox
from wager.server_config import ServeConfig

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
FOREVER = SamplingParams(max_tokens=900, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(speaker: Path) -> Iterator[Engine]:
    config = with_values(ServeConfig(), **{**SETTINGS, "model": str(speaker), "max_rows": 2})
    yield Engine.from_config(config.engine())


async def started(engine: Engine, max_queue: int = 1) -> Bridge:
    bridge = Bridge(lambda: engine, max_queue)
    await bridge.start()
    return bridge


async def read_all(inbox: Inbox, num: int) -> dict[int, Delivery]:
    found: dict[int, Delivery] = {}
    while sum(one.end is not None for one in found.values()) < num:
        for index, delivery in (await inbox.take(10.0)).items():
            if index in found:
                found[index].merge(delivery)
            else:
                found[index] = delivery
    return found


def test_an_inbox_merges_what_nobody_reads() -> None:
    async def run() -> None:
        inbox = Inbox()
        assert await inbox.take(0.01) == {}
        detail = TokenDetail("guess", 3, 1, 0.5)
        inbox.put(0, Delivery("a", [1], [detail], ["x"], 2.0))
        inbox.put(1, Delivery("z", [9]))
        inbox.put(0, Delivery("b", [2, 3], [], ["y"], 3.0, End("stop")))
        found = await inbox.take(10.0)
        assert found == {
            0: Delivery("ab", [1, 2, 3], [detail], ["x", "y"], 3.0, End("stop")),
            1: Delivery("z", [9]),
        }
        waiting = asyncio.ensure_future(inbox.take(10.0))
        await asyncio.sleep(0)
        inbox.put(0, Delivery("c"))
        assert (await waiting)[0].text == "c"

    asyncio.run(run())


def test_requests_go_there_and_come_back(engine: Engine) -> None:
    async def run() -> None:
        bridge, inbox, ended = await started(engine), Inbox(), []
        bridge.on_end = lambda running, end: ended.append((running.index, end.finish))
        batch = await bridge.submit([Asked([40, 41], PARAMS), Asked([42], PARAMS)], inbox)
        found = await read_all(inbox, 2)
        assert [len(found[i].token_ids) for i in (0, 1)] == [12, 12]
        assert sorted(ended) == [(0, "length"), (1, "length")] and bridge.num_open == 0
        assert all(one.first_s is not None and one.ended_s is not None for one in batch)
        assert found[0].end is not None and found[0].end.sequence is not None
        assert found[0].end.sequence.output_ids == found[0].token_ids
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())


def test_refusals_leave_nothing_behind(engine: Engine) -> None:
    async def run() -> None:
        bridge, inbox, ended = await started(engine), Inbox(), []
        bridge.on_end = lambda running, end: ended.append(running)
        with pytest.raises(RequestError):
            await bridge.submit([Asked([40], FOREVER), Asked([10**9], FOREVER)], inbox)
        assert bridge.num_open == 0
        await bridge.call(lambda: None)
        assert not engine.scheduler.has_work and ended == []
        with pytest.raises(Busy) as busy:
            await bridge.submit([Asked([40], PARAMS)] * 4, inbox)
        assert busy.value.retry_after_s >= 1
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())


def test_an_abort_comes_before_the_next_step(engine: Engine) -> None:
    async def run() -> None:
        bridge, inbox = await started(engine), Inbox()
        batch = await bridge.submit([Asked([40, 41], FOREVER)] * 2, inbox)
        await inbox.take(10.0)
        bridge.abort(batch)
        assert await bridge.call(lambda: engine.scheduler.has_work) is False
        bridge.abort(batch)
        assert bridge.num_open == 0
        await asyncio.to_thread(bridge.close)
        engine.check()

    asyncio.run(run())


def test_a_cancelled_submit_does_not_stay(engine: Engine) -> None:
    async def run() -> None:
        bridge, inbox = await started(engine), Inbox()
        task = asyncio.ensure_future(bridge.submit([Asked([40, 41], FOREVER)], inbox))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await bridge.call(lambda: engine.scheduler.has_work) is False
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())


def test_closing_ends_what_runs(engine: Engine) -> None:
    async def run() -> None:
        bridge, inbox = await started(engine), Inbox()
        await bridge.submit([Asked([40, 41], FOREVER)], inbox)
        await asyncio.to_thread(bridge.close)
        found = await read_all(inbox, 1)
        assert found[0].end is not None and found[0].end.finish == "abort"
        with pytest.raises(NotReady):
            await bridge.call(lambda: None)

    asyncio.run(run())


def test_a_bridge_that_cannot_load_says_why() -> None:
    def load() -> Engine:
        raise ValueError("no weights")

    async def run() -> None:
        bridge = Bridge(load, 1)
        with pytest.raises(NotReady):
            bridge.ready_engine()
        with pytest.raises(ValueError, match="no weights"):
            await bridge.start()
        with pytest.raises(NotReady, match="no weights"):
            await bridge.submit([Asked([1], PARAMS)], Inbox())
        bridge.close()

    asyncio.run(run())


def test_what_a_command_raises_is_raised_to_its_caller(engine: Engine) -> None:
    def fail() -> Any:
        raise KeyError("x")

    async def run() -> None:
        bridge = await started(engine)
        with pytest.raises(KeyError):
            await bridge.call(fail)
        assert await bridge.call(lambda: 5) == 5
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())


def test_spare_time_ends_where_a_request_begins(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used while nobody asks, never while somebody runs, and however much of it is wanted."""
    used, begun = [], threading.Event()

    def use() -> bool:
        used.append(engine.has_work)
        begun.set()
        return True

    monkeypatch.setattr(engine.parts, "spare_time", use)

    async def run() -> None:
        bridge, inbox = await started(engine), Inbox()
        assert await asyncio.to_thread(begun.wait, 10.0)
        await bridge.submit([Asked([40, 41], PARAMS)], inbox)
        assert (await read_all(inbox, 1))[0].end is not None
        await asyncio.to_thread(bridge.close)

    asyncio.run(run())
    assert used and not any(used)
