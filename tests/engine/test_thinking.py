"""Thinking limits through the offline face: text, stop strings over a forced close, aborts, counts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.equivalence.world import STRICT, Job, World, drive, is_clean, make_engine, prompt, steady
from wager.cards import Sourced
from wager.engine.sequence import Finish, Origin
from wager.errors import RequestError
from wager.llm import LLM, Output
from wager.records import CloseKind, SamplingParams, ThinkingLimit

PROMPT = "The quick brown fox"
CLOSE = " and so it ends."
BUDGET = 13
ENGINES = [("none", "ar"), ("chain", "fixed:6"), ("chain", "tree:9")]


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def llm(speaking: World, request: pytest.FixtureRequest) -> LLM:
    drafter, policy = request.param
    values: dict[str, Any] = {**STRICT, "num_pages": 128, "page_size": 8}
    made = LLM(speaking.target, speaking.drafter(drafter), policy, **values)
    steady(made.engine)
    return made


def run(llm: LLM, **params: Any) -> Output:
    tokenizer = llm.engine.parts.tokenizer
    assert tokenizer is not None
    limit = ThinkingLimit(BUDGET, (), tuple(tokenizer.encode(CLOSE, add_special=False)), True)
    asked = SamplingParams(**{"max_tokens": 60, "ignore_eos": True, "thinking": limit, **params})
    (output,) = llm.generate(PROMPT, asked)
    assert is_clean(llm.engine)
    return output


def test_the_close_is_text_and_the_pieces_make_it_up(llm: LLM) -> None:
    output = run(llm)
    tokenizer = llm.engine.parts.tokenizer
    assert tokenizer is not None and output.close is not None
    before, _, _ = output.text.partition(CLOSE)
    assert CLOSE in output.text and output.close[:2] == (CloseKind.HARD, BUDGET)
    assert tokenizer.decode(output.token_ids[:BUDGET]) in (before, before.strip(), " " + before)
    streamed = "".join(event.text for event in llm.stream(PROMPT, _params_of(output, llm)))
    assert streamed == output.text


def _params_of(output: Output, llm: LLM) -> SamplingParams:
    tokenizer = llm.engine.parts.tokenizer
    assert tokenizer is not None
    limit = ThinkingLimit(BUDGET, (), tuple(tokenizer.encode(CLOSE, add_special=False)), True)
    return SamplingParams(max_tokens=len(output.token_ids), ignore_eos=True, thinking=limit)


@pytest.mark.parametrize("part", [" and", "so it", "ends."])
def test_a_stop_string_inside_the_close(llm: LLM, part: str) -> None:
    whole = run(llm).text
    output = run(llm, stop=[part])
    assert output.finish_reason == "stop" and output.stop == part
    assert output.text == whole[: whole.index(part)]


def test_a_stop_string_over_its_border(llm: LLM) -> None:
    whole = run(llm).text
    place = whole.index(CLOSE)
    for start, end in ((place - 2, place + 3), (place + len(CLOSE) - 3, place + len(CLOSE) + 2)):
        output = run(llm, stop=[whole[start:end]])
        assert output.text == whole[: whole.index(whole[start:end])] and output.finish_reason == "stop"


def test_an_answer_that_repeats_itself_is_ended(world: World) -> None:
    """Under a bias that leaves the model one word, whoever guesses."""
    limit = ThinkingLimit(4, (), (61, 62), True)
    params = SamplingParams(max_tokens=90, ignore_eos=True, thinking=limit, logit_bias={9: 100.0})
    for drafter, policy in ENGINES:
        run = drive(make_engine(world, drafter, policy), {0: [("one", Job(prompt(1, 9), params))]}, {})
        last = run.last("one")
        assert run.tokens("one") == [9] * 4 + [61, 62] + [9] * 24
        assert last.finish is Finish.STOP and last.repeat_stopped
        assert last.close == (CloseKind.HARD, 4, 24)


def test_a_request_aborted_before_its_first_step_has_two_events(world: World) -> None:
    engine = make_engine(world, "chain", "fixed:4")
    limit = ThinkingLimit(0, (), (61, 62), True)
    engine.add("one", prompt(1, 9), SamplingParams(thinking=limit))
    assert engine.abort("one")
    forced, last = engine.step()
    assert forced.origins == (Origin.FORCED,) * 2 and forced.finish is None
    assert last.finish is Finish.ABORT and last.token_ids == () and is_clean(engine)


def test_forced_tokens_count_in_no_statistics(world: World) -> None:
    engine = make_engine(world, "chain", "fixed:4")
    limit = ThinkingLimit(6, (), (61, 62, 63), True)
    params = SamplingParams(max_tokens=30, ignore_eos=True, thinking=limit)
    run = drive(engine, {0: [("one", Job(prompt(1, 9), params))]}, {})
    last = run.last("one")
    assert last.sequence is not None and last.account is not None
    assert last.sequence.stats.emitted == last.account.tokens == 27
    assert sum(report.emitted for report in run.reports) == 27


@pytest.mark.parametrize("changes", [{"speculation": "off"}, {"thinking": ThinkingLimit(3, (), (61,), True)}])
def test_a_trace_is_of_plain_text(world: World, tmp_path: Path, changes: dict[str, Any]) -> None:
    engine = make_engine(world, "chain")
    with pytest.raises(RequestError, match="record_trace"):
        engine.record_trace([(prompt(1, 9), SamplingParams(**changes))], tmp_path / "trace.npz")


def test_a_model_that_does_not_think_has_no_limit(speaking: World) -> None:
    llm = LLM(speaking.target, None, "ar", **{**STRICT, "num_pages": 16})
    marks = llm.thinking_marks(llm.card())
    assert marks is not None and len(marks.open_ids) > 1, "the family's marks, spelt out"
    assert llm.card().thinking.source == "family qwen3"
    silent = replace(llm.card(), thinking=Sourced(None, "card"))
    with pytest.raises(RequestError, match="does not think"):
        llm.limit_thinking([1, 2], SamplingParams(), 5, card=silent)
