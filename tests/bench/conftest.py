"""A tiny target with a tokenizer, its drafters beside it, made once."""

from pathlib import Path

import pytest

from tests.engine.conftest import add_tokenizer
from tests.equivalence.world import World, make_world


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(tmp_path_factory.mktemp("pair"), seed=4, vocab_size=360)
    add_tokenizer(Path(made.target))
    return made
