"""One tokenizer, read from a model's folder: text to ids, ids to text, and which ids end a sequence.

It reads tokenizer.json with the tokenizers library alone, so that starting stays quick; only a folder without
that file goes through transformers. It does not know chat templates or streaming. Engine, server and training
call it.
"""

import json
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from wager.errors import InputError, ModelError

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MAX_ID = 2**32 - 1


class Tokenizer:
    """Text to token ids and back. Make one with `from_folder`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: dict[str, str] | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        # A tokenizer.json may carry truncation and padding from its training: a prompt is never cut silently.
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self.special_tokens = dict(special_tokens or {})
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=False), *(1 + i for i in added), 0)
        self.eos_ids = self._with_own_eos(eos_ids)
        self._texts: dict[int, str] = {}
        self.joins_bytes = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
        """Whether a text's bytes are those of its tokens, whatever stands beside them."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Tokenizer":
        """Read the tokenizer of the model in `folder`; InputError if there is none, ModelError if broken."""
        path = Path(folder)
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
        """The tokenizers object underneath, for training and tests."""
        return self._backend

    @property
    def bos_id(self) -> int | None:
        return self.special_id("bos_token")

    @property
    def pad_id(self) -> int | None:
        return self.special_id("pad_token")

    def special_id(self, name: str) -> int | None:
        """The id of a named special token such as "bos_token"; None when the tokenizer names none."""
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def token_id(self, token: str) -> int | None:
        """The id of exactly this token."""
        return self._backend.token_to_id(token)

    def token(self, token_id: int) -> str | None:
        """The token of an id as the vocabulary spells it (not text: see `decode`)."""
        return self._backend.id_to_token(token_id) if 0 <= token_id <= MAX_ID else None

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`; `add_special` adds what the tokenizer puts around one."""
        try:
            encoded = self._backend.encode(text, add_special_tokens=add_special)
        except (TypeError, UnicodeError) as error:
            # A lone surrogate, as JSON may carry one, is no text.
            raise InputError("expected valid Unicode text", "text") from error
        return list(encoded.ids)

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `token_ids`. Unknown ids, such as a model's padding rows, give nothing."""
        return self._backend.decode(self.visible(token_ids, skip_special), skip_special_tokens=False)

    def decode_visible(self, token_ids: Sequence[int]) -> str:
        """The text of ids that `visible` has let through, special ones included."""
        return self._backend.decode(token_ids, skip_special_tokens=False)

    def text_of(self, token_id: int) -> str:
        """The text of one such id by itself; remembered."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.decode_visible([token_id])
        return text

    def visible(
        self, token_ids: Iterable[int], skip_special: bool = True, shown_ids: Container[int] = ()
    ) -> list[int]:
        """Those of `token_ids` that `decode` would show; special ones in `shown_ids` too."""
        hidden = self.special_ids if skip_special else frozenset()
        return [i for i in token_ids if (i not in hidden or i in shown_ids) and self.token(i) is not None]

    def check_fits(self, model_vocab_size: int) -> None:
        """Raise ModelError if this tokenizer has ids that a model with so many embeddings does not."""
        if self.vocab_size > model_vocab_size:
            raise ModelError(
                f"wrong tokenizer: it has {self.vocab_size} tokens, the model only {model_vocab_size}"
            )

    def _with_own_eos(self, eos_ids: Iterable[int]) -> tuple[int, ...]:
        """The model's end ids, then the tokenizer's own: tuned models often change only one of the two."""
        own = self.special_id("eos_token")
        return tuple(dict.fromkeys([*eos_ids, *([] if own is None else [own])]))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty when there is no such file; ModelError when it is broken."""
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
    """The named special tokens of a tokenizer_config.json, which writes each as a string or as an object."""
    named = {name: settings.get(name) for name in SPECIAL_NAMES}
    texts = {
        name: token.get("content") if isinstance(token, dict) else token for name, token in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def model_eos_ids(folder: Path) -> tuple[int, ...]:
    """The end ids a model's own files state: generation_config.json first, else config.json."""
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
    """Add the tokens that only tokenizer_config.json knows, at the ids it states."""
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
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # anything at all, from a missing file to a missing optional package
        raise ModelError(f"{folder}: has no tokenizer that can be read ({error})") from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelError(
            f"{folder}: its tokenizer ({type(loaded).__name__}) has no form the tokenizers library reads"
        )
    return backend, named_specials(dict(loaded.special_tokens_map))
