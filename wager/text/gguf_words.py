"""Writes the tokenizer and the chat template of a GGUF file into a model folder.

gguf_tokenizer.py builds them; the folder can be read by Wager and by transformers.
"""

from __future__ import annotations

import json
from pathlib import Path

from wager.errors import InputError
from wager.gguf.header import read_header
from wager.gguf.target_config import end_ids
from wager.text.gguf_tokenizer import build_tokenizer, chat_templates, has_words

__all__ = ["save_words"]


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
        words.backend.save(str(folder / "tokenizer.json"))
        _write(folder / "tokenizer_config.json", settings)
        if end_ids(header):
            _write(folder / "generation_config.json", {"eos_token_id": list(end_ids(header))})
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}", "out") from error
    return True


def _write(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
