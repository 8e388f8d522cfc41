"""Small tokenizers made on the spot: byte-level BPE, SentencePiece-like with byte fallback, and Metaspace."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.text.grammars import make_grammars
from wager.text.grammar import Grammars
from wager.text.tokenizer import Tokenizer

SAMPLE = [
    "The quick brown fox jumps over the lazy dog. Don't panic, it's only 42 pages!",
    "def main(argv):\n    return {'key': [1, 2, 3]}\n",
    "小さな本を読む。我们在学习语言模型。안녕하세요",
    "emoji 😀😃🎉 families 👨‍👩‍👧‍👦 and flags 🇨🇭🇯🇵, naïve café",
]
SPECIALS = ["<|start|>", "<|end|>"]


def train_byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SAMPLE, trainer)
    return backend


def sentencepiece_like() -> tokenizers.Tokenizer:
    pieces = [
        "<s>",
        "</s>",
        "▁",
        "▁the",
        "▁a",
        "b",
        "c",
        ".",
        "▁▁▁",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def metaspace() -> tokenizers.Tokenizer:
    vocab = {piece: i for i, piece in enumerate(["[unk]", "▁hello", "▁world", "▁", "ly", "!"])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token="[unk]"))
    backend.decoder = decoders.Metaspace()
    return backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(train_byte_level(), {"eos_token": "<|end|>"})


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    return Tokenizer(sentencepiece_like())


@pytest.fixture(scope="session")
def metaspaced() -> Tokenizer:
    return Tokenizer(metaspace())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a byte-level tokenizer; tests add or break files."""
    train_byte_level().save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": {"content": "<|start|>"}, "eos_token": "<|end|>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.fixture(scope="module")
def grammars(byte_level: Tokenizer) -> Grammars:
    return make_grammars(byte_level)
