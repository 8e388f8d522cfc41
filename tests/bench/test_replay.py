"""Predictions beside measurements: the sweep that times steps, the arithmetic, and a run from end to end."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.machine_costs import BETS, CHAINS, DWELL, TREES, Bet, Samples, Sweep, middle_mean, sweep
from bench.replay import (
    Content,
    Options,
    as_answered,
    cell,
    decode_ms,
    load,
    main,
    priced_ms,
    record,
    seconds,
)
from tests.equivalence.world import World
from tests.trace.recorded import made_up
from wager.bench.plan import RunOptions
from wager.bench.records import Counts, Measured, Run, Timing
from wager.bench.runs import encode
from wager.bench.suites import BenchPrompt
from wager.errors import ModelError
from wager.llm import LLM
from wager.policy import Controller, Experience, StepOutcome
from wager.records import SamplingParams
from wager.trace import Trace, load_costs, replay, step_costs

COSTS = step_costs("made up", {1: 0.5, 4: 1.0, 5: 2.0}, {1: 4.0, 3: 5.0, 5: 6.0, 33: 8.0})


@pytest.fixture(scope="module")
def llm(pair: World) -> LLM:
    return load(pair.target, pair.block, 1)


def test_only_the_recorded_drafter_takes_part(llm: LLM) -> None:
    assert list(llm.engine.drafters) == ["block"]


# -- timing steps


def test_a_sweep_times_every_size_it_can(llm: LLM) -> None:
    prompts = encode(llm, [BenchPrompt("code", f"code/{i}", "a b c d " * 3) for i in range(2)], 100)
    samples, before = Samples(), llm.engine.controller
    sweep(llm, prompts, SamplingParams(max_tokens=100, ignore_eos=True), samples, 2)
    assert llm.engine.controller is before and llm.engine.telemetry.listener is None
    deepest = llm.engine.drafters["block"].describe()["block_size"] - 1  # type: ignore[operator]
    sizes = {1, *(n + 1 for n in CHAINS if n <= deepest), *(n + 1 for n in TREES)}
    assert set(samples.verify) == sizes
    assert set(samples.draft) == {0, *(n for n in CHAINS if n <= deepest)}
    assert min(map(len, samples.verify.values())) >= 2 and len(samples.verify[1]) > len(samples.verify[64])
    curve = samples.curve()
    assert curve.verify(1) > 0 and curve.draft_ms == pytest.approx(middle_mean(samples.draft[0]))


def test_every_bet_has_its_turn() -> None:
    policy, seen = Sweep(Experience()), []
    while policy.rounds < 1:
        seen.append((policy.bet, policy.has_settled))
        policy.next()
    assert [bet for bet, _ in seen[::DWELL]] == list(BETS)
    assert sum(settled for _, settled in seen) == (DWELL - 1) * len(BETS)
    assert {bet.num_nodes for bet in BETS} == {0, *CHAINS, *TREES}


def test_a_curve_of_middle_means() -> None:
    samples = Samples(
        {1: [4.0, 4.2, 3.8, 4.0], 5: [6.0] * 7 + [90.0], 9: [1.0]}, {0: [2.0] * 4, 3: [1.0] * 4, 5: [7.0] * 4}
    )
    curve = samples.curve()
    assert (curve.verify(1), curve.verify(5)) == pytest.approx((4.0, 6.0)), "a stall does not count"
    assert curve.verify(9) == pytest.approx(8.0), "one step is too few: the last slope goes on"
    assert (curve.draft_time_ms(3), curve.draft_ms) == (1.0, 2.0), "the whole draft is the deepest"
    assert middle_mean([1.0, 1.0, 9.0, 9.0]) == 5.0


def test_how_steps_scatter() -> None:
    random = np.random.default_rng(0)
    seen = np.exp(0.05 * random.standard_normal(400))
    samples = Samples({1: (4.0 * seen).tolist(), 5: (6.0 * seen).tolist()})
    assert samples.spread == pytest.approx(0.05, rel=0.15)


def test_too_few_steps_make_no_curve() -> None:
    with pytest.raises(ModelError, match="too few"):
        Samples({1: [4.0] * 9}, {}).curve()


def test_deciding_is_what_the_same_bets_take_longer() -> None:
    bare = {Bet(0): [4.0] * 4, Bet(4, 4): [6.0] * 4, Bet(6): [8.0] * 4, Bet(63): [30.0]}
    behind = {Bet(0): [9.0] * 4, Bet(4, 4): [6.5] * 4, Bet(6): [8.7] * 4, Bet(63): [30.0]}
    samples = Samples({1: [4.0] * 4, 5: [5.0] * 4}, {0: [2.0] * 4}, bare, behind)
    assert samples.decide_ms == pytest.approx(0.6) == samples.curve().decide_ms
    assert Samples({1: [4.0] * 4, 5: [5.0] * 4}, {0: [2.0] * 4}).curve().decide_ms == 0.0


def test_a_stall_in_one_answer_does_not_count() -> None:
    found = Measured(["ar"], [("code", "code/0")])
    for place, decode_s in enumerate((1.0, 9.0, 1.2, 1.1)):
        found.runs.append(Run("ar", 0, 0, place, Timing(decode_s + 0.5, 0.5, 8)))
    assert seconds(found, "ar", whole=False) == pytest.approx(1.15)
    assert seconds(found, "ar", whole=True) == pytest.approx(1.65)


# -- the arithmetic


def measured_like(trace: Trace, policy: str, scale: float = 1.0) -> Measured:
    """What a machine would measure that takes the curve's own times, the policy's `scale` times as long."""
    found = Measured(["ar", policy], [("code", f"code/{i}") for i in range(trace.num_sequences)])
    for name, factor in (("ar", 1.0), (policy, scale)):
        for i in range(trace.num_sequences):
            one = as_sequence(trace, i)
            run = replay(one, COSTS, name)
            decode_s = factor * decode_ms(run, one) / 1e3
            counts = Counts(answers=2, steps=2 * (len(run.steps) - 1), emitted=2 * (run.tokens - 1))
            for step in run.steps[1:]:
                counts.bets[step.num_nodes] += 2
                counts.drafters["block" if step.drafted else ""] += 2
            found.add_counts(name, "code", counts)
            places = (0, 3) if name == "ar" else (1, 2)
            for place in places:
                found.runs.append(Run(name, i, 0, place, Timing(decode_s + 0.1, 0.1, run.tokens)))
    return found


def as_sequence(trace: Trace, i: int) -> Trace:
    return Trace(trace.kind, trace.temperature, trace.logprobs[i : i + 1], trace.ranks[i : i + 1])


def trace_without_first_offers() -> Trace:
    trace = made_up(4, (3, 60, 5, 3))
    trace.logprobs[:, 0] = -np.inf
    trace.ranks[:, 0] = -1
    return trace


@pytest.mark.parametrize("policy", ["fixed:4", "tree:6"])
def test_a_machine_that_keeps_to_the_curve_is_foretold_exactly(policy: str) -> None:
    trace = trace_without_first_offers()
    content = Content("code", 0.0, trace, measured_like(trace, policy), Samples())
    found = cell(content, COSTS, policy, 0.0, Options(seeds=1))
    assert found.error == pytest.approx(0.0, abs=1e-9) and found.within
    assert found.cost_error == pytest.approx(0.0, abs=1e-9)
    assert found.measured_whole < found.measured or found.measured < 1.0
    assert found.control == pytest.approx(1.0)
    assert found.drafted == pytest.approx(1.0) and 0.9 < found.predicted_drafted < 1.0


def test_a_machine_that_takes_longer_is_seen_and_blamed_on_the_curve() -> None:
    trace = trace_without_first_offers()
    content = Content("code", 0.0, trace, measured_like(trace, "fixed:4", scale=1.25), Samples())
    found = cell(content, COSTS, "fixed:4", 0.0, Options(seeds=1))
    assert found.error == pytest.approx(0.25) == found.cost_error
    assert not found.within


def test_a_policy_answers_every_prompt_twice_in_a_row() -> None:
    trace = made_up(2, (3, 20, 4, 2), p1=True, lengths=(20, 11, 7))
    twice = as_answered(trace, 2)
    assert [twice.length(i) for i in range(12)] == [20, 20, 11, 11, 7, 7] * 2
    assert twice.target_p1 is not None and twice.target_p1.shape == (12, 20)
    assert decode_ms(replay(twice, COSTS, "ar"), twice) == pytest.approx(4.0 * 4 * (19 + 10 + 6))


def test_steps_are_priced_as_they_were_taken() -> None:
    counts = Counts(steps=3)
    counts.bets.update({0: 1, 4: 2})
    counts.drafters.update({"": 1, "block": 2})
    assert priced_ms(counts, COSTS, "fixed:4") == pytest.approx(4.0 + 2 * 6.0 + 2 * 1.0)
    assert priced_ms(counts, COSTS, "auto") == pytest.approx(4.0 + 2 * 6.0 + 2 * 2.0)
    weighed = replace(COSTS, decide_ms=0.5)
    assert priced_ms(counts, weighed, "auto") == pytest.approx(4.0 + 2 * 6.0 + 2 * 2.0 + 2 * 0.5)
    assert priced_ms(counts, weighed, "fixed:4") == priced_ms(counts, COSTS, "fixed:4")


# -- the same clock on both sides


def by_the_curve(llm: LLM, policy: str, prompts: list[Any], options: RunOptions) -> float:
    """An engine that learns from the curve's times: what the curve says to its steps, in milliseconds."""
    controller, spent = Controller(policy), []
    learn = controller.learn

    def learn_from_the_curve(outcome: StepOutcome) -> None:
        (share,) = outcome.rows
        verify_ms, draft_ms = COSTS.verify(outcome.num_tokens), 0.0
        if share.offer.drafter is not None:
            draft_ms = COSTS.draft_time_ms(share.offer.depth)
        if share.row.num_pending == 1:
            spent.append(verify_ms + draft_ms)
        learn(StepOutcome(outcome.rows, outcome.num_tokens, verify_ms, draft_ms, outcome.evidence))

    controller.learn = learn_from_the_curve  # type: ignore[method-assign]
    own, llm.engine.controller = llm.engine.controller, controller
    try:
        for i, one in enumerate(prompts):
            llm.generate(one.token_ids, options.params(i))
    finally:
        llm.engine.controller = own
    return sum(spent)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["chain", "block"])
