"""The flags that limit thinking, on the demo pair: exact budgets, messages, and refused values."""

import json
from typing import Any

import pytest

from wager.cli import main
from wager.cli.thinking import ThinkingOptions, thinking_flags, thinking_options
from wager.errors import RequestError

FAST = ["--threads", "1", "--num-pages", "64", "--layout", "out_in", "--max-rows", "2"]
QUESTION = "Tom has 3 apples and buys 4 more. How many apples does he have?"


def generate(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[list[dict[str, Any]], str]:
    status = main.exit_status(["generate", "--prompt", QUESTION, "--json", "--ignore-eos", *FAST, *flags])
    printed = capsys.readouterr()
    return (json.loads(printed.out)["outputs"] if status == 0 else []), printed.err


@pytest.mark.parametrize("budget", [0, 11])
def test_a_budget_is_kept_to_the_token(capsys: pytest.CaptureFixture[str], budget: int) -> None:
    (output,), said = generate(
        capsys, "--max-tokens", "60", "--thinking-budget", str(budget), "--thinking-close", "</think>"
    )
    assert output["close"] | {"content_tokens": 0} == {
        "kind": "hard",
        "thinking_tokens": budget,
        "content_tokens": 0,
    }
    assert output["origins"].index("forced") == budget and output["origins"].count("forced") == 1
    assert "</think>" in output["text"]
    assert f"thinking at most {budget} tokens (request); closing text from flag" in said


def test_an_effort_uses_the_cards_budget_and_leaves_room_for_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (output,), said = generate(capsys, "--max-tokens", "40", "--effort", "high")
    assert "at most 24 tokens (room for the answer, less than the requested 384)" in said
    assert "card demo" in said
    assert output["close"]["thinking_tokens"] <= 24


def test_effort_none_disables_thinking(capsys: pytest.CaptureFixture[str]) -> None:
    (output,), _ = generate(capsys, "--max-tokens", "20", "--effort", "none")
    assert output["close"]["thinking_tokens"] == 0
    assert (
        output["prompt_ids"] != generate(capsys, "--max-tokens", "1", "--effort", "low")[0][0]["prompt_ids"]
    )


def test_without_the_flags_nothing_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    (output,), said = generate(capsys, "--max-tokens", "5")
    assert output["close"] is None and "thinking" not in said


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"effort": "huge"}, "effort"),
        ({"effort": "none", "thinking_budget": 5}, "effort"),
    ],
)
def test_an_error_names_its_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=field):
        thinking_options(values)


def test_the_options_are_read_from_the_flags() -> None:
    assert not thinking_options({}).is_given
    assert thinking_options({"effort": "none", "thinking_budget": 0}) == ThinkingOptions(0, "none")
    assert [flag.name for flag in thinking_flags()] == ["thinking_budget", "effort", "thinking_close"]


def test_a_closing_text_without_the_mark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    outputs, said = generate(capsys, "--thinking-budget", "3", "--thinking-close", "enough")
    assert not outputs and "thinking" in said and "</think>" in said
