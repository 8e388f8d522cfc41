"""The closed loop on a small pair: every place is refilled, every driver writes the same texts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.grown import BenchSession, load_llm, plan_pair
from bench.gpu.load import (
    Options,
    Served,
    Sweep,
    cell_figures,
    draw_requests,
    drivers_of,
    format_cell,
    lowest,
    run,
)
from bench.gpu.load_drivers import DRIVERS, LoadRequest, ServedLoad
from bench.gpu.script import read_value
from wager.engine.engine import Engine
from wager.errors import ConfigError
from wager.records import SamplingParams

SHAPE = "hidden=288,layers=21"
SMALL = Options(places=(3,), temperatures=(0.0,), shortest=3, longest=7, turns=2, least=4)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchSession]:
    made = BenchSession(SHAPE, True, tmp_path_factory.mktemp("out"))
    made.device = torch.device("cpu")
    made.plan = plan_pair(SHAPE, torch.float64)
    made.llm = load_llm(made.plan, made.folder, made.device, threads=1, num_pages=64, native="off")
    yield made


ENCODED = {"code": [[1] * 300, [2] * 300], "prose": [[3] * 40]}


def test_requests_take_kinds_in_turn_and_differ_in_length() -> None:
    requests = draw_requests(ENCODED, 40, Options(), 0.8)
    assert [one.kind for one in requests[:4]] == ["code", "prose", "code", "prose"]
    lengths = {one.params.max_tokens for one in requests}
    assert min(lengths) >= 40 and max(lengths) <= 152 and len(lengths) > 10
    assert len({len(one.prompt_ids) for one in requests if one.kind == "code"}) > 10
    assert all(one.params.temperature == 0.8 and one.params.ignore_eos for one in requests)
    assert len({one.params.seed for one in requests}) == 40


def test_a_smaller_load_is_the_beginning_of_a_larger_one() -> None:
    assert draw_requests(ENCODED, 5, Options(), 0.0) == draw_requests(ENCODED, 9, Options(), 0.0)[:5]
    other = draw_requests(ENCODED, 5, Options(seed=1), 0.0)
    assert other != draw_requests(ENCODED, 5, Options(), 0.0)


def test_a_cut_prompt_keeps_its_end() -> None:
    (request,) = draw_requests({"chat": [list(range(1000))]}, 1, Options(), 0.0)
    assert request.prompt_ids[-1] == 999 and len(request.prompt_ids) < 300


class Counting:
    """Passes calls on to an engine and keeps the number of requests that ran in each step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.running: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def step(self) -> Any:
        events = self.engine.step()
        ended = sum(event.finish is not None for event in events)
        self.running.append(len(self.engine.scheduler.running) + ended)
        return events


def test_a_place_is_taken_again_in_the_step_after_its_request_ended(session: BenchSession) -> None:
    requests = draw_requests(Sweep(session, SMALL).encoded, 7, SMALL, 0.0)
    counting = Counting(session.llm.engine)
    load = DRIVERS["direct"](counting, requests, 3)  # type: ignore[arg-type]
    assert max(counting.running) == 3
    first_empty = next(i for i, count in enumerate(counting.running) if count < 3)
    assert all(count == 3 for count in counting.running[:first_empty])
    assert counting.running[first_empty:] == sorted(counting.running[first_empty:], reverse=True)
    assert [len(load.tokens[i]) for i in range(7)] == [one.params.max_tokens for one in requests]
    assert 0 < load.full_tokens < load.num_tokens and load.full_s < load.wall_s


def test_every_driver_writes_the_same_texts_and_leaves_the_engine_as_it_was(session: BenchSession) -> None:
    requests = draw_requests(Sweep(session, SMALL).encoded, 5, SMALL, 0.0)
    engine = session.llm.engine
    texts = {name: serve(engine, requests, 2).tokens for name, serve in DRIVERS.items()}
    assert texts["listener"] == texts["direct"] and texts["bridge"] == texts["direct"]
    assert engine.telemetry.listener is None and engine.controller.on_step is None
    assert not engine.has_work


def test_a_failed_run_leaves_no_request_behind(session: BenchSession) -> None:
    good = LoadRequest("code", [5, 6, 7], SamplingParams(30, ignore_eos=True))
    bad = good._replace(prompt_ids=[1 << 30])
    with pytest.raises(Exception, match="outside"):
        DRIVERS["direct"](session.llm.engine, [good, bad], 2)
    assert not session.llm.engine.has_work
    assert DRIVERS["direct"](session.llm.engine, [good], 2).num_tokens == 30


