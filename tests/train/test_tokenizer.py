"""The demo tokenizer: marks that stay whole, text that comes back, a template in the corpus's own form."""

from pathlib import Path
from typing import Any

import pytest

from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer
from wager.train.tokenizer import (
    END_OF_TURN,
    MASK,
    PAD,
    SPECIALS,
    save_tokenizer,
    train_tokenizer,
    with_thinking,
)

TEXTS = ["The sum of 12 and 30 is 42.", "def add(a, b):\n    return a + b\n", "Grüße, 世界! 🌍"] * 5
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "The answer is 5."},
    {"role": "user", "content": "And 3 + 4?"},
]
WRITTEN = (
    "<|system|>\nBe brief.\n<|user|>\nWhat is 2 + 3?\n<|assistant|>\nThe answer is 5.\n<|end|>\n"
    "<|user|>\nAnd 3 + 4?\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer") / "new"
    save_tokenizer(train_tokenizer(TEXTS, 330), made)
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def template(folder: Path) -> ChatTemplate:
    found = ChatTemplate.from_folder(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("text", [*TEXTS[:3], "tabs\tand  spaces\n\n", "\x00\x7f", WRITTEN])
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids, skip_special=False) == text


def test_marks_are_single_tokens_and_digits_stand_alone(tokenizer: Tokenizer) -> None:
    for mark in SPECIALS:
        assert len(tokenizer.encode(mark, add_special=False)) == 1
    ids = tokenizer.encode("1234", add_special=False)
    assert [tokenizer.decode([i]) for i in ids] == ["1", "2", "3", "4"]


def test_the_saved_folder_says_what_its_marks_are(tokenizer: Tokenizer) -> None:
    end = tokenizer.token_id(END_OF_TURN)
    assert tokenizer.eos_ids == (end,)
    assert tokenizer.pad_id == tokenizer.token_id(PAD)
    assert tokenizer.special_id("mask_token") == tokenizer.token_id(MASK)


@pytest.mark.parametrize(
    ("given", "tail"),
    [
        ({}, "<|assistant|>\n"),
        ({"enable_thinking": True}, "<|assistant|>\n<think>\n"),
        ({"enable_thinking": False}, "<|assistant|>\n<think>\n</think>\n"),
    ],
)
def test_the_template_asks_for_an_answer(template: ChatTemplate, given: dict[str, Any], tail: str) -> None:
    assert template.render(CHAT, template_kwargs=given) == WRITTEN + tail


def test_the_template_renders_what_the_model_was_taught(template: ChatTemplate) -> None:
    assert template.render(CHAT, add_generation_prompt=False) == WRITTEN
    tools = [{"type": "function", "function": {"name": "add"}}]
    text = template.render(CHAT[1:2], tools=tools)
    assert text.startswith("<|system|>\nYou can call these functions:\n[{") and '"add"' in text
    assert text.endswith("}]\n<|user|>\nWhat is 2 + 3?\n<|assistant|>\n")


def test_an_answered_chat_goes_on_from_its_own_prompt(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """What was sent, and the answer with its end mark, begin the next turn's prompt: pages can be reused."""
    asked = template.render(CHAT[:2])
    answered = asked + CHAT[2]["content"] + "\n" + END_OF_TURN
    longer = template.render(CHAT)
    assert longer.startswith(answered)
    first, second = (tokenizer.encode(text, add_special=False) for text in (answered, longer))
    assert second[: len(first)] == first
    assert tokenizer.decode(second, skip_special=False) == longer


def test_an_answer_can_be_continued(template: ChatTemplate) -> None:
    open_end = template.render(CHAT[:3], add_generation_prompt=False, continue_final=True)
    assert open_end == template.render(CHAT[:2]) + "The answer is 5."


def test_reasoning_moves_into_the_think_span() -> None:
    text = "<|user|>\n2 + 3?\n<|assistant|>\nTwo and three.\nThat is five.\nThe answer is 5.\n<|end|>"
    assert with_thinking(text) == (
        "<|user|>\n2 + 3?\n<|assistant|>\n<think>\nTwo and three.\nThat is five.\n</think>\n"
        "The answer is 5.\n<|end|>"
    )


@pytest.mark.parametrize(
    "text",
    [
        "no chat at all\nThe answer is 5.",
        "<|user|>\n2 + 3?\n<|assistant|>\nThe answer is 5.\n<|end|>",
        "<|user|>\n2 + 3?\n<|assistant|>\nFive.\n<|end|>",
        "<|assistant|>\nOne.\n<|assistant|>\nTwo.\nThe answer is 5.",
        "\nThe answer is 5.\n<|assistant|>\nso it is",
    ],
)
def test_what_is_no_worked_solution_stays(text: str) -> None:
    assert with_thinking(text) == text
