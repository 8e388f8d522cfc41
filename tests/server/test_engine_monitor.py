"""What /wager/state says about the requests of an engine."""

import json
from pathlib import Path

from wager.llm import LLM
from wager.records import SamplingParams
from wager.server.engine_monitor import EngineMonitor


def test_the_state_lists_running_and_waiting_requests(speaker: Path) -> None:
    llm = LLM(str(speaker), drafter="lookup", layout="out_in", threads=1, num_pages=400, max_rows=1)
    monitor, engine = EngineMonitor(llm.engine), llm.engine
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    for number in range(2):
        engine.add(number, llm.encode("secret words"), params)
    for _ in range(3):
        engine.step()
    state = monitor.state()
    first, second = state["requests"]
    assert (first["id"], first["state"], second["id"], second["state"]) == (0, "running", 1, "waiting")
    assert first["max_tokens"] == 9 and 0 < first["tokens"] < 9 and first["tokens_per_step"] >= 1.0
    assert second["tokens"] == 0 and second["speedup"] is None
    assert "secret" not in json.dumps(state)
    while engine.scheduler.has_work:
        engine.step()
    assert monitor.state()["requests"] == []
