"""Costs measured before anybody asks: made while idle, kept, read back, and without a trace in the engine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.equivalence.world import Job, World, alone, is_clean, make_engine, prompt
from wager.config import EngineConfig, with_values
from wager.costs import DraftShape, DraftTime, PassTime
from wager.engine import calibrate, cost_file, pass_clock
from wager.engine.calibrate import bounds_of, key_of
from wager.engine.cost_file import Calibration
from wager.engine.engine import Engine
from wager.engine.pass_clock import Clocked, comb
from wager.records import SamplingParams
from wager.target import TargetRunner

SETTINGS: dict[str, Any] = {"dtype": "float32", "max_nodes": 8, "max_rows": 4}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for calibrations, and a machine that is calm whatever else it runs."""
    monkeypatch.setattr(cost_file, "folder", lambda: tmp_path)
    monkeypatch.setattr(calibrate, "_is_busy", lambda: False)
    monkeypatch.setattr("wager.engine.cost_sweep.Sweep.is_unsteady", False)
    return tmp_path


def engine_of(world: World, drafter: str = "block", **settings: Any) -> Engine:
    return make_engine(world, drafter, "auto", **(SETTINGS | settings))


def spend(engine: Engine) -> int:
    """Use spare time to the end; how often it was asked for."""
    for times in range(5000):
        if not engine.use_spare_time():
            return times + 1
    raise AssertionError("it never ends")


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Clocked:
        raise AssertionError("nothing was to be run")

    monkeypatch.setattr(pass_clock.PassClock, "time_pass", refuse)


def test_spare_time_is_used_a_run_at_a_time_and_leaves_no_trace(kept: Path, world: World) -> None:
    engine = engine_of(world)
    assert engine.parts.notes["calibration"] == {"value": "none", "source": "none"}
    assert spend(engine) > 20
    engine.check()
    assert is_clean(engine)
    assert engine.scheduler.memory.allocator.num_used == 0
    costs = engine.controller.experience.costs
    assert costs.measured
    assert costs.largest_seen(1, 0) == 8
    assert str(engine.parts.notes["calibration"]["source"]).startswith("measured in")  # type: ignore[index]
    assert len(list(kept.iterdir())) == 1


@pytest.mark.parametrize("drafter", ["block", "chain"])
def test_drafts_are_timed_whole_and_short_but_not_copies(kept: Path, world: World, drafter: str) -> None:
    spend(engine_of(world, drafter))
    (found,) = cost_file.stored()
    assert {one.drafter for one in found.drafts} == {drafter}
    assert {one.rows for one in found.drafts} == {1, 4}
    assert len({one.depth for one in found.drafts}) > 1
    assert {one.rows for one in found.passes} == {1, 4}


def test_the_next_start_reads_what_was_kept(kept: Path, world: World, no_runs: None) -> None:
    first = engine_of(world)
    key = key_of(first.parts)
    cost_file.write(
        Calibration(
            key, (PassTime(1, 1, 256, 7.0), PassTime(8, 1, 256, 9.0)), (DraftTime("block", 1, 0, 2.0),), 0
        )
    )
    engine = engine_of(world)
    costs = engine.controller.experience.costs
    assert costs.curve(1, 0)[[1, 8]] == pytest.approx([7.0, 9.0])
    assert costs.draft_ms("block", DraftShape(1)) == pytest.approx(2.0, rel=0.05)
    assert "ago" in engine.parts.notes["calibration"]["source"]  # type: ignore[index]
    assert not engine.use_spare_time()
    again = engine.parts.make_costs()
    assert again is not costs and again.plain_ms(1, 0) == pytest.approx(7.0)


