"""A small run of the load benchmark: clients of all kinds, and no resources left open."""

import asyncio
import gc
from pathlib import Path

import pytest

from bench.load import Plan, run_load, settle, summary
from bench.load_server import Address
from tests.server.harness import served, wait_until
from wager.engine.engine import Sequence
from wager.server.generation import Generation
from wager.server.response_queue import ResponseQueue, RunningChoice


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(clients=24, seconds=4.0, tokens=24, seed=1)


def num_held() -> int:
    """Number of live objects that belong to requests."""
    gc.collect()
    return sum(type(one) in (Generation, ResponseQueue, RunningChoice, Sequence) for one in gc.get_objects())


def test_many_clients(speaker: Path, plan: Plan) -> None:
    held_before = num_held()
    with served(speaker, max_queue=8) as running:
        port = int(running.url.rpartition(":")[2])
        address = Address("127.0.0.1", port)
        tally = asyncio.run(run_load(address, plan))
        state = asyncio.run(settle(address))
        wait_until(lambda: num_held() <= held_before)
        found = summary(tally, plan)
    assert found["unintended_errors"] == []
    assert state["pages_used"] == 0 and running.service.bridge.num_open == 0
    for kind in ("plain answered", "left", "slow answered", "too large", "no JSON", "told to come back"):
        assert found["outcomes"].get(kind), (kind, found["outcomes"])
