"""The demo pair's tokenizer: byte-level BPE, the chat marks as special tokens, and its chat template.

Digits are split one by one, so that arithmetic is regular. It writes a Hugging Face folder (tokenizer.json,
tokenizer_config.json, chat template). Answers to mathematical problems have their reasoning in the think
span: `with_thinking` converts a worked solution.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from wager.errors import InputError

END_OF_TEXT, END_OF_TURN, MASK, PAD = "<|endoftext|>", "<|end|>", "<|mask|>", "<|pad|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
SPECIALS = (END_OF_TEXT, *ROLES, END_OF_TURN, THINK_OPEN, THINK_CLOSE, MASK, PAD)

CHAT_TEMPLATE = """\
{%- if tools %}<|system|>
You can call these functions:
{{ tools | tojson }}
{% endif %}
{%- for message in messages %}<|{{ message.role }}|>
{{ message.content }}
{% if message.role == 'assistant' %}<|end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% if enable_thinking is defined and enable_thinking %}<think>
{% elif enable_thinking is defined %}<think>
</think>
{% endif %}
{%- endif %}"""


def train_tokenizer(texts: Iterable[str], vocab_size: int = 8192) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE with a vocabulary of `vocab_size`, including special tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def special_id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    """Returns the id of a mark that training needs. Raises InputError if it is missing."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise InputError(f"has no token {token}", field="tokenizer")
    return int(found)


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": PAD,
        "mask_token": MASK,
        "additional_special_tokens": [*ROLES, END_OF_TEXT, THINK_OPEN, THINK_CLOSE],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def with_thinking(text: str) -> str:
    """Returns a worked solution with its reasoning inside the think span; other text is unchanged."""
    mark = f"{ROLES[2]}\n"
    start = text.find(mark)
    end = text.rfind("\nThe answer is ")
    if start < 0 or end <= start + len(mark) or text.count(ROLES[2]) != 1:
        return text
    body = start + len(mark)
    return f"{text[:body]}{THINK_OPEN}\n{text[body:end]}\n{THINK_CLOSE}{text[end:]}"
