"""A target's folder as training needs it: its config, its tokenizer, its mask token, and the teacher.

It refuses a model that Wager could not run, before anything is loaded. The teacher is the model of
transformers, whose layers are read through hooks; text written by the target comes from elsewhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wager.errors import ConfigError, InputError, ModelError
from wager.gguf.header import require_folder
from wager.nn.models import read_spec
from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import pick_dtype
from wager.nn.weights import read_config
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer
from wager.train.drafter import HFTeacher

_HALVES = (torch.bfloat16, torch.float16)
_SPARE_WORDS = ("mask", "reserved", "unused", "pad", "unk")
"""Parts of the names of special tokens that no text holds, the best first."""


@dataclass(frozen=True)
class TargetFolder:
    """A supported target that is not loaded yet."""

    folder: Path
    name: str
    """The published name."""
    values: dict[str, Any]
    """The values of its config.json."""
    spec: DecoderSpec
    tokenizer: Tokenizer
    template: ChatTemplate | None

    @property
    def mark(self) -> str:
        """Returns a fingerprint by which a checkpoint recognises its target, independent of the path."""
        found = hashlib.sha256((self.folder / "config.json").read_bytes())
        for path in sorted(self.folder.glob("*.safetensors")):
            found.update(f"{path.name} {path.stat().st_size}".encode())
        spec = self.spec
        return f"{spec.model_type} {spec.num_layers}x{spec.hidden_size} {found.hexdigest()[:8]}"

    @property
    def begin_id(self) -> int | None:
        """The token that the tokenizer puts before a text, if any."""
        around = self.tokenizer.encode("")
        return around[0] if around and around[0] not in self.tokenizer.eos_ids else None

    @property
    def end_id(self) -> int | None:
        return next(iter(self.tokenizer.eos_ids), None)


def open_target(folder: Path, name: str = "") -> TargetFolder:
    """Reads a target's folder; without a name, the folder's name is used.

    Raises ModelError or InputError if no drafter can be trained for it.
    """
    require_folder(folder, "training")
    values = read_config(folder)
    spec = read_spec(values)
    tokenizer = Tokenizer.from_folder(folder)
    tokenizer.check_fits(spec.vocab_size)
    template = ChatTemplate.from_folder(folder)
    return TargetFolder(folder, name or folder.resolve().name, values, spec, tokenizer, template)


class MaskToken(NamedTuple):
    """The mask token, and the reason for the choice."""

    token_id: int
    reason: str


def pick_mask_token(target: TargetFolder, asked: int = -1) -> MaskToken:
    """Returns the requested id, else the tokenizer's own, else an unused id, else a special token that no
    text has or, last, one that no chat has.
    """
    tokenizer, vocab_size = target.tokenizer, target.spec.vocab_size
    if asked >= vocab_size:
        raise ConfigError("mask_token_id", asked, f"an id below the target's {vocab_size}")
    if asked >= 0:
        return MaskToken(asked, "asked for")
    own = tokenizer.special_id("mask_token")
    if own is not None:
        return MaskToken(own, "the tokenizer's mask token")
    if tokenizer.vocab_size < vocab_size:
        return MaskToken(tokenizer.vocab_size, "an id that the tokenizer does not use")
    taken = {*tokenizer.eos_ids, tokenizer.bos_id}
    spare = {i: tokenizer.token(i) or "" for i in sorted(tokenizer.special_ids - taken)}
    for word in _SPARE_WORDS:
        for token_id, text in spare.items():
            if word in text.lower():
                return MaskToken(token_id, f"the special token {text}, which occurs in no text")
    used = "" if target.template is None else " ".join(target.template.sources.values())
    for token_id, text in spare.items():
        if used and text not in used:
            return MaskToken(token_id, f"the special token {text}, which the chat template does not use")
    raise InputError("has no mask token and no unused id: set one with --mask-token-id", field="tokenizer")


class FolderTeacher(HFTeacher):
    """A teacher in any dtype: the drafter receives float32, and the target's head its own dtype."""

    def observe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        features, hidden = super().observe(tokens)
        return _widened(features), hidden

    def embed(self, tokens: Tensor) -> Tensor:
        return _widened(super().embed(tokens))

    def head(self, hidden: Tensor) -> Tensor:
        return super().head(hidden.to(self.model.get_output_embeddings().weight.dtype))


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in _HALVES else x


def silence_bars() -> None:
    """Disables the progress bars of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def load_teacher(
    target: TargetFolder, layer_ids: tuple[int, ...], device: torch.device, dtype: str = "auto"
) -> FolderTeacher:
    """Loads the target through transformers. Raises ModelError if its weights cannot be read."""
    from transformers import AutoModelForCausalLM

    silence_bars()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(target.folder),
            dtype=pick_dtype(dtype, target.values, str(device)),
            local_files_only=True,
            trust_remote_code=False,
        )
    except Exception as error:  # the library raises many types
        raise ModelError(f"{target.folder}: cannot be loaded ({error})") from error
    return FolderTeacher(model.to(device), layer_ids)
