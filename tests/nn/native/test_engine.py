"""Native passes in an engine: texts equal to the last token in every company, a change only between texts."""

from typing import Any

import pytest
import torch

from tests.equivalence.world import Job, World, alone, drive, make_engine, make_world, prompt
from wager.costs import CostModel
from wager.engine.engine import Engine
from wager.nn.native.library import Library, LibraryState, num_threads
from wager.records import SamplingParams

SETTINGS: dict[str, Any] = {"dtype": "float32", "layout": "auto", "threads": 2, "native": "on"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def engine_of(world: World, drafter: str = "none", policy: str = "ar", **settings: Any) -> Engine:
    return make_engine(world, drafter, policy, **(SETTINGS | settings))


def jobs(count: int = 5) -> list[Job]:
    return [
        Job(
            prompt(seed, 7 + 3 * seed, 5),
            SamplingParams(max_tokens=20, temperature=0.7 * (seed % 2), seed=seed),
        )
        for seed in range(count)
    ]


@pytest.mark.parametrize("weights", ["auto", "int8"])
@pytest.mark.parametrize(
    ("drafter", "policy"), [("chain", "tree:12"), ("block", "fixed:5"), ("lookup", "auto")]
)
def test_texts_are_equal_without_exception(
    ready: Library, world: World, drafter: str, policy: str, weights: str
) -> None:
    """Elsewhere a near-tie may part two texts; here every number is the same, whatever the company."""
    plain = alone(engine_of(world, weights=weights), jobs())
    engine = engine_of(world, drafter, policy, weights=weights, prefill_chunk=6)
    assert engine.parts.notes["passes"] == {"value": "native", "source": "auto"}
    run = drive(engine, {step: [(step, job)] for step, job in enumerate(jobs())}, {})
    assert [run.tokens(step) for step in range(len(jobs()))] == plain
    assert run.verified > 0


def test_off_and_other_layouts_are_noted(ready: Library, world: World) -> None:
    assert engine_of(world, native="off").parts.notes["passes"]["value"] == "torch"
    assert "in_out" in str(engine_of(world, layout="in_out").parts.notes["passes"])


def test_every_size_is_native_and_drafters_go_with_their_target(ready: Library, world: World) -> None:
    def passes(**settings: Any) -> list[str]:
        engine = engine_of(world, "block", "fixed:3", **settings)
        return [
            network.native_loader.reason for network in (engine.runner.decoder, engine.drafters["block"].net)
        ]

    assert passes(native="auto") == passes(native="on") == ["", ""]
    assert passes(native="auto", weights="int8") == ["", ""]
    assert passes(native="off") == ["not asked for", "not asked for"]
    assert passes(native="auto", dtype="float64") == ["only float32, not float64", "not asked for"]


def test_a_wish_that_cannot_be_met_is_answered(
    own_library_state: LibraryState, library: Library, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    own_library_state.reason, own_library_state.may_become_ready = "no C++ compiler was found", False
    engine_of(world, native="auto")
    assert not caplog.records
    engine_of(world, native="on")
    assert caplog.messages == ["native passes cannot be used: no C++ compiler was found"]
    caplog.clear()
    own_library_state.library = library
    engine_of(world, native="on")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_the_change_waits_for_the_last_text(
    own_library_state: LibraryState, library: Library, world: World
) -> None:
    own_library_state.refresh = lambda **_: None  # type: ignore[method-assign]
    own_library_state.reason = "being built"
    engine = engine_of(world, "block", "fixed:3")
    assert engine.parts.notes["passes"] == {"value": "torch", "source": "being built"}
    first, second, third, fourth = jobs(4)
    engine.add("first", first.prompt, first.params)
    engine.step()
    own_library_state.library = library
    costs, networks = (
        engine.controller.experience.costs,
        (engine.runner.decoder, engine.drafters["block"].net),
    )
    run = drive(engine, {0: [("second", second)]}, {})
    assert run.last("second").finish is not None
    assert all(network.native_loader.reason == "being built" for network in networks)
    assert engine.scheduler.memory.index is not None and len(engine.scheduler.memory.index) > 0
    drive(engine, {0: [("third", third)]}, {})
    for network in networks:  # packing began when that one found the library, and it did not wait
        assert (
            network.native_loader.reason == "weights are being packed"
            and network.native_loader._packing is not None
        )
        network.native_loader._packing.result()
    engine.add("fourth", fourth.prompt, fourth.params)
    assert all(not network.native_loader.reason for network in networks)
    assert engine.parts.notes["passes"] == {"value": "native", "source": "auto"}
    assert len(engine.scheduler.memory.index) == 0
    fresh = engine.controller.experience.costs
    assert fresh is not costs and isinstance(fresh, CostModel) and not fresh.measured
    drive(engine, {}, {})
    assert fresh.measured and engine.controller.experience.costs is fresh


def test_who_measures_waits_for_the_building(
    own_library_state: LibraryState, library: Library, world: World
) -> None:
    own_library_state.refresh = lambda **_: None  # type: ignore[method-assign]
    own_library_state.reason = "being built"
    engine, told = engine_of(world, "block", "fixed:3"), list[str]()

    def finish() -> None:
        own_library_state.library = library

    own_library_state.wait = finish  # type: ignore[method-assign]
    engine.settle(told.append)
    assert engine.parts.notes["passes"] == {"value": "native", "source": "auto"}
    assert len(told) == 1 and "being built" in told[0]
    engine.settle(told.append)
    assert len(told) == 1


def test_a_large_model_has_the_library_built_for_its_next_start(
    own_library_state: LibraryState, library: Library, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait with its weights at hand, and has no small drafter that would ask for the building."""
    monkeypatch.setattr("wager.nn.native.loader.MAX_WAITING_BYTES", 1000)
    started = list[bool]()
    own_library_state.refresh = lambda *, start=True: started.append(start)  # type: ignore[method-assign]
    own_library_state.reason = "being built"
    engine = engine_of(world, "lookup", "auto")
    assert any(started) and engine.parts.notes["passes"] == {"value": "torch", "source": "being built"}
    own_library_state.library = library
    job = jobs(1)[0]
    engine.add("first", job.prompt, job.params)
    assert "next start" in engine.runner.decoder.native_loader.reason and engine.runner.decoder.layers


def test_torch_has_one_thread_beside_native_passes(ready: Library, world: World) -> None:
    """Engines of one process take turns, each with its own number."""
    native, plain = engine_of(world, threads=3), engine_of(world, threads=2, native="off")
    assert (torch.get_num_threads(), num_threads()) == (2, 2)
    job = jobs(1)[0]
    native.add("first", job.prompt, job.params)
    assert (torch.get_num_threads(), num_threads()) == (1, 3)
    plain.add("second", job.prompt, job.params)
    assert (torch.get_num_threads(), num_threads()) == (2, 2)
    assert (native.parts.notes["threads"], plain.parts.notes["threads"]) == (3, 2)