def test_the_replay_foretells_the_engine_where_both_have_the_same_clock(
    pair: World, drafter: str, temperature: float
) -> None:
    """What is left are the prompts' passes, from which an engine learns too."""
    llm, options = load(pair.target, pair.drafter(drafter), 1), RunOptions(64, temperature)
    prompts = encode(llm, [BenchPrompt("code", f"code/{i}", "a b " * (3 + i)) for i in range(4)], 64)
    trace = record(llm, prompts, options, "code")
    for policy, bar in (("ar", 1e-9), ("fixed:3", 1e-9), ("tree:7", 1e-9), ("auto", 0.08)):
        foretold = decode_ms(replay(trace, COSTS, policy), trace)
        spent = by_the_curve(llm, policy, prompts, options)
        assert spent == pytest.approx(foretold, rel=bar)


# -- from end to end


def test_a_whole_run(pair: World, tmp_path: Path, capsys: Any) -> None:
    texts = tmp_path / "texts.jsonl"
    rows = [
        {"bench": "own", "category": kind, "id": f"{kind}{i}", "text": f"{kind} {i} a b a b"}
        for kind in ("code", "prose")
        for i in range(3)
    ]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--texts", str(texts), "--model", pair.target, "--drafter", pair.block, "--threads", "1"]
    flags += ["--limit", "2", "--max-tokens", "24", "--seeds", "2", "--policy", "auto", "--policy", "fixed:2"]
    assert main([*flags, "--json", str(tmp_path / "out.json")]) == 0
    record = json.loads((tmp_path / "out.json").read_text())
    cells = record["data"]["cells"]
    assert [(one["kind"], one["temperature"], one["policy"]) for one in cells] == [
        (kind, t, policy) for t in (0.0, 0.8) for kind in ("code", "prose") for policy in ("auto", "fixed:2")
    ]
    assert all(math.isfinite(one["error"]) and one["texts_differ"] == 0 for one in cells)
    for one in cells:
        if one["policy"] == "fixed:2":
            assert one["tokens_per_step"] == pytest.approx(one["predicted_tokens_per_step"], rel=0.15)
    curve = tmp_path / "curve.json"
    curve.write_text(json.dumps(record["data"]["costs"][1]["curve"]))
    assert load_costs(str(curve)).name == "measured on prose at 0", "wager simulate can read it"
    assert record["config"]["prompts"] == "texts.jsonl" and str(tmp_path) not in json.dumps(record)
    assert "within 10%" in capsys.readouterr().out


def test_interrupted_it_shows_what_is_whole(
    pair: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = []

    def record_once(llm: LLM, prompts: Any, options: Any, kind: str) -> Trace:
        kinds.append(kind)
        if len(kinds) > 1:
            raise KeyboardInterrupt
        return record(llm, prompts, options, kind)

    monkeypatch.setattr("bench.replay.record", record_once)
    flags = ["--model", pair.target, "--drafter", pair.block, "--threads", "1", "--policy", "fixed:2"]
    flags += ["--limit", "1", "--max-tokens", "16", "--json", str(tmp_path / "out.json")]
    assert main(flags) == 130
    data = json.loads((tmp_path / "out.json").read_text())["data"]
    assert not data["finished"] and [one["kind"] for one in data["cells"]] == kinds[:1]
