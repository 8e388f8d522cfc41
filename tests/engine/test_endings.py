"""How requests end: stop tokens, stop strings over the borders of steps and tokens, lengths, the model's end.

Every ending is judged by plain decoding's own unbounded text, under policies that emit several tokens a step,
so that ends fall inside accepted paths.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.equivalence.world import STRICT, World, is_clean, prompt, steady
from wager.llm import LLM, Output
from wager.records import SamplingParams

ENGINES = [("none", "ar"), ("chain", "fixed:6"), ("block", "tree:12")]
PROMPT = "The quick brown fox"
LONG = 60


def load(world: World, drafter: str = "none", policy: str = "ar", **settings: Any) -> LLM:
    values = {**STRICT, "num_pages": 128, "page_size": 8, **settings}
    llm = LLM(world.target, world.drafter(drafter), policy, **values)
    steady(llm.engine)
    return llm


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def llm(speaking: World, request: pytest.FixtureRequest) -> LLM:
    return load(speaking, *request.param)


@pytest.fixture(scope="module")
def plain(speaking: World) -> Output:
    (output,) = load(speaking).generate(PROMPT, SamplingParams(max_tokens=LONG, ignore_eos=True))
    return output


def run(llm: LLM, **params: Any) -> Output:
    (output,) = llm.generate(PROMPT, SamplingParams(**{"max_tokens": LONG, "ignore_eos": True, **params}))
    assert is_clean(llm.engine)
    # Every token is counted once, the last one too where it was a guess.
    assert output.stats.tokens_per_step * output.stats.steps == pytest.approx(len(output.token_ids))
    return output


def test_the_chain_is_really_accepted(speaking: World, plain: Output) -> None:
    output = run(load(speaking, "chain", "fixed:6"))
    assert output.token_ids == plain.token_ids and output.text == plain.text
    assert output.stats.accepted > 10 and output.origins.count("guess") == output.stats.accepted


@pytest.mark.parametrize("place", [0, 1, 5, 17, 30, 44])
def test_stop_token(llm: LLM, plain: Output, place: int) -> None:
    token = plain.token_ids[place]
    first = plain.token_ids.index(token)
    output = run(llm, stop_token_ids=[token])
    assert output.token_ids == plain.token_ids[: first + 1]
    assert output.finish_reason == "stop" and output.stop == token
    assert len(output.origins) == len(output.token_ids)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("start", range(3, 60, 8))
def test_stop_string(llm: LLM, plain: Output, start: int, length: int) -> None:
    stop = plain.text[start : start + length]
    output = run(llm, stop=[stop, "never this"])
    assert output.text == plain.text[: plain.text.index(stop)]
    assert output.finish_reason == "stop" and output.stop == stop
    assert output.token_ids == plain.token_ids[: len(output.token_ids)]


def test_stop_string_that_never_comes(llm: LLM, plain: Output) -> None:
    output = run(llm, stop=[plain.text[-3:] + "?!"])
    assert output.text == plain.text and output.finish_reason == "length"


def test_min_tokens_puts_off_a_stop_token(llm: LLM, plain: Output) -> None:
    token = plain.token_ids[4]
    output = run(llm, stop_token_ids=[token], min_tokens=12)
    assert token not in output.token_ids[:12]
    assert len(output.token_ids) > 12
    assert output.token_ids[:4] == plain.token_ids[:4]
    if output.finish_reason == "stop":
        assert output.token_ids.index(token) == len(output.token_ids) - 1 >= 12


def test_a_stop_string_before_min_tokens_is_text_like_any_other(llm: LLM, plain: Output) -> None:
    stop = plain.text[2:4]
    output = run(llm, stop=[stop], min_tokens=30)
    assert len(output.token_ids) > 30 and output.text.startswith(plain.text[:10])
    assert plain.text.startswith(output.text)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 13])
def test_max_tokens(llm: LLM, plain: Output, length: int) -> None:
    output = run(llm, max_tokens=length)
    assert output.token_ids == plain.token_ids[:length]
    assert output.finish_reason == "length"
    if length == 1:
        assert output.stats.drafted == 0, "a guess behind the last token can never be emitted"


def test_the_context_is_the_last_limit(speaking: World, plain: Output) -> None:
    short = load(speaking, "chain", "fixed:6", max_context=len(plain.prompt_ids) + 9)
    output = run(short)
    assert output.token_ids == plain.token_ids[:9] and output.finish_reason == "length"


@pytest.mark.parametrize("engine", ENGINES, ids="-".join)
def test_the_models_own_end(speaking: World, plain: Output, tmp_path: Path, engine: tuple[str, str]) -> None:
    end = plain.token_ids[20]
    folder = Path(shutil.copytree(speaking.target, tmp_path / "ending"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    llm = load(World(str(folder), speaking.chain, speaking.block, None), *engine)
    output = run(llm, ignore_eos=False)
    first = plain.token_ids.index(end)
    assert output.token_ids == plain.token_ids[: first + 1] and output.finish_reason == "stop"
    assert run(llm).token_ids == plain.token_ids


def test_a_model_without_an_end_goes_on(world: World) -> None:
    llm = load(world, "chain", "fixed:4")
    (output,) = llm.generate(prompt(1, 5), SamplingParams(max_tokens=50))
    assert llm.engine.parts.end_ids == () and output.finish_reason == "length"
    assert output.text == "" and len(output.token_ids) == 50
