"""Random tiny chat models: a target of any type, a byte-level tokenizer, and several chat templates."""

import json
import random
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.nn.tiny import save_target
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer

SPECIALS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]"]
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "<s>{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] }}</s>"
    "{% else %}{{ raise_exception('only user and assistant roles') }}{% endif %}{% endfor %}"
)
PLAIN = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tokenizer(end: str = "<|im_end|>") -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["user assistant system the of a"], trainer)
    return Tokenizer(backend, {"eos_token": end})


def save_chat_model(folder: Path, template: str = CHATML, model_type: str = "qwen2") -> None:
    """Saves a model that ends its turns often, because one token in 32 ends a turn."""
    tokenizer = make_tokenizer()
    ends = [1, *range(32, 300, 32)]
    save_target(folder, model_type, vocab_size=320, eos_token_id=ends)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def template_of(text: str) -> ChatTemplate:
    return ChatTemplate(text)


FUNCTION = '''import math

def add_one_{0}(value, step):
    """Adds {0} to a value."""
    total = value + step
    total += {0}
    return total
'''


def write_chat_corpus(path: Path, count: int = 24) -> Path:
    """Records of four kinds: marked chats, chats with messages, Python files and prose."""
    chance = random.Random(3)
    lines: list[dict[str, object]] = []
    for number in range(count):
        left = chance.randrange(100)
        lines += [
            {
                "kind": "math",
                "source": "sums",
                "licence": "MIT",
                "text": f"<|user|>\n{left} + {number}?\n<|assistant|>\nIt is {left + number}.\n<|end|>\n",
            },
            {
                "kind": "chat",
                "source": "talks",
                "messages": [
                    {"role": "user", "content": f"Hello {number}!"},
                    {"role": "assistant", "content": "Hello."},
                ],
            },
            {"kind": "code", "source": "files", "text": FUNCTION.format(number)},
            {"kind": "prose", "source": "books", "text": f"It was day {number}. " + "The wind blew. " * 13},
        ]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path
