"""The tokenizer and the chat template of a GGUF file, built from its metadata.

Two kinds of vocabulary are supported: byte-level BPE (`gpt2`), whose way of splitting text has a name in the
file, and SentencePiece (`llama`), whose merges follow from the scores of its tokens. An unknown kind or
split is an error, because a text would be split into other tokens than in training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from wager.errors import ModelError
from wager.gguf.fields import Fields
from wager.gguf.header import Header
from wager.gguf.token_kinds import BYTE, CONTROL, UNKNOWN, UNUSED, USER_DEFINED

__all__ = ["GGUFWords", "build_tokenizer", "chat_templates", "has_words", "name_of_split", "special_texts"]

_NO_TOKENIZER = (None, "none", "no_vocab")
_DIGITS = "digits"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _Split(NamedTuple):
    """How a byte-level vocabulary splits text before merging."""

    pattern: str = ""
    """A regular expression; empty for that of GPT-2, and `digits` for that with every digit alone."""
    whole_words: bool = False
    """Whether a word that is a token needs no merges."""
    begins: bool = False
    """Whether a text begins with the first token, if the file does not say."""
    composed: bool = False
    """Whether text is normalised to composed characters."""


_SPLITS: dict[str, _Split] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "olmo", "mpt", "jais"), _Split()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "command-r", "exaone"), _Split(_DIGITS)),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3"), _Split(_LLAMA3, whole_words=True, begins=True)
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _Split(_QWEN2, composed=True)),
    "tekken": _Split(_TEKKEN, whole_words=True, begins=True),
}


@dataclass(frozen=True)
class GGUFWords:
    """A tokenizer of the tokenizers library, and the texts of its named special tokens."""

    backend: Tokenizer
    special_tokens: dict[str, str]


def has_words(header: Header) -> bool:
    """Whether a file has a vocabulary; a drafter's file may have none."""
    return header.metadata.get("tokenizer.ggml.model") not in _NO_TOKENIZER


def build_tokenizer(header: Header) -> GGUFWords:
    """Returns the tokenizer of a file. Raises ModelError that names what is missing or not supported."""
    fields = Fields(header, "tokenizer.ggml")
    kind = fields.required(".model")
    if kind not in _BUILDERS:
        raise fields.fault(".model", f"is {kind!r}; known are {', '.join(_BUILDERS)}")
    words = _read_words(fields)
    backend = _BUILDERS[kind](fields, words)
    backend.add_special_tokens([_whole(text) for text in words.of_kind(CONTROL, UNKNOWN)])
    backend.add_tokens([_whole(text, special=False) for text in words.of_kind(USER_DEFINED)])
    special = special_texts(header)
    _add_ends(backend, fields, special, _begins_by_default(fields, kind))
    return GGUFWords(backend, special)


def special_texts(header: Header) -> dict[str, str]:
    """Returns the texts of the named special tokens, such as "bos_token"."""
    fields = Fields(header, "tokenizer.ggml")
    texts = _read_words(fields).texts
    return {name: texts[fields.token(key)] for name, key in _SPECIAL_KEYS.items() if key in fields}


_SPECIAL_KEYS = {
    "bos_token": ".bos_token_id",
    "eos_token": ".eos_token_id",
    "unk_token": ".unknown_token_id",
    "pad_token": ".padding_token_id",
    "mask_token": ".mask_token_id",
}


def _whole(text: str, special: bool = True) -> AddedToken:
    return AddedToken(text, special=special, normalized=False)


class _Words(NamedTuple):
    """The tokens of a file by id, and the kind of each."""

    texts: list[str]
    kinds: list[int]

    def of_kind(self, *kinds: int) -> list[str]:
        return [text for text, kind in zip(self.texts, self.kinds, strict=True) if kind in kinds]

    @property
    def vocab(self) -> dict[str, int]:
        """The ids of all tokens that a text can have; padding rows of the model have none."""
        return {
            text: index
            for index, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True))
            if kind != UNUSED
        }


def _read_words(fields: Fields) -> _Words:
    texts = _texts(fields, ".tokens")
    kinds = fields.get(".token_type") or [1] * len(texts)
    if len(kinds) != len(texts):
        raise fields.fault(".token_type", f"has {len(kinds)} entries for {len(texts)} tokens")
    for key in _SPECIAL_KEYS.values():
        if key in fields and fields.token(key) >= len(texts):
            raise fields.fault(key, f"is {fields.token(key)}, but there are {len(texts)} tokens")
    return _Words(texts, kinds)


def _texts(fields: Fields, name: str) -> list[str]:
    found = fields.required(name)
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise fields.fault(name, "is not a list of texts")
    return found


