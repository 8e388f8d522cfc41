"""Tokenizers and chat templates from GGUF files against those of their origin and of transformers."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from tests.gguf.files import finish
from wager.errors import ModelError
from wager.gguf.header import read_header
from wager.text.chat import ChatTemplate
from wager.text.gguf_tokenizer import has_words
from wager.text.tokenizer import Tokenizer, has_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, 1234 times; it's 3.14159!",
    "def main(argv):\n    return [x ** 2 for x in argv]\n\n\nclass Thing:\n\tpass  # ñandú",
    "日本語のテキスト und naïve Größe — 🙂 don't we'll I'M THEY'RE",
] * 20
TEXTS = [
    "The fox, 12345 it's",
    "   leading  and trailing   ",
    "tabs\t\tand\r\nlines\n\n\n  x",
    "<|im_start|>user\nHello<|im_end|>\n",
    "<think>plan</think> naïve 日本 🙂",
    "I'LL DON'T don't",
    "",
    "unseen: Ω≈ç√∫",
]
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(pre: str) -> tokenizers.Tokenizer:
    """A small trained tokenizer whose text is split as published tokenizers with this name split it."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    byte_part = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ("smollm", "gpt-2"))
    if pre == "smollm":
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte_part]
        )
    elif pre == "gpt-2":
        made.pre_tokenizer = byte_part
    else:
        pattern = LLAMA3 if pre == "llama-bpe" else LLAMA3.replace("{1,3}", "")
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_part])
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    return made


def words_of(made: tokenizers.Tokenizer) -> list[str]:
    vocab = made.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def save_words(path: Path, made: tokenizers.Tokenizer, model: str, pre: str | None, **keys: Any) -> Path:
    """Writes a file that has nothing but a vocabulary."""
    import json

    writer = gguf.GGUFWriter(path, "llama")
    texts, state = words_of(made), json.loads(made.to_str())["model"]
    specials = made.get_added_tokens_decoder()
    kinds = [
        3 if i in specials and specials[i].special else 4 if i in specials else 1 for i in range(len(texts))
    ]
    if model == "llama":
        kinds = [6 if text.startswith("<0x") else kind for text, kind in zip(texts, kinds, strict=True)]
        kinds[0] = 2
        writer.add_token_scores([-float(i) for i in range(len(texts) + 1)])
    else:
        writer.add_token_merges([" ".join(pair) for pair in state["merges"]])
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*texts, "[PAD1]"])
    writer.add_token_types([*kinds, 5])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in keys.items():
        getattr(writer, name)(value)
    finish(writer)
    return path


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe"])
def test_a_byte_level_vocabulary_is_the_one_it_was_made_of(pre: str, tmp_path: Path) -> None:
    made = byte_level(pre)
    found = Tokenizer.from_folder(save_words(tmp_path / "a.gguf", made, "gpt2", pre, add_add_bos_token=False))
    for text in TEXTS:
        assert found.encode(text) == made.encode(text).ids, text
        assert found.decode(found.encode(text), skip_special=False) == text
    assert found.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert found.special_ids == {0, 1, 2} and found.joins_bytes
    assert found.eos_ids == (2, 0)  # the one that the file names, then <|endoftext|>
    assert found.vocab_size == made.get_vocab_size()  # without the padding row


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe"])
def test_a_byte_level_vocabulary_is_that_of_transformers(pre: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_words(tmp_path / "a.gguf", byte_level(pre), "gpt2", pre, add_add_bos_token=False)
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf")
    found = Tokenizer.from_folder(tmp_path / "a.gguf")
    for text in TEXTS:
        assert found.encode(text, add_special=False) == reference.encode(text, add_special_tokens=False), text


def sentence_piece() -> tokenizers.Tokenizer:
    """A small trained vocabulary in the manner of SentencePiece, with bytes."""
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special[:3], show_progress=False)
    made.train_from_iterator([text[:40] for text in CORPUS], trainer)
    texts = words_of(made)
    vocab = {text: i for i, text in enumerate(dict.fromkeys([*special, *texts]))}
    whole = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    whole.add_special_tokens(special[:3])
    return whole


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentence_piece_vocabulary_is_that_of_transformers(prefix: bool, tmp_path: Path) -> None:
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    keys = {"add_unk_token_id": 0, "add_add_space_prefix": prefix}
    made = sentence_piece()
    save_words(tmp_path / "a.gguf", made, "llama", None, **keys)
    vocab = made.get_vocab()
    merges = generate_merges(vocab, {text: -float(i) for text, i in vocab.items()})
    reference = LlamaTokenizer(vocab=vocab, merges=merges, add_prefix_space=prefix)
    found = Tokenizer.from_folder(tmp_path / "a.gguf")
    merged = 0
    for text in [*TEXTS, *CORPUS[:3]]:
        ids = found.encode(text, add_special=False)
        assert ids == reference.encode(text, add_special_tokens=False), text
        assert found.decode(ids) == reference.decode(ids), text
        merged += sum(len(found.token(one) or "") > 2 for one in ids)
    assert merged > 20
    assert found.encode("x")[0] == 1  # SentencePiece vocabularies begin every text, if not told otherwise


