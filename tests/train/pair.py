"""A tiny teacher and an untrained drafter for it, both in float64: differences are then faults."""

from typing import Any

import torch
from torch import Tensor

from tests.nn.tiny import SHAPE, build_target, drafter_config
from wager.nn.models.dflash_net import DFlashNet
from wager.nn.models.dflash_spec import read_spec
from wager.train.drafter import HFTeacher

VOCAB, HIDDEN, MASK = SHAPE["vocab_size"], SHAPE["hidden_size"], 96
LAYERS = (0, 2)


def make_teacher(seed: int = 0) -> HFTeacher:
    return HFTeacher(build_target("qwen3", seed).double(), LAYERS)


def make_net(seed: int = 3, **changes: Any) -> DFlashNet:
    torch.manual_seed(seed)
    net = DFlashNet(read_spec(drafter_config(**changes))).double()
    for weight in net.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.ndim == 1 else 0.0, 0.2)
    return net


class Face:
    """The teacher as a drafter borrows it at run time."""

    def __init__(self, teacher: HFTeacher) -> None:
        self.vocab_size, self.hidden_size = VOCAB, HIDDEN
        self.num_layers, self.device = SHAPE["num_hidden_layers"], torch.device("cpu")
        self._teacher = teacher

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._teacher.embed(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._teacher.head(hidden)

    rough_logits = logits