def _byte_level(fields: Fields, words: _Words) -> Tokenizer:
    split = _split(fields)
    merges = [_pair(fields, line) for line in _texts(fields, ".merges")]
    model = BPE(vocab=words.vocab, merges=merges, ignore_merges=split.whole_words)
    backend = Tokenizer(model)
    if split.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(split)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(split: _Split) -> pre_tokenizers.Sequence:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern in ("", _DIGITS))
    if split.pattern == _DIGITS:
        before: list[Any] = [pre_tokenizers.Digits(individual_digits=True)]
    else:
        before = [pre_tokenizers.Split(Regex(split.pattern), behavior="isolated")] if split.pattern else []
    return pre_tokenizers.Sequence([*before, whole])


def name_of_split(backend: Tokenizer) -> str | None:
    """Returns the name that GGUF files give to a byte-level tokenizer's split, or None if it has none."""
    own = _parts_of(backend)
    for name in ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"):
        known = Tokenizer(BPE())
        known.pre_tokenizer = _pre_tokenizer(_SPLITS[name])
        if _parts_of(known) == own:
            return name
    return None


def _parts_of(backend: Tokenizer) -> list[dict[str, Any]]:
    """Returns the steps that split text, without what only concerns offsets."""
    found = json.loads(backend.to_str())["pre_tokenizer"] or {}
    parts = found.get("pretokenizers", [found])
    return [{name: value for name, value in part.items() if name != "trim_offsets"} for part in parts]


def _split(fields: Fields) -> _Split:
    name = fields.get(".pre") or "default"
    if name not in _SPLITS:
        raise fields.fault(
            ".pre", f"is {name!r}, an unknown way of splitting text; known are {', '.join(_SPLITS)}"
        )
    return _SPLITS[name]


def _pair(fields: Fields, line: str) -> tuple[str, str]:
    # A token may begin with a space of its own, so that the first space of the line is not the separator.
    first, _, second = line[1:].partition(" ")
    if not second:
        raise fields.fault(".merges", f"has the entry {line!r}, which is not a pair")
    return line[0] + first, second


def _sentence_piece(fields: Fields, words: _Words) -> Tokenizer:
    scores = fields.required(".scores")
    if len(scores) != len(words.texts):
        raise fields.fault(".scores", f"has {len(scores)} entries for {len(words.texts)} tokens")
    has_bytes = bool(words.of_kind(BYTE))
    unknown = words.texts[fields.token(".unknown_token_id")] if ".unknown_token_id" in fields else None
    vocab = words.vocab
    merges = list(_merges(vocab, scores))
    backend = Tokenizer(
        BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    )
    prefixed = fields.flag(".add_space_prefix") is not False
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first" if prefixed else "never", split=False
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*steps, *([decoders.Strip(content=" ", left=1)] if prefixed else [])]
    )
    return backend


def _merges(vocab: Mapping[str, int], scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yields all pairs of tokens that make a token: the best score first, then the longest left part."""
    found: list[tuple[float, int, str, str]] = []
    for text, index in vocab.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in vocab and right in vocab:
                found.append((-scores[index], -cut, left, right))
    found.sort(key=lambda merge: merge[:2])
    yield from ((left, right) for *_, left, right in found)


_BUILDERS = {"gpt2": _byte_level, "llama": _sentence_piece}


def _begins_by_default(fields: Fields, kind: str) -> bool:
    return kind == "llama" or _split(fields).begins


def _add_ends(backend: Tokenizer, fields: Fields, special: Mapping[str, str], begins: bool) -> None:
    """Adds the tokens that the file wants around every text."""
    stated = fields.flag(".add_bos_token")
    first = special.get("bos_token") if (begins if stated is None else stated) else None
    last = special.get("eos_token") if fields.flag(".add_eos_token") else None
    ends = {text: backend.token_to_id(text) for text in (first, last) if text is not None}
    if ends:
        single = [*([first] if first else []), "$A", *([last] if last else [])]
        pair = [*single, *([first] if first else []), "$B", *([last] if last else [])]
        backend.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=list(ends.items())
        )


def chat_templates(header: Header) -> dict[str, str]:
    """Returns the chat templates of a file by name. Raises ModelError if one of them is no text."""
    key = "tokenizer.chat_template"
    found: dict[str, str] = {}
    for name, text in header.metadata.items():
        if name != key and not name.startswith(key + "."):
            continue
        if not isinstance(text, str):
            raise ModelError(f"{header.path.name}: the metadata key {name} is not a text")
        header.used.add(name)
        found["default" if name == key else name.removeprefix(key + ".")] = text
    return found
