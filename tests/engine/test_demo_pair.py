"""The pair that ships, loaded by its names: what is said, which drafters come, that the text is plain's."""

import logging
from typing import Any

import pytest

from wager.errors import ModelError
from wager.llm import LLM, Output
from wager.records import SamplingParams

# In float64, so that no near-tie of whatever weights lie there can part the texts.
QUICK: dict[str, Any] = {
    "threads": 1,
    "layout": "out_in",
    "num_pages": 64,
    "max_rows": 4,
    "dtype": "float64",
}
PROMPTS = [[{"role": "user", "content": "What is 3 + 4?"}], "def area(radius):"]
PARAMS = [SamplingParams(max_tokens=16), SamplingParams(max_tokens=16, temperature=0.8, seed=5)]


def texts(outputs: list[Output]) -> list[list[int]]:
    assert not [output.error for output in outputs if output.error]
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return texts(LLM("demo", None, "ar", **QUICK).generate(PROMPTS, PARAMS))


def test_without_a_model_it_is_the_demo_pair_and_that_is_said(
    plain: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "wager"):
        llm = LLM(policy="fixed:4", **QUICK)
    [said] = [record.getMessage() for record in caplog.records if record.name == "wager.llm"]
    assert "no model was named" in said and "demo" in said
    assert llm.notes["model"] == "demo"
    assert list(llm.engine.drafters) == ["block", "lookup"]
    assert llm.chat_template is not None
    assert texts(llm.generate(PROMPTS, PARAMS)) == plain


def test_a_model_that_is_named_is_not_announced(
    plain: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "wager"):
        llm = LLM("demo", "demo/chain", "tree:4", **QUICK)
    assert not [record for record in caplog.records if record.name == "wager.llm"]
    assert list(llm.engine.drafters) == ["chain", "lookup"]
    assert texts(llm.generate(PROMPTS, PARAMS)) == plain


def test_another_part_of_it_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="demo/tree"):
        LLM("demo", "demo/tree", **QUICK)
