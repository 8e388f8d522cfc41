"""What a model's own generation_config.json adds to its card."""

import json
from pathlib import Path
from typing import Any

import pytest

from wager.cards import card_for
from wager.cards.generation_config import generation_layer
from wager.errors import ModelError

QWEN = "Qwen/Qwen3-8B"


def layer(folder: Path, **stated: Any) -> dict[str, Any]:
    (folder / "generation_config.json").write_text(json.dumps(stated))
    return generation_layer(folder)


def test_the_file_comes_before_the_card(tmp_path: Path) -> None:
    layer(tmp_path, do_sample=True, temperature=0.3, top_k=5, max_new_tokens=77)
    card = card_for(QWEN, "qwen3", folder=tmp_path)
    assert card.sampling.value == {"temperature": 0.3, "top_k": 5}
    assert card.sampling.source == card.max_tokens.source == "generation_config.json"
    assert card.max_tokens.value == 77
    assert card.reply_tokens == card_for(QWEN, "qwen3").reply_tokens
    assert card_for(QWEN, "qwen3", {"max_tokens": 5}, tmp_path).max_tokens.source == "flag"


@pytest.mark.parametrize(
    ("stated", "sampling"),
    [
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
        ({"temperature": 0.7, "top_p": None}, {"temperature": 0.7}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)
def test_what_is_sampled(tmp_path: Path, stated: dict[str, Any], sampling: dict[str, float]) -> None:
    assert layer(tmp_path, **stated) == {"sampling": sampling}


def test_a_file_that_says_nothing_changes_nothing(tmp_path: Path) -> None:
    assert generation_layer(tmp_path) == {} == layer(tmp_path, eos_token_id=[1, 2], _from_model_config=True)
    assert card_for(QWEN, folder=tmp_path) == card_for(QWEN)


@pytest.mark.parametrize("stated", [{"temperature": "hot"}, {"top_k": -1}, {"max_new_tokens": 0}], ids=str)
def test_values_that_are_none(tmp_path: Path, stated: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=rf"generation_config\.json: {next(iter(stated))} is"):
        layer(tmp_path, **stated)