def test_a_sweep_writes_its_cells(session: BenchSession, capsys: pytest.CaptureFixture[str]) -> None:
    run(session, Options(**{**SMALL.__dict__, "listener": "both", "bridge": True, "static": True}))
    assert session.errors == []
    figures = json.loads((session.out / "gpu_load.json").read_text())["data"]["figures"]  # type: ignore[operator]
    cells = figures["cells"]
    assert [one["driver"] for one in cells] == ["direct", "listener", "bridge"]
    for one in cells:
        assert one["requests"] == 6 and one["same_text_as_ar"] == {"ar": 6, "auto": 6}
        assert [len(runs) for runs in one["runs"].values()] == [2, 2]
        for counts in one["counts"].values():
            assert all(run["steps"] > 0 and run["step_ms"] > run["outside_verify_ms"] for run in counts)
        assert all(run["drafted_share"] == 0 for run in one["counts"]["ar"])
    assert len(cells[0]["static_runs"]) == 2 and cells[0]["full_over_static"] > 0
    assert ["static_runs" in one for one in cells] == [True, False, False]
    assert figures["lowest_over_ar"]["auto"] == min(one["over_ar"]["auto"] for one in cells)
    printed = capsys.readouterr().out
    assert printed.count(format_cell(cells[0])) == 2, "as soon as it is known, and in the table at the end"


def test_no_cell_begins_when_the_time_is_up(session: BenchSession) -> None:
    assert list(Sweep(session, Options(seconds=-1.0)).cells()) == []


def test_prompts_come_from_a_file_if_one_is_named(session: BenchSession, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"category": kind, "text": f"A text of the kind {kind}."} for kind in ("letters", "lists")]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    encoded = Sweep(session, Options(prompts=str(path))).encoded
    assert encoded == {row["category"]: [session.llm.encode(row["text"])] for row in rows}, (
        "the beginning of a text is no chat message"
    )


def served(start: float, *ended: float, token: int = 1, full_s: float = 1.0) -> Served:
    load = ServedLoad(len(ended), start)
    for index, end_s in enumerate(ended):
        load.begin(index)
        load.began_s[index], load.ended_s[index] = 0.0, end_s
        load.extend(index, [token] * 10)
    load.full_s, load.full_tokens = full_s, 10
    return Served(load, {"steps": 1})


def test_figures_of_a_cell() -> None:
    runs = {"ar": [served(0, 1.0, 1.0), served(0, 1.0, 2.0)], "auto": [served(0, 0.5, 0.5, token=2)] * 2}
    found = cell_figures(runs, [8.0, 12.0])
    assert found["tokens_per_s"] == {"ar": pytest.approx(40 / 3), "auto": 40.0}
    assert found["over_ar"] == {"auto": pytest.approx(3.0)}
    assert found["control"] == 2.0
    assert found["mean_request"] == {"ar": 8.75, "auto": 20.0}
    assert found["slowest_request"] == {"ar": 5.0, "auto": 20.0}
    assert found["same_text_as_ar"] == {"ar": 2, "auto": 0}
    assert found["closed_over_static"] == pytest.approx(4 / 3) and found["full_over_static"] == 1.0
    assert lowest([found, {"over_ar": {"auto": 0.5}}]) == {"auto": 0.5}
    alone = cell_figures({"auto": runs["auto"]}, [])
    assert "over_ar" not in alone and "control" not in alone and "static_runs" not in alone


def test_drivers_follow_the_options() -> None:
    assert drivers_of(Options()) == ["direct"]
    assert drivers_of(Options(listener="on")) == ["listener"]
    assert drivers_of(Options(listener="both", bridge=True)) == ["direct", "listener", "bridge"]
    with pytest.raises(ConfigError, match="listener"):
        drivers_of(Options(listener="maybe"))


def test_a_switch_is_true_or_false() -> None:
    assert read_value(False, "true") is True and read_value(True, "false") is False
    with pytest.raises(ConfigError, match="switch"):
        read_value(False, "perhaps")


def test_the_load_runs_without_the_servers_packages() -> None:
    """A machine with the device may have no FastAPI, uvicorn, pydantic or Prometheus client."""
    code = (
        "import sys\n"
        "for name in ('fastapi', 'starlette', 'uvicorn', 'pydantic', 'prometheus_client'):\n"
        "    sys.modules[name] = None\n"
        "import bench.gpu.load\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
