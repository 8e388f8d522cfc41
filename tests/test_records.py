"""Records: what a request may ask for."""

import pickle
from dataclasses import FrozenInstanceError, fields

import pytest

from wager.errors import RequestError
from wager.records import (
    MAX_LOGPROBS,
    MAX_MARK,
    MAX_STOPS,
    GrammarSpec,
    SamplingParams,
    ThinkingLimit,
    Verdict,
)


def test_a_verdicts_readouts() -> None:
    verdict = Verdict(accepted=(5, 6), path=(0, 3), target_token=7, num_drafted=4)
    assert (verdict.num_accepted, verdict.emitted) == (2, (5, 6, 7))


def test_the_defaults_are_allowed_and_frozen() -> None:
    params = SamplingParams()
    assert params.is_greedy and not SamplingParams(temperature=0.7).is_greedy
    assert all(one.metadata["help"].endswith(".") for one in fields(params))
    with pytest.raises(FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]


def test_values_are_brought_into_one_form() -> None:
    params = SamplingParams(
        temperature=1,
        stop="end",  # type: ignore[arg-type]
        stop_token_ids=[3, 4],  # type: ignore[arg-type]
        logit_bias={5: 2},
    )
    assert isinstance(params.temperature, float)
    assert params.stop == ("end",)
    assert params.stop_token_ids == (3, 4)
    assert params.logit_bias == {5: 2.0}
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop=None).stop == ()  # type: ignore[arg-type]
    assert SamplingParams(logit_bias={}).logit_bias is None
    assert pickle.loads(pickle.dumps(params)) == params


def test_the_callers_own_mapping_is_not_kept() -> None:
    bias = {5: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[6] = 1.0
    assert params.logit_bias == {5: 2.0}


NAN, INF = float("nan"), float("inf")
BAD = [
    ("max_tokens", 0),
    ("max_tokens", 1.0),
    ("max_tokens", True),
    ("max_tokens", None),
    ("temperature", -0.1),
    ("temperature", 1e-40),
    ("n", 0),
    ("n", 1.0),
    ("prompt_logprobs", 21),
    ("temperature", NAN),
    ("temperature", INF),
    ("temperature", "1"),
    ("temperature", True),
    ("top_k", -1),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_p", NAN),
    ("min_p", 2),
    ("min_p", -1),
    ("seed", 1.5),
    ("seed", 1 << 64),
    ("seed", False),
    ("stop", [""]),
    ("stop", ""),
    ("stop", [3]),
    ("stop", 3),
    ("stop", {"a": 1}),
    ("stop", ["x"] * (MAX_STOPS + 1)),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["1"]),
    ("stop_token_ids", 7),
    ("stop_token_ids", "12"),
    ("speculation", "none"),
    ("speculation", "fixed"),
    ("speculation", "fixed:0"),
    ("speculation", "fixed:x"),
    ("speculation", "fixed:99999"),
    ("speculation", 3),
    ("token_details", 1),
    ("thinking", 5),
    ("thinking", {"budget": 5}),
    ("grammar", "a+"),
    ("min_tokens", -1),
    ("min_tokens", 1000),
    ("ignore_eos", 1),
    ("logprobs", -1),
    ("logprobs", True),
    ("logprobs", MAX_LOGPROBS + 1),
    ("repetition_penalty", 0),
    ("repetition_penalty", NAN),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("logit_bias", {"5": 1.0}),
    ("logit_bias", {5: NAN}),
    ("logit_bias", {5: 101}),
    ("logit_bias", {-5: 1}),
    ("logit_bias", [5]),
    ("priority", 0.5),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert "\n" not in str(caught.value)


def test_auto_is_no_wish_of_its_own() -> None:
    assert SamplingParams(speculation="auto") == SamplingParams()
    assert SamplingParams(speculation="fixed:7").speculation == "fixed:7"


def test_a_limit_brings_its_marks_into_one_form() -> None:
    limit = ThinkingLimit(5, [1], [2, 3], soft_ratio=1)  # type: ignore[arg-type]
    assert (limit.open_ids, limit.close_ids, limit.natural_ids) == ((1,), (2, 3), (2, 3))
    assert isinstance(limit.soft_ratio, float)
    assert ThinkingLimit(None, (), (2,), natural_ids=(9,)).natural_ids == (9,)
    params = SamplingParams(thinking=limit, grammar=GrammarSpec("regex", "a+"))
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    "values",
    [
        (-1, (1,), (2,)),
        (True, (1,), (2,)),
        (5, (1,), ()),
        (5, (1,), (1,)),
        (5, (1,), (-2,)),
        (5, (1,), tuple(range(MAX_MARK + 1))),
        (5, (1,), (2,), 1),
        (5, (1,), (2,), True, (1,)),
        (5, (1,), (2,), True, (), -0.5),
        (5, (1,), (2,), True, (), NAN),
        (5, (1,), (2,), True, (), 0.5, -1),
    ],
)
def test_a_bad_limit_is_refused(values: tuple[object, ...]) -> None:
    with pytest.raises(RequestError, match="thinking"):
        ThinkingLimit(*values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "text"), [("xml", "a"), ("regex", ""), ("lark", None)])
def test_a_bad_grammar_is_refused(kind: str, text: str) -> None:
    with pytest.raises(RequestError, match="grammar"):
        GrammarSpec(kind, text)
