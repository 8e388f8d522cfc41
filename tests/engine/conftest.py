"""The world of these tests, and one whose target has a tokenizer, each made once."""

import json
from pathlib import Path

import pytest

from tests.equivalence.world import World, make_world
from tests.text.conftest import train_byte_level


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A target with a byte-level tokenizer that knows fewer ids than the model has scores."""
    made = make_world(tmp_path_factory.mktemp("speaking"), seed=4, vocab_size=360)
    add_tokenizer(Path(made.target))
    return made


def add_tokenizer(folder: Path) -> None:
    train_byte_level().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
