"""A tokenizer from a model folder or a GGUF file: text to ids, ids to text, and the ids that end a sequence.

It reads tokenizer.json with the tokenizers library only, so that starting is fast; only a folder without that
file needs transformers. gguf_tokenizer.py builds the tokenizer of a GGUF file. This module does not know chat
templates or streaming. Engine, server and training use it.
"""

import json
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from wager.errors import InputError, ModelError
from wager.extras import require
from wager.gguf.header import is_gguf, read_header
from wager.gguf.target_config import end_ids
from wager.text.gguf_tokenizer import build_tokenizer, has_words

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
MAX_ID = 2**32 - 1


class Tokenizer:
    """Converts text to token ids and back. Create it with `from_folder`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: dict[str, str] | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        # The tokenizer.json may contain truncation from training, which would silently cut a prompt.
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self.special_tokens = dict(special_tokens or {})
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=False), *(1 + i for i in added), 0)
        self.eos_ids = self._with_own_eos(eos_ids)
        self._texts: dict[int, str] = {}
        self.joins_bytes = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
        """Whether the bytes of a text are the bytes of its tokens, whatever their neighbours."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Tokenizer":
        """Reads the tokenizer of a model folder or a GGUF file; raises InputError if there is no such folder,
        ModelError if the tokenizer is damaged.
        """
        path = Path(folder)
        if is_gguf(path):
            words = build_tokenizer(read_header(path))
            return cls(words.backend, words.special_tokens, model_eos_ids(path))
        if not path.is_dir():
            raise InputError(f"{str(folder)!r} is not a folder", "tokenizer")
        settings = read_json(path / "tokenizer_config.json")
        special_tokens = named_specials(settings) | named_specials(
            read_json(path / "special_tokens_map.json")
        )
        if (path / "tokenizer.json").is_file():
            backend = _read_backend(path / "tokenizer.json")
            _add_missing(backend, settings, path)
        else:
            backend, special_tokens = _through_transformers(path)
        return cls(backend, special_tokens, model_eos_ids(path))

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizers object, for training and tests."""
        return self._backend

    @property
    def bos_id(self) -> int | None:
        return self.special_id("bos_token")

    @property
    def pad_id(self) -> int | None:
        return self.special_id("pad_token")

    def special_id(self, name: str) -> int | None:
        """Returns the id of a named special token such as "bos_token", or None."""
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def token_id(self, token: str) -> int | None:
        """Returns the id of exactly this token."""
        return self._backend.token_to_id(token)

    def token(self, token_id: int) -> str | None:
        """Returns the token of an id as the vocabulary spells it; this is not its text (see `decode`)."""
        return self._backend.id_to_token(token_id) if 0 <= token_id <= MAX_ID else None

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Returns the token ids of `text`; `add_special` adds the tokens that the tokenizer puts around a
        text.
        """
        try:
            encoded = self._backend.encode(text, add_special_tokens=add_special)
        except (TypeError, UnicodeError) as error:
            # JSON may contain a lone surrogate, which is not valid text.
            raise InputError("expected valid Unicode text", "text") from error
        return list(encoded.ids)

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """Returns the text of `token_ids`. Unknown ids, such as padding rows of a model, have no text."""
        return self._backend.decode(self.visible(token_ids, skip_special), skip_special_tokens=False)

    def decode_visible(self, token_ids: Sequence[int]) -> str:
        """Returns the text of ids that `visible` returned, including special ones."""
        return self._backend.decode(token_ids, skip_special_tokens=False)

    def text_of(self, token_id: int) -> str:
        """Returns the cached text of one visible id."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.decode_visible([token_id])
        return text

    def visible(
        self, token_ids: Iterable[int], skip_special: bool = True, shown_ids: Container[int] = ()
    ) -> list[int]:
        """Returns those of `token_ids` that `decode` would show, and the special ones in `shown_ids`."""
        hidden = self.special_ids if skip_special else frozenset()
        return [i for i in token_ids if (i not in hidden or i in shown_ids) and self.token(i) is not None]

    def check_fits(self, model_vocab_size: int) -> None:
        """Raises ModelError if this tokenizer has ids beyond the embeddings of the model."""
        if self.vocab_size > model_vocab_size:
            raise ModelError(
                f"wrong tokenizer: it has {self.vocab_size} tokens, the model only {model_vocab_size}"
            )

    def _with_own_eos(self, eos_ids: Iterable[int]) -> tuple[int, ...]:
        """Returns the end ids of the model, then those of the tokenizer; tuned models often change only one
        of them.
        """
        own = self.special_id("eos_token")
        return tuple(dict.fromkeys([*eos_ids, *([] if own is None else [own])]))


def has_tokenizer(folder: Path) -> bool:
    """Whether a model folder or a GGUF file has a tokenizer."""
    if is_gguf(folder):
        return has_words(read_header(folder))
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; empty if the file does not exist. Raises ModelError if it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def named_specials(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the named special tokens of a tokenizer_config.json, which writes each as a string or an
    object.
    """
    named = {name: settings.get(name) for name in SPECIAL_NAMES}
    texts = {
        name: token.get("content") if isinstance(token, dict) else token for name, token in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def model_eos_ids(folder: Path) -> tuple[int, ...]:
    """Returns the end ids in the model's own files: generation_config.json, else config.json, or the metadata
    of a GGUF file.
    """
    if is_gguf(folder):
        return end_ids(read_header(folder))
    for name in ("generation_config.json", "config.json"):
        settings = read_json(folder / name)
        for section in (settings, settings.get("text_config")):
            stated = section.get("eos_token_id") if isinstance(section, dict) else None
            if stated is not None:
                return _ids(stated, folder / name)
    return ()


def _ids(stated: object, path: Path) -> tuple[int, ...]:
    ids: list[Any] = stated if isinstance(stated, list) else [stated]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ModelError(f"{path}: eos_token_id is {stated!r}, expected an id or a list of ids")
    # Some files write -1 for "none".
    return tuple(i for i in ids if i >= 0)


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ModelError(f"{path}: not a usable tokenizer ({error})") from error


def _add_missing(backend: tokenizers.Tokenizer, settings: dict[str, Any], folder: Path) -> None:
    """Adds the tokens that only tokenizer_config.json contains, with the ids given there."""
    stated = settings.get("added_tokens_decoder")
    if not isinstance(stated, dict):
        return
    known = backend.get_added_tokens_decoder()
    for token_id, token in sorted((int(i), token) for i, token in stated.items() if int(i) not in known):
        content = token["content"]
        if backend.token_to_id(content) is None:
            backend.add_tokens(
                [tokenizers.AddedToken(content, special=bool(token.get("special")), normalized=False)]
            )
        if backend.token_to_id(content) != token_id:
            raise ModelError(
                f"{folder}: wrong tokenizer: tokenizer_config.json puts {content!r} at {token_id}, "
                f"tokenizer.json at {backend.token_to_id(content)}"
            )


def _through_transformers(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    require("train", f"{folder}: a tokenizer without tokenizer.json")
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # many types, from a missing file to a missing optional package
        raise ModelError(f"{folder}: has no readable tokenizer ({error})") from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelError(
            f"{folder}: its tokenizer ({type(loaded).__name__}) has no form the tokenizers library reads"
        )
    return backend, named_specials(dict(loaded.special_tokens_map))
