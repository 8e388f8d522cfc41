"""Tokenizers between GGUF files and model folders: the files of a folder, and the metadata of a GGUF file.

A folder that is written here can be read by Wager and by transformers. The metadata are copied from another
GGUF file, or made of a folder whose tokenizer is byte-level BPE and splits text in a way that has a name.
gguf_tokenizer.py builds tokenizers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wager.errors import InputError
from wager.gguf.header import is_gguf, read_header
from wager.gguf.target_config import end_ids
from wager.gguf.token_kinds import CONTROL, NORMAL, UNUSED, USER_DEFINED
from wager.text.chat import ChatTemplate
from wager.text.gguf_tokenizer import build_tokenizer, chat_templates, has_words, name_of_split
from wager.text.tokenizer import Tokenizer, has_tokenizer

__all__ = ["save_words", "vocabulary_keys"]

_IDS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def save_words(path: Path, folder: Path) -> bool:
    """Writes tokenizer.json and its settings; returns False if the file has no vocabulary.

    Raises ModelError if the tokenizer is not supported, InputError if the folder cannot be written.
    """
    header = read_header(path)
    if not has_words(header):
        return False
    words, templates = build_tokenizer(header), chat_templates(header)
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", **words.special_tokens}
    if list(templates) == ["default"]:
        settings["chat_template"] = templates["default"]
    elif templates:
        settings["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    try:
        text = words.backend.to_str(pretty=True)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        _write(folder / "tokenizer_config.json", settings)
        if end_ids(header):
            _write(folder / "generation_config.json", {"eos_token_id": list(end_ids(header))})
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}", "out") from error
    return True


def _write(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def vocabulary_keys(path: Path) -> dict[str, Any]:
    """Returns the metadata keys of the tokenizer and the chat template of a GGUF file or a model folder.

    Raises InputError if there is no vocabulary, or none that a GGUF file can describe.
    """
    if not has_tokenizer(path):
        raise InputError(f"{path.name} has no vocabulary that could be copied", "target")
    if is_gguf(path):
        metadata = read_header(path).metadata
        keys = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
        return {key: value for key, value in keys.items() if value != []}
    tokenizer = Tokenizer.from_folder(path)
    state = json.loads(tokenizer.backend.to_str())
    split = name_of_split(tokenizer.backend)
    if state["model"]["type"] != "BPE" or not tokenizer.joins_bytes or split is None:
        raise InputError(
            f"{path.name}: only a byte-level BPE vocabulary with a known split is converted", "target"
        )
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in state["model"]["merges"]]
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": split, "tokenizer.ggml.merges": merges}
    return keys | _token_keys(tokenizer, state) | _special_keys(tokenizer, path)


def _token_keys(tokenizer: Tokenizer, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the texts and kinds of all tokens; an id without a token gets a text that no text contains."""
    texts = [f"[PAD{index}]" for index in range(tokenizer.vocab_size)]
    kinds = [UNUSED] * len(texts)
    for text, index in state["model"]["vocab"].items():
        texts[index], kinds[index] = text, NORMAL
    for token in state["added_tokens"]:
        texts[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    return {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": kinds}


def _special_keys(tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    ids = {name: tokenizer.special_id(name) for name in _IDS}
    keys: dict[str, Any] = {
        f"tokenizer.ggml.{_IDS[name]}_token_id": found for name, found in ids.items() if found is not None
    }
    around = tokenizer.encode("")
    keys["tokenizer.ggml.add_bos_token"] = bool(around) and around[0] == ids["bos_token"]
    keys["tokenizer.ggml.add_eos_token"] = bool(around) and around[-1] == ids["eos_token"]
    template = ChatTemplate.from_folder(folder)
    for name, text in ({} if template is None else template.sources).items():
        keys["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = text
    return keys
