"""Small models for the tests of LLM and AsyncLLM: without a tokenizer, with one, and with a chat template."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken

from tests.engine.conftest import speaking, world
from tests.engine.test_endings import load
from tests.equivalence.world import World, make_world
from tests.text.conftest import train_byte_level
from wager.llm import LLM

__all__ = ["speaking", "world"]

TEMPLATE = (
    "{% if tools %}tools {{ tools | tojson }}{{ '\\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}{% endif %}"
)
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


@pytest.fixture(scope="session")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A target with a chat template that takes tools and thinking."""
    made = make_world(tmp_path_factory.mktemp("chatting"), seed=4, vocab_size=400)
    backend = train_byte_level()
    backend.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    backend.save(str(Path(made.target) / "tokenizer.json"))
    settings = {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (Path(made.target) / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


@pytest.fixture(scope="module")
def llm(speaking: World) -> LLM:
    return load(speaking, "chain", "fixed:5")


@pytest.fixture(scope="module")
def chat_llm(chatting: World) -> LLM:
    return load(chatting, "chain", "fixed:5", num_pages=256)
