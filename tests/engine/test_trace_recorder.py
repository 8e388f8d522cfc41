"""Recorded traces: a replay of one does, step by step, what the engine does on the same prompts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.test_broken import Interrupt
from tests.engine.test_endings import load
from tests.equivalence.world import Job, World, drive, is_clean, make_engine, prompt
from wager.engine.engine import Engine
from wager.engine.trace_recorder import RecordRequest, label_of, record, record_trace
from wager.errors import ConfigError, DrafterError, InputError, ModelError, RequestError
from wager.records import SamplingParams
from wager.trace import PADDING, Replay, Trace, load_costs, load_traces, replay

COSTS = load_costs("h200")


def engine_of(world: World, drafter: str, policy: str = "auto") -> Engine:
    """Without lookup beside the drafter, and without reuse, so that every run starts alike."""
    engine = make_engine(world, drafter, policy, prefix_reuse=False)
    engine.drafters.pop("lookup")
    return engine


def asked(temperature: float, count: int = 4) -> list[RecordRequest]:
    return [
        RecordRequest(
            prompt(i, 7 + 5 * i), SamplingParams(max_tokens=40 - 3 * i, temperature=temperature, seed=i)
        )
        for i in range(count)
    ]


def recorded(world: World, drafter: str, temperature: float, folder: Path) -> Trace:
    path = folder / "trace.npz"
    record_trace(engine_of(world, drafter), asked(temperature), path, "made-up")
    (trace,) = load_traces(path).traces
    return trace


def emitted_by_engine(world: World, drafter: str, temperature: float, policy: str) -> list[int]:
    """Tokens of every step, the requests one after another."""
    engine, emitted = engine_of(world, drafter, policy), []
    for number, one in enumerate(asked(temperature)):
        run = drive(engine, {0: [(number, Job(list(one.prompt_ids), one.params))]}, {})
        emitted += [report.emitted for report in run.reports]
    return emitted


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["chain", "block"])
def test_the_replay_takes_the_steps_of_the_engine(
    world: World, tmp_path: Path, drafter: str, temperature: float
) -> None:
    trace = recorded(world, drafter, temperature, tmp_path)
    for policy in ("fixed:1", "fixed:3", "fixed:7"):
        steps = replay(trace, COSTS, policy).steps
        want = emitted_by_engine(world, drafter, temperature, policy)
        assert [step.emitted for step in steps] == want
        if drafter == "chain" and policy != "fixed:1":
            assert max(want) > 2


@pytest.mark.parametrize("drafter", ["chain", "block"])
def test_trees_are_replayed_too(world: World, tmp_path: Path, drafter: str) -> None:
    """Near an end the engine does not guess beyond it, and a trace does not know that it is near."""
    one = RecordRequest(prompt(1, 9), SamplingParams(max_tokens=60, temperature=0.8, seed=5))
    record_trace(engine_of(world, drafter), [one], tmp_path / "trace.npz")
    (trace,) = load_traces(tmp_path / "trace.npz").traces
    assert trace.spine_only == (drafter == "chain")
    run = drive(engine_of(world, drafter, "tree:9"), {0: [(0, Job(list(one.prompt_ids), one.params))]}, {})
    steps = replay(trace, COSTS, "tree:9").steps
    sure = sum(step.start + trace.num_depths < 60 for step in steps)
    assert sure > 10
    got = [(step.num_nodes, step.emitted) for step in steps[:sure]]
    assert got == [(report.num_nodes, report.emitted) for report in run.reports[:sure]]


def test_the_arrays_say_what_happened(world: World) -> None:
    engine = engine_of(world, "chain")
    positions = record(engine, asked(0.0, 2))
    for one, own in zip(asked(0.0, 2), positions, strict=True):
        run = drive(make_engine(world), {0: [("plain", Job(list(one.prompt_ids), one.params))]}, {})
        assert [position.token for position in own] == run.tokens("plain")
        assert own[0].target_p1 == 1.0 and len({position.target_p1 for position in own}) > 10
        assert [position.proposal is None for position in own] == [False] * (len(own) - 1) + [True]


def test_shorter_sequences_are_padded(world: World, tmp_path: Path) -> None:
    trace = recorded(world, "block", 0.0, tmp_path)
    assert [trace.length(i) for i in range(trace.num_sequences)] == [40, 37, 34, 31]
    assert trace.ranks.shape == (4, 40, 7) and (trace.ranks[3, 31:] == PADDING).all()
    assert not np.isfinite(trace.logprobs[:, 0]).any(), "a block drafter waits for the prompt's features"
    assert np.isfinite(trace.logprobs[0, 1:39]).all()
    assert (trace.ranks[0, 38, 2:] == -1).all(), "behind the end of the text nothing is known"


def test_temperatures_have_names_of_their_own(world: World, tmp_path: Path) -> None:
    llm = load(world, "chain", "fixed:3")
    each = [SamplingParams(max_tokens=8, temperature=value, seed=1) for value in (0.8, 0.0, 0.8)]
    llm.record_trace([prompt(i, 6) for i in range(3)], each, tmp_path / "a.npz", "code")
    file = load_traces(tmp_path / "a.npz")
    assert [(one.kind, one.temperature, one.num_sequences) for one in file.traces] == [
        ("code", "t08", 2),
        ("code", "t0", 1),
    ]
    assert file.noised and file.meta["drafter"] == "chain" and file.meta["model"] == world.target
    assert file.meta["temperature"] == {"t08": 0.8, "t0": 0.0}
    llm.record_trace(prompt(0, 6), each[1], tmp_path / "b.npz")
    assert not load_traces(tmp_path / "b.npz").noised


@pytest.mark.parametrize(
    ("temperature", "label"), [(0.0, "t0"), (0.8, "t08"), (1.0, "t1"), (1.25, "t125"), (1e-5, "t000001")]
)
def test_labels(temperature: float, label: str) -> None:
    assert label_of(temperature) == label


def state(engine: Engine) -> tuple[Any, ...]:
    experience = engine.controller.experience
    total = experience.ledger.total
    return (
        engine.controller,
        engine.controller.policy,
        engine.draft_outcomes,
        total.tokens,
        experience.stats.steps,
    )


def test_policy_and_experience_are_left_as_they_were(world: World, tmp_path: Path) -> None:
    llm = load(world, "chain", "auto")
    (want,) = llm.generate(prompt(1, 9), SamplingParams(max_tokens=20))
    before = state(llm.engine)
    llm.record_trace(prompt(2, 9), SamplingParams(max_tokens=20), tmp_path / "a.npz")
    assert state(llm.engine) == before and is_clean(llm.engine) and not llm.engine.has_work
    assert llm.generate(prompt(1, 9), SamplingParams(max_tokens=20))[0].token_ids == want.token_ids


@pytest.mark.parametrize(
    ("place", "error", "raised"),
    [
        ("runner.run", RuntimeError, ModelError),
        ("runner.run", KeyboardInterrupt, KeyboardInterrupt),
        ("drafter.propose", ValueError, DrafterError),
    ],
)
def test_a_recording_that_fails_leaves_nothing(
    world: World, tmp_path: Path, place: str, error: type[BaseException], raised: type[BaseException]
) -> None:
    llm = load(world, "chain", "fixed:3")
    before = state(llm.engine)
    owner: Any = llm.engine.runner if place.startswith("runner") else llm.engine.drafters["chain"]
    method = place.partition(".")[2]
    original = getattr(owner, method)
    setattr(owner, method, Interrupt(original, 3, error))
    with pytest.raises(raised):
        llm.record_trace([prompt(1, 9), prompt(2, 5)], SamplingParams(max_tokens=20), tmp_path / "a.npz")
    setattr(owner, method, original)
    assert state(llm.engine) == before and is_clean(llm.engine) and not llm.engine.has_work
    assert not (tmp_path / "a.npz").exists()
    llm.record_trace(prompt(1, 9), SamplingParams(max_tokens=20), tmp_path / "a.npz")


@pytest.mark.parametrize("drafter", ["lookup", "none"])
def test_a_drafter_without_probabilities_is_refused(world: World, tmp_path: Path, drafter: str) -> None:
    with pytest.raises(ConfigError, match=f"drafter = '{drafter}'"):
        load(world, drafter).record_trace(prompt(1, 9), None, tmp_path / "a.npz")


def test_what_cannot_be_recorded_is_refused(world: World, tmp_path: Path) -> None:
    llm, params = load(world, "chain", "fixed:3"), SamplingParams(max_tokens=6)
    with pytest.raises(InputError, match="trace_kind"):
        llm.record_trace(prompt(1, 9), params, tmp_path / "a.npz", "a/b")
    with pytest.raises(ConfigError, match="temperature"):
        llm.record_trace(prompt(1, 9), SamplingParams(temperature=12.0), tmp_path / "a.npz")
    with pytest.raises(RequestError, match="max_tokens"):
        llm.record_trace(prompt(1, 9), SamplingParams(max_tokens=1), tmp_path / "a.npz")
    with pytest.raises(InputError, match="cannot write"):
        llm.record_trace(prompt(1, 9), params, tmp_path / "no" / "a.npz")
    stream = llm.stream(prompt(1, 9), params)
    next(stream)
    with pytest.raises(RequestError, match="other requests"):
        llm.record_trace(prompt(2, 9), params, tmp_path / "a.npz")
    stream.close()


def test_any_policy_runs_on_a_recording(world: World, tmp_path: Path) -> None:
    trace = recorded(world, "block", 0.8, tmp_path)
    for policy in ("auto", "bod:tree", "ema+tree:4", "entropy+fixed:2"):
        found: Replay = replay(trace, COSTS, policy)
        assert found.tokens == 40 + 37 + 34 + 31
    assert not replay(trace, COSTS, "fixed:3").steps[0].drafted, "nothing was offered there"