def test_what_stands_around_a_text_is_in_the_file(tmp_path: Path) -> None:
    made = byte_level("qwen2")
    for name, keys, wanted in (
        ("a", {}, (None, None)),
        ("b", {"add_add_bos_token": True}, (1, None)),
        ("c", {"add_add_bos_token": True, "add_add_eos_token": True}, (1, 2)),
    ):
        found = Tokenizer.from_folder(save_words(tmp_path / name, made, "gpt2", "qwen2", **keys))
        ids, plain = found.encode("fox"), found.encode("fox", add_special=False)
        first, last = wanted
        assert ids == [*([first] if first else []), *plain, *([last] if last else [])]
    llama3 = Tokenizer.from_folder(save_words(tmp_path / "d", byte_level("llama-bpe"), "gpt2", "llama-bpe"))
    assert llama3.encode("fox")[0] == 1


def test_templates_are_found_by_name(tmp_path: Path) -> None:
    made = byte_level("qwen2")
    path = save_words(tmp_path / "a.gguf", made, "gpt2", "qwen2", add_chat_template=TEMPLATE)
    template = ChatTemplate.from_folder(path)
    assert template is not None
    assert template.render([{"role": "user", "content": "Hi"}]) == "<|im_start|><|im_start|>Hi"
    named = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "T"}]
    path = save_words(tmp_path / "b.gguf", made, "gpt2", "qwen2", add_chat_template=named)
    template = ChatTemplate.from_folder(path)
    assert template is not None and template.sources == {"default": TEMPLATE, "tool_use": "T"}
    assert ChatTemplate.from_folder(save_words(tmp_path / "c.gguf", made, "gpt2", "qwen2")) is None


def test_what_would_split_text_otherwise_is_refused(tmp_path: Path) -> None:
    made = byte_level("gpt-2")
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre is 'viking', an unknown way of splitting"):
        Tokenizer.from_folder(save_words(tmp_path / "a.gguf", made, "gpt2", "viking"))
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.model is 'rwkv'; known are gpt2, llama"):
        Tokenizer.from_folder(save_words(tmp_path / "b.gguf", made, "rwkv", None))
    with pytest.raises(ModelError, match="eos_token_id is 99999"):
        Tokenizer.from_folder(save_words(tmp_path / "c.gguf", made, "gpt2", "gpt-2", add_eos_token_id=99999))


def test_a_file_without_a_vocabulary_says_so(tmp_path: Path) -> None:
    for name, model in (("a.gguf", "no_vocab"), ("b.gguf", None)):
        writer = gguf.GGUFWriter(tmp_path / name, "dflash")
        if model:
            writer.add_tokenizer_model(model)
        finish(writer)
        assert not has_words(read_header(tmp_path / name)) and not has_tokenizer(tmp_path / name)
