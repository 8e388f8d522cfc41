"""A tiny target's face and loaded networks for drafter tests, all in float64: differences are then faults."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.nn.tiny import SHAPE, save_drafter, save_target
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder
from wager.nn.models.dflash import DFlash, load_drafter

VOCAB = SHAPE["vocab_size"]
HIDDEN = SHAPE["hidden_size"]


class Face:
    """What drafters see of a target: random embedding and head, or those of a decoder."""

    def __init__(self, decoder: Decoder | None = None) -> None:
        self.vocab_size, self.hidden_size = VOCAB, HIDDEN
        self.num_layers, self.device = SHAPE["num_hidden_layers"], torch.device("cpu")
        generator = torch.Generator().manual_seed(5)
        self._embedding = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=torch.float64)
        self._head = torch.randn(HIDDEN, VOCAB, generator=generator, dtype=torch.float64)
        self._decoder = decoder

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._decoder.embed(token_ids) if self._decoder else self._embedding[token_ids]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._decoder.logits(hidden) if self._decoder else hidden @ self._head

    def draft_head(self, token_ids: tuple[int, ...]) -> None:
        return None


def block_net(folder: Path, **changes: Any) -> DFlash:
    save_drafter(folder, **changes)
    return load_drafter(folder, torch.float64, layout="out_in")


def chain_model(folder: Path, **changes: Any) -> Decoder:
    save_target(folder, "qwen3", **changes)
    return load_target(folder, torch.float64, layout="out_in")
