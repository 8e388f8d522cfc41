"""Reading a tokenizer from a folder, what it answers, and how it fails."""

import json
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.errors import InputError, ModelError
from wager.text.tokenizer import Tokenizer


def write(path, value):
    path.write_text(json.dumps(value))


@settings(deadline=None, max_examples=50)
@given(text=st.text(max_size=40))
def test_text_survives_the_round_trip(byte_level, text):
    assert byte_level.decode(byte_level.encode(text), skip_special=False) == text


def test_special_tokens_are_known_and_skipped(folder):
    tokenizer = Tokenizer.from_folder(folder)
    start, end = tokenizer.token_id("<|start|>"), tokenizer.token_id("<|end|>")
    assert tokenizer.special_ids == {start, end}
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id) == (start, (end,), None)
    ids = [start, *tokenizer.encode("a dog"), end]
    assert tokenizer.decode(ids) == "a dog"
    assert tokenizer.decode(ids, skip_special=False) == "<|start|>a dog<|end|>"


def test_add_special_is_what_the_post_processor_adds(folder):
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", backend.token_to_id("<|start|>"))]
    )
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(folder)
    plain = tokenizer.encode("fox", add_special=False)
    assert tokenizer.encode("fox") == [tokenizer.bos_id, *plain]


def test_unknown_ids_decode_to_nothing(byte_level):
    ids = byte_level.encode("fox")
    strange = [byte_level.vocab_size, 10**6, -1, 2**40]
    assert byte_level.decode([*strange, *ids, *strange]) == "fox"
    assert byte_level.token(-1) is None


def test_truncation_and_padding_in_the_file_are_switched_off(folder):
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(folder)
    text = "The quick brown fox"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) < 64


@pytest.mark.parametrize(
    ("files", "stated"),
    [
        ({"generation_config.json": {"eos_token_id": [7, 8]}, "config.json": {"eos_token_id": 9}}, [7, 8]),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 9}}, [9]),
        ({"config.json": {"text_config": {"eos_token_id": 6}}}, [6]),
        ({"config.json": {"eos_token_id": -1}}, []),
        ({"config.json": {"eos_token_id": 1}}, []),
        ({}, []),
    ],
)
def test_end_ids_are_the_models_then_the_tokenizers(folder, files, stated):
    for name, value in files.items():
        write(folder / name, value)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_ids == (*stated, tokenizer.token_id("<|end|>"))


def test_a_model_may_have_no_end_id(folder):
    (folder / "tokenizer_config.json").unlink()
    assert Tokenizer.from_folder(folder).eos_ids == ()


def test_tokens_only_the_config_knows_are_added(folder):
    size = Tokenizer.from_folder(folder).vocab_size
    write(
        folder / "tokenizer_config.json",
        {
            "added_tokens_decoder": {
                str(size): {"content": "<think>"},
                str(size + 1): {"content": "<x>", "special": True},
            }
        },
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("<think>") == [size] and tokenizer.decode([size]) == "<think>"
    assert tokenizer.special_ids >= {size + 1} and tokenizer.vocab_size == size + 2


def test_a_config_of_another_tokenizer_is_refused(folder):
    write(folder / "tokenizer_config.json", {"added_tokens_decoder": {"5000": {"content": "<think>"}}})
    with pytest.raises(ModelError, match=r"wrong tokenizer.*5000"):
        Tokenizer.from_folder(folder)


def test_check_fits(byte_level):
    byte_level.check_fits(byte_level.vocab_size)
    with pytest.raises(ModelError, match="wrong tokenizer"):
        byte_level.check_fits(byte_level.vocab_size - 1)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_broken_files_are_named(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        Tokenizer.from_folder(folder)


def test_a_strange_end_id_is_named(folder):
    write(folder / "config.json", {"eos_token_id": "two"})
    with pytest.raises(ModelError, match=r"config.json.*'two'"):
        Tokenizer.from_folder(folder)


def test_a_missing_folder_or_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        Tokenizer.from_folder(tmp_path / "none")
    with pytest.raises(ModelError, match="has no readable tokenizer"):
        Tokenizer.from_folder(tmp_path)


def test_text_that_is_no_text_is_refused(byte_level):
    with pytest.raises(InputError, match="Unicode"):
        byte_level.encode("\ud800")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from wager.text.tokenizer import Tokenizer
assert "transformers" not in sys.modules
tokenizer = Tokenizer.from_folder(sys.argv[1])
assert "transformers" in sys.modules
ids = tokenizer.encode("ab ab")
print(len(ids), tokenizer.decode(ids), tokenizer.special_tokens["eos_token"])
"""


def test_a_folder_without_tokenizer_json_goes_through_transformers_without_torch(tmp_path):
    pytest.importorskip("transformers")
    letters = ["a", "b", "Ġ", "ab", "Ġab", "<|endoftext|>"]
    write(tmp_path / "vocab.json", {letter: i for i, letter in enumerate(letters)})
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n")
    write(tmp_path / "config.json", {"model_type": "gpt2"})
    write(
        tmp_path / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    )
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "2 ab ab <|endoftext|>\n", ran.stderr
