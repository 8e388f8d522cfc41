"""Model cards: which one holds for a name, where each value came from, and that the files are sound."""

import json
from dataclasses import fields

import pytest

from wager.cards import EFFORTS, card_for
from wager.cards.card import FOLDER, ThinkingText
from wager.errors import ConfigError
from wager.pairs import DEMO, PAIRS, shipped_folder
from wager.records import SamplingParams

KEYS = {"max_tokens", "hard_limit_reply_budget", "thinking", "sampling", "efforts"}
FILES = sorted(FOLDER.rglob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_has_only_what_a_card_has(path) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    is_family, is_fallback = path.parent != FOLDER, path.stem == "fallback"
    if is_fallback:
        assert set(values) == KEYS
    elif is_family:
        assert set(values) == KEYS | {"family", "model_types"} and values["family"] == path.stem
    else:
        assert set(values) <= KEYS | {"model", "family"} and {"model", "family"} <= set(values)
    for name, value in values.get("sampling", {}).items():
        SamplingParams(**{name: value})
    if values.get("thinking"):
        marks = ThinkingText(**values["thinking"])
        assert marks.close in marks.terminator and marks.open not in marks.terminator
    budgets = values.get("efforts", {})
    assert list(budgets) in ([], list(EFFORTS[1:])) and list(budgets.values()) == sorted(budgets.values())
    if budgets and "max_tokens" in values:
        assert max(budgets.values()) <= values["max_tokens"] - values["hard_limit_reply_budget"]


@pytest.mark.parametrize("model", [DEMO, *(pair.target for pair in PAIRS)])
def test_every_known_pair_has_a_card(model: str) -> None:
    card = card_for(model)
    assert f"card {model}" in {source for *_, source in card.rows()} or card.max_tokens.source.startswith(
        "family"
    )
    assert card.max_tokens.source != "fallback"
    assert {name for name, *_ in card.rows()} == {one.name for one in fields(card)}


def test_a_value_comes_from_the_first_that_has_it() -> None:
    card = card_for("Qwen/Qwen3-Coder-Next", flags={"max_tokens": 77, "reply_tokens": None})
    assert (card.max_tokens.value, card.max_tokens.source) == (77, "flag")
    assert card.sampling.source == "card Qwen/Qwen3-Coder-Next"
    assert card.thinking.source == "family qwen3-coder" and card.thinking.value is None


def test_a_copy_of_a_model_has_its_card() -> None:
    for name in ("/models/Qwen3.6-27B-FP8", "someone/qwen3.6-27b-awq", "Qwen/Qwen3.6-27B"):
        assert card_for(name).sampling.source == "card Qwen/Qwen3.6-27B"
    assert card_for("Qwen/Qwen3.6-27B").thinking.value is not None


def test_an_unknown_model_has_its_familys_and_at_last_the_fallback() -> None:
    assert card_for("mine/something", "qwen3").max_tokens.source == "family qwen3"
    unknown = card_for("mine/something", "rwkv")
    assert {source for *_, source in unknown.rows()} == {"fallback"}
    assert card_for("", "").max_tokens.source == "fallback"


def test_the_folder_of_the_demo_pair_is_known_too() -> None:
    assert card_for(str(shipped_folder(DEMO))) == card_for(DEMO)
    assert card_for(DEMO).max_tokens.source == "card demo"


def test_a_flag_may_say_what_closes_and_nothing_else_of_the_marks() -> None:
    card = card_for(DEMO, flags={"thinking": "enough</think>"})
    assert card.thinking.value == ("<think>", "</think>", "enough</think>")
    assert card.thinking.source == "flag"
    silent = card_for("meta-llama/Llama-3.1-8B-Instruct", flags={"thinking": "enough"})
    assert silent.thinking.value is None


@pytest.mark.parametrize(
    "flags", [{"max_tokens": -1}, {"max_tokens": True}, {"reply_tokens": "9"}, {"thinking": ""}]
)
def test_a_flag_of_the_wrong_kind_is_refused(flags: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(flags))):
        card_for(DEMO, flags=flags)


def test_cards_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        card_for(DEMO).efforts.value["low"] = 1  # type: ignore[index]
