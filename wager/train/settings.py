"""Every setting of `wager train`, `wager train-target` and the chat recipe, with its help and its range.

They are frozen and checked when created. All flags are generated from these fields. This module imports no
torch and does not know what the values do. `lasting` returns the values that trained weights depend on: a run
does not continue from a checkpoint with others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from wager.config import Allowed, settings_of
from wager.errors import ConfigError

__all__ = ["ChatSettings", "DrafterSettings", "TargetSettings", "lasting", "read_taps"]

_AUTO = "auto"


def _setting(default: Any, allowed: Allowed, help: str, *, lasts: bool = True) -> Any:
    """Returns a field; `lasts` says whether the trained weights depend on it."""
    return field(default=default, metadata={"allowed": allowed, "help": help, "lasts": lasts})


def _whole(low: int, high: float = math.inf) -> Allowed:
    return Allowed(int, low, high)


def _number(low: float, high: float) -> Allowed:
    return Allowed(float, low, high)


def _one_of(*words: str) -> Allowed:
    return Allowed(str, words=words)


_DEVICE = Allowed(str, pattern=r"auto|cpu|cuda(:\d+)?", says="auto, cpu, cuda or cuda:N")
_TAPS = Allowed(str, pattern=r"auto|\d+(-\d+)*", says="auto or target layers joined by -, such as 1-9-17")
_OPTIMIZER = _one_of("muon", "adamw")


def _check(config: Any) -> None:
    """Checks every field, and converts whole numbers to floats where a float is expected."""
    for setting in settings_of(type(config)):
        value = getattr(config, setting.name)
        setting.check(value)
        if setting.allowed.type is float:
            object.__setattr__(config, setting.name, float(value))


def lasting(config: ChatSettings | DrafterSettings | TargetSettings) -> dict[str, object]:
    """Returns the values that the trained weights depend on, by name."""
    return {one.name: getattr(config, one.name) for one in fields(config) if one.metadata["lasts"]}


def read_taps(text: str) -> tuple[int, ...]:
    """Returns the target layers of `1-9-17`; none for `auto`."""
    return () if text == _AUTO else tuple(int(part) for part in text.split("-"))


@dataclass(frozen=True)
class DrafterSettings:
    """How a block drafter is trained."""

    layers: int = _setting(3, _whole(1, 64), "Number of layers of the drafter.")
    taps: str = _setting(
        _AUTO, _TAPS, "Target layers that give features, as 1-9-17; auto: five, spread by the published rule."
    )
    heads: int = _setting(0, _whole(0, 256), "Number of query heads; 0: as the target.")
    kv_heads: int = _setting(0, _whole(0, 256), "Number of key and value heads; 0: as the target.")
    head_dim: int = _setting(0, _whole(0, 1024), "Width of a head, even; 0: as the target.")
    intermediate_size: int = _setting(0, _whole(0, 65536), "Width of the MLP; 0: as the target.")
    block_size: int = _setting(16, _whole(2, 64), "Number of tokens in a block, including the known one.")
    mask_token_id: int = _setting(-1, _whole(-1), "Mask token; -1: the tokenizer's own, else an unused id.")
    shortest_block: int = _setting(4, _whole(2, 64), "Shortest block in training.")
    full_share: float = _setting(0.6, _number(0.0, 1.0), "Share of blocks with full length.")
    most_known: int = _setting(
        7, _whole(1, 63), "Largest number of known tokens at the beginning of a block."
    )
    one_known_share: float = _setting(0.7, _number(0.0, 1.0), "Share of blocks with one known token.")
    anchors: int = _setting(48, _whole(1, 4096), "Number of blocks per row.")
    fade: float = _setting(
        7.0, _number(0.1, 1000.0), "Depth k has the weight exp(-(k - 1) / fade) in the loss."
    )
    soft_share: float = _setting(
        0.5,
        _number(0.0, 1.0),
        "Share of the loss against the target's distribution; the rest is against its token.",
    )

    own_text: int = _setting(
        2000, _whole(0), "Number of texts that the target writes for training; 0: train on the corpus."
    )
    greedy_share: float = _setting(0.4, _number(0.0, 1.0), "Share of these texts that is written greedily.")
    min_temperature: float = _setting(0.5, _number(0.01, 2.0), "Lowest temperature of the other texts.")
    max_temperature: float = _setting(1.0, _number(0.01, 2.0), "Highest temperature of the other texts.")
    max_prompt: int = _setting(
        192, _whole(4), "Longest prompt taken from a text, in tokens; at most half a row."
    )
    row_len: int = _setting(512, _whole(8), "Number of tokens in a training row.")
    heldout_share: float = _setting(
        0.05, _number(0.001, 0.5), "Share of the corpus that is held out for evaluation."
    )
    heldout_texts: int = _setting(
        24, _whole(2, 4096), "Number of held-out prompts for evaluation.", lasts=False
    )
    heldout_tokens: int = _setting(64, _whole(4, 4096), "Number of tokens after each of them.", lasts=False)
    documents: int = _setting(0, _whole(0), "Number of documents read from each file; 0: all.")

    updates: int = _setting(2000, _whole(1), "Number of updates.")
    batch_rows: int = _setting(8, _whole(1, 65536), "Number of rows per update.")
    lr: float = _setting(2e-3, _number(1e-7, 1.0), "Highest learning rate.")
    end_lr: float = _setting(0.05, _number(0.0, 1.0), "Last learning rate as a fraction of lr.")
    warm_up: int = _setting(50, _whole(0), "Number of updates in which the learning rate rises.")
    weight_decay: float = _setting(0.05, _number(0.0, 10.0), "Weight decay of the matrices.")
    clip: float = _setting(1.0, _number(1e-3, 1e6), "Largest norm of the gradient.")
    optimizer: str = _setting("muon", _OPTIMIZER, "muon for the matrices and adamw for the rest, or adamw.")
    mixed_precision: bool = _setting(True, Allowed(bool), "Compute products in bfloat16 on a CUDA device.")
    dtype: str = _setting(
        _AUTO,
        _one_of(_AUTO, "float32", "bfloat16", "float16"),
        "Number format of the target's weights; auto: float32 on a CPU, else its own.",
    )
    seed: int = _setting(0, _whole(0, 2**31 - 1), "The same seed gives the same drafter.")

    device: str = _setting(_AUTO, _DEVICE, "Device; auto: a CUDA device if there is one.", lasts=False)
    checkpoint_every: int = _setting(200, _whole(1), "Number of updates between checkpoints.", lasts=False)
    evaluate_every: int = _setting(200, _whole(0), "Number of updates between evaluations.", lasts=False)
    report_every: int = _setting(10, _whole(1), "Number of updates between reports.", lasts=False)
    write_rows: int = _setting(32, _whole(1, 4096), "Number of texts written at once.", lasts=False)

    def __post_init__(self) -> None:
        _check(self)
        if self.min_temperature > self.max_temperature:
            raise ConfigError(
                "min_temperature", self.min_temperature, f"at most max_temperature ({self.max_temperature:g})"
            )
        if self.row_len < self.block_size + 2:
            raise ConfigError("row_len", self.row_len, f"at least block_size + 2 ({self.block_size + 2})")


@dataclass(frozen=True)
class ChatSettings:
    """What the recipe of a chat model's drafter (recipe_chat.py) has besides the settings of a drafter."""

    invented_share: float = _setting(
        0.4, _number(0.0, 1.0), "Share of the texts whose questions the target invents."
    )
    follow_up_share: float = _setting(
        0.13, _number(0.0, 1.0), "Number of further questions in finished chats, as a share of the texts."
    )
    question_tokens: int = _setting(160, _whole(8), "Longest invented question, in tokens.")
    long_every: int = _setting(10, _whole(0), "Every so many updates have long rows of many texts; 0: none.")
    longest_row: int = _setting(8192, _whole(8), "Longest of these rows, in tokens.")
    write_seconds: float = _setting(150.0, _number(0.0, 1e6), "Time limit for writing texts.")
    train_seconds: float = _setting(370.0, _number(0.0, 1e6), "Time limit for training; 0: none.")

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class TargetSettings:
    """How a small target is trained from scratch."""

    vocab_size: int = _setting(8192, _whole(300, 200_000), "Size of the vocabulary, including marks.")
    layers: int = _setting(20, _whole(1, 128), "Number of layers.")
    hidden_size: int = _setting(256, _whole(8, 16384), "Hidden size.")
    heads: int = _setting(4, _whole(1, 256), "Number of query heads.")
    kv_heads: int = _setting(2, _whole(1, 256), "Number of key and value heads; a divisor of heads.")
    head_dim: int = _setting(64, _whole(2, 1024), "Width of a head, even.")
    intermediate_size: int = _setting(768, _whole(8, 65536), "Width of the MLP.")
    max_position: int = _setting(2048, _whole(16, 1_000_000), "Longest text.")
    row_len: int = _setting(1024, _whole(8), "Number of tokens in a training row.")
    tokenizer_characters: int = _setting(
        6_000_000, _whole(1000), "Number of characters of each kind that the tokenizer is trained on."
    )
    heldout_share: float = _setting(
        0.01, _number(0.001, 0.5), "Share of the corpus that is held out for evaluation."
    )
    documents: int = _setting(0, _whole(0), "Number of documents read from each file; 0: all.")

    updates: int = _setting(4000, _whole(1), "Number of updates.")
    batch_rows: int = _setting(32, _whole(1, 65536), "Number of rows per update.")
    lr: float = _setting(4e-3, _number(1e-7, 1.0), "Highest learning rate.")
    end_lr: float = _setting(0.05, _number(0.0, 1.0), "Last learning rate as a fraction of lr.")
    warm_up: int = _setting(100, _whole(0), "Number of updates in which the learning rate rises.")
    weight_decay: float = _setting(0.1, _number(0.0, 10.0), "Weight decay of the matrices.")
    clip: float = _setting(1.0, _number(1e-3, 1e6), "Largest norm of the gradient.")
    optimizer: str = _setting("muon", _OPTIMIZER, "muon for the matrices and adamw for the rest, or adamw.")
    mixed_precision: bool = _setting(True, Allowed(bool), "Compute products in bfloat16 on a CUDA device.")
    seed: int = _setting(0, _whole(0, 2**31 - 1), "The same seed gives the same target.")

    device: str = _setting(_AUTO, _DEVICE, "Device; auto: a CUDA device if there is one.", lasts=False)
    checkpoint_every: int = _setting(500, _whole(1), "Number of updates between checkpoints.", lasts=False)
    evaluate_every: int = _setting(500, _whole(0), "Number of updates between evaluations.", lasts=False)
    report_every: int = _setting(10, _whole(1), "Number of updates between reports.", lasts=False)

    def __post_init__(self) -> None:
        _check(self)
        if self.heads % self.kv_heads:
            raise ConfigError("kv_heads", self.kv_heads, f"a divisor of heads ({self.heads})")
        if self.head_dim % 2:
            raise ConfigError("head_dim", self.head_dim, "an even number")
        if self.row_len > self.max_position:
            raise ConfigError("row_len", self.row_len, f"at most max_position ({self.max_position})")