def test_on_a_device_it_is_measured_at_the_start(
    kept: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the sizes to which passes are padded there, which the cost model knows too."""
    monkeypatch.setattr(calibrate, "_is_cuda", lambda _parts: True)
    monkeypatch.setattr(TargetRunner, "buckets", (1, 3, 6, 12), raising=False)
    engine = engine_of(world, max_context=200)
    assert {one.num_tokens for one in cost_file.stored()[0].passes} == {1, 3, 6, 12}
    curve = engine.controller.experience.costs.curve(1, 0)
    assert curve[4] == curve[6] > 0.0
    assert not engine.use_spare_time()
    engine.check()


def test_another_engine_is_another_key(world: World) -> None:
    keys = [
        cost_file.digest(key_of(engine.parts))
        for engine in (
            engine_of(world),
            engine_of(world, "none"),
            engine_of(world, dtype="float64"),
            engine_of(world, page_size=16),
        )
    ]
    assert len(set(keys)) == 4
    assert cost_file.digest(key_of(engine_of(world, num_pages=200).parts)) == keys[0]


def test_not_asked_for_nothing_is_read_or_run(kept: Path, world: World, no_runs: None) -> None:
    key = key_of(engine_of(world).parts)
    cost_file.write(Calibration(key, (PassTime(1, 1, 0, 7.0),), (), 0.0))
    engine = engine_of(world, calibrate=False)
    assert engine.parts.notes["calibration"] == {"value": "none", "source": "off"}
    assert not engine.use_spare_time()
    assert not engine.controller.experience.costs.measured
    assert not engine.parts.make_costs().measured


def test_a_run_that_fails_ends_the_runs_and_nothing_else(
    kept: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Clocked:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(pass_clock.PassClock, "time_pass", fail)
    engine = engine_of(world)
    assert spend(engine) == 1
    assert not engine.use_spare_time()
    assert "out of memory" in str(engine.parts.notes["calibration"])
    assert not list(kept.iterdir())
    assert len(alone(engine, [Job(prompt(1, 5), SamplingParams(max_tokens=4))])[0]) == 4


def test_a_busy_machine_is_not_kept(kept: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wager.engine.cost_sweep.Sweep.is_unsteady", True)
    engine = engine_of(world)
    spend(engine)
    assert not list(kept.iterdir())
    assert not engine.controller.experience.costs.measured
    assert "busy" in str(engine.parts.notes["calibration"])


def test_spare_time_is_left_alone_where_it_would_be_wasted(
    kept: Path, world: World, monkeypatch: pytest.MonkeyPatch, no_runs: None
) -> None:
    engine = engine_of(world)
    monkeypatch.setattr(calibrate, "_is_busy", lambda: True)
    assert not engine.use_spare_time()
    monkeypatch.setattr(calibrate, "_is_busy", lambda: False)
    engine.add("a", [1, 2, 3], SamplingParams(max_tokens=2))
    assert not engine.use_spare_time()
    monkeypatch.setattr(cost_file, "folder", lambda: None)
    engine.abort("a")
    engine.step()
    assert not engine.has_work and not engine.use_spare_time()


def test_texts_are_the_same_with_and_without(kept: Path, world: World) -> None:
    jobs = [Job(prompt(seed, 9), SamplingParams(max_tokens=16)) for seed in range(3)]
    plain = alone(make_engine(world, dtype="float32"), jobs)
    engine = engine_of(world)
    spend(engine)
    assert alone(engine, jobs) == plain


def test_only_free_pages_are_used(kept: Path, world: World) -> None:
    """What the prefix index keeps stays: a case without room is left out."""
    engine = engine_of(world, num_pages=48)
    alone(engine, [Job(prompt(1, 100), SamplingParams(max_tokens=8))])
    index = engine.scheduler.memory.index
    assert index is not None
    before = len(index)
    spend(engine)
    assert len(index) == before > 0


@pytest.mark.parametrize(
    "spoil", [lambda text: text[:50], lambda text: text.replace("7.0", "-7.0"), lambda _: ""]
)
def test_a_broken_file_is_no_calibration(kept: Path, spoil: Callable[[str], str]) -> None:
    key = {"device": "made up"}
    cost_file.write(Calibration(key, (PassTime(1, 1, 0, 7.0),), (), 0.0))
    assert cost_file.read(key) is not None
    (file,) = kept.iterdir()
    file.write_text(spoil(file.read_text()))
    assert cost_file.read(key) is None
    assert cost_file.stored() == []


def test_a_file_of_another_key_is_not_believed(kept: Path) -> None:
    cost_file.write(Calibration({"device": "a"}, (PassTime(1, 1, 0, 7.0),), (), 0.0))
    (file,) = kept.iterdir()
    values = json.loads(file.read_text())
    values["key"]["device"] = "b"
    file.write_text(json.dumps(values))
    assert cost_file.read({"device": "a"}) is None


def test_a_place_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(cost_file, "folder", lambda: tmp_path / "file" / "inside")
    cost_file.write(Calibration({}, (), (), 0.0))
    assert cost_file.read({}) is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(-3.0, "0 seconds"), (90.0, "90 seconds"), (7300.0, "2 hours"), (9e5, "10 days")]
)
def test_ages_are_format_duration_in_their_largest_unit(seconds: float, words: str) -> None:
    assert cost_file.format_duration(seconds) == words


@pytest.mark.parametrize("num_nodes", [0, 1, 2, 9])
def test_a_comb_is_a_tree_that_is_no_chain(num_nodes: int) -> None:
    tree = comb(num_nodes)
    tree.validate()
    assert tree.num_nodes == num_nodes
    assert tree.is_chain == (num_nodes < 2)


def test_on_a_cpu_a_run_is_bounded_by_what_a_request_would_wait(world: World) -> None:
    config = with_values(EngineConfig(), max_rows=4)
    bounds = bounds_of(engine_of(world).parts, config)
    assert bounds.longest_ms < 100.0 and bounds.max_rows == 4 and bounds.contexts == (256,)
    short = bounds_of(engine_of(world, max_context=100).parts, config)
    assert short.contexts == (50,)
