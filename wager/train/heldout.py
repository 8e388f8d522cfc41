"""The quality of a pair on held-out text, by kind: the target's loss and the drafter's acceptance.

It reads a held-out file, continues the beginnings of its texts with the target, and determines what the
drafter would have offered. It writes no files and trains nothing; recipe.py stores its figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch

from wager.errors import InputError
from wager.nn.models.dflash_net import DFlashNet
from wager.text.repetition import repeated_share, repeating
from wager.train.acceptance import Rows, acceptance_by_depth, offered, tokens_per_step
from wager.train.corpus import read_records
from wager.train.drafter import HFTeacher
from wager.train.generate import write_rows
from wager.train.target import next_token_loss

TextsByKind = Mapping[str, Sequence[str]]

_PROMPT_CHARACTERS = 400
_LEAST_PROMPT = 4
_FIRST_SEED = 1000
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class JudgeOptions:
    """How a drafter is evaluated."""

    num_texts: int = 40
    """Number of texts of each kind, spread evenly over the file; 0: all."""
    num_output: int = 128
    temperatures: tuple[float, ...] = (0.0, 0.8)


def read_heldout(path: Path) -> dict[str, list[str]]:
    """Returns the texts of a held-out file by kind; worked problems from templates also have a kind of their
    own.
    """
    by_kind: dict[str, list[str]] = defaultdict(list)
    for record in read_records(path):
        by_kind[record.kind].append(record.text)
        if record.kind == "math":
            by_kind["math-templated" if "generated" in record.source else "math-natural"].append(record.text)
    if not by_kind:
        raise InputError(f"{path} has no text", field="heldout")
    return dict(by_kind)


@torch.no_grad()
def losses(
    model: Any, tokenizer: tokenizers.Tokenizer, texts: TextsByKind, num_texts: int = 100
) -> dict[str, dict[str, float]]:
    """Returns nats per token and per character of each kind, over the first 1,024 tokens of its texts (0:
    all).
    """
    model.eval()
    found = {}
    for kind, own in texts.items():
        nats = num_tokens = num_characters = 0.0
        for text in evenly(own, num_texts):
            ids = tokenizer.encode(text).ids[:1024]
            if len(ids) < 2:
                continue
            loss = float(next_token_loss(model, torch.tensor([ids], device=model.device)))
            nats += loss * (len(ids) - 1)
            num_tokens += len(ids) - 1
            num_characters += len(tokenizer.decode(ids, skip_special_tokens=False))
        if num_tokens:
            found[kind] = {"nats_per_token": nats / num_tokens, "nats_per_character": nats / num_characters}
    return found


def evenly(texts: Sequence[str], count: int) -> Sequence[str]:
    """Returns `count` of the texts, spread evenly, because their order may depend on the source; 0: all."""
    if not 0 < count < len(texts):
        return texts
    return [texts[i * len(texts) // count] for i in range(count)]


def judge(
    net: DFlashNet,
    teacher: HFTeacher,
    tokenizer: tokenizers.Tokenizer,
    texts: TextsByKind,
    options: JudgeOptions,
) -> dict[str, dict[str, Any]]:
    """Returns tokens per step, acceptance by depth and repetition, by `{kind}_t{temperature}`."""
    net.eval()
    found = {}
    for kind, own in texts.items():
        encoded = [tokenizer.encode(text[:_PROMPT_CHARACTERS]).ids for text in evenly(own, options.num_texts)]
        prompts = [ids for ids in encoded if len(ids) >= _LEAST_PROMPT]
        if not prompts:
            continue
        for temperature in options.temperatures:
            found[f"{kind}_t{temperature:g}"] = _judge_rows(net, teacher, prompts, temperature, options)
    return found


def _judge_rows(
    net: DFlashNet,
    teacher: HFTeacher,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    options: JudgeOptions,
) -> dict[str, Any]:
    ranks, fresh, outputs = [], [], []
    for start in range(0, len(prompts), _ROWS_AT_ONCE):
        part = prompts[start : start + _ROWS_AT_ONCE]
        seeds = list(range(_FIRST_SEED + start, _FIRST_SEED + start + len(part)))
        done = write_rows(teacher.model, part, options.num_output, temperature, seeds)
        rows = Rows(done.tokens, done.num_prompt, options.num_output, temperature, seeds)
        ranks.append(offered(net, teacher, rows).ranks)
        for row, length in zip(done.tokens.cpu().numpy(), done.num_prompt.tolist(), strict=True):
            end = length + options.num_output
            fresh.append(~repeating(row[:end])[length:])
            outputs.append(row[length:end])
    all_ranks = np.concatenate(ranks)
    return {
        "texts": len(prompts),
        "tokens_per_step": tokens_per_step(all_ranks),
        "tokens_per_step_not_repeating": tokens_per_step(all_ranks, np.stack(fresh)),
        "by_depth": [round(rate, 3) for rate in acceptance_by_depth(all_ranks)],
        "repeated_8grams": repeated_share(np.stack(outputs)),
    }
