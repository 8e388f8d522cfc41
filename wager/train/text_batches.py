"""Batches of texts of uneven length for `block_loss`: texts of like length together, and some long rows.

Blocks begin in the texts that the target wrote, not in their prompts, and end with their text. A long row is
many texts one after the other, so that a drafter also learns from contexts that are longer than any text.
This module knows no networks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from wager.errors import ConfigError, InputError
from wager.train.texts import Text

_WIDTH = 64
"""Rows are as long as a multiple of this, so that few shapes of batches occur."""


class TextRows(NamedTuple):
    """A batch of rows [B, T], padded at the end."""

    tokens: Tensor
    stops: Tensor
    """On the CPU: where blocks may begin and their texts end (see `drafter.cut_text_blocks`)."""
    anchors: int
    """Number of blocks per row; all batches have about the same number of blocks."""


@dataclass(frozen=True)
class BatchOptions:
    """The sizes of batches."""

    batch_rows: int = 32
    anchors: int = 32
    """Number of blocks per text."""
    long_every: int = 10
    """Every so many updates have long rows; 0: none."""
    texts_per_row: tuple[int, ...] = (8, 8, 16)
    """The numbers of texts in a long row, one of which is drawn for a batch."""
    longest_row: int = 8192
    """Texts that do not fit a long row are left out of it."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_rows", "anchors", "longest_row"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a positive number")
        if self.long_every < 0 or not self.texts_per_row or min(self.texts_per_row) < 1:
            raise ConfigError("long_every", self.long_every, "0, or a number with positive texts_per_row")


class TextBatches:
    """The batches of a training run, in an order that depends on the seed."""

    def __init__(self, texts: Sequence[Text], options: BatchOptions, device: torch.device) -> None:
        """Texts without a token to predict are left out. Raises InputError if no text is left."""
        self.texts = [text for text in texts if _first_start(text) < len(text.token_ids) - 1]
        if not self.texts:
            raise InputError("has no text with two tokens to learn from", field="own_text")
        self.options, self.device = options, device
        self.batch_rows = min(options.batch_rows, len(self.texts))
        self._lengths = [len(text.token_ids) for text in self.texts]
        self._epoch = -1
        self._groups: list[list[int]] = []

    @property
    def num_updates(self) -> int:
        """Number of updates after which about every text has been in a batch."""
        short = len(self.texts) // self.batch_rows
        every = self.options.long_every
        return short if not every else math.ceil(short * every / max(every - 1, 1))

    def at(self, update: int) -> TextRows:
        """Returns the batch of an update."""
        every = self.options.long_every
        if every and update % every == every - 1:
            return self._long_rows(update)
        number = update - update // every if every else update
        epoch, place = divmod(number, len(self.texts) // self.batch_rows)
        if epoch != self._epoch:
            self._groups, self._epoch = self._grouped(epoch), epoch
        rows = [[index] for index in self._groups[place]]
        return self._rows(rows, self.options.anchors)

    def _grouped(self, epoch: int) -> list[list[int]]:
        """Returns groups of texts of like length in random order; the texts left over differ by epoch."""
        chance = random.Random(f"{self.options.seed} {epoch}")
        order = list(range(len(self.texts)))
        chance.shuffle(order)
        size = self.batch_rows
        kept = sorted(order[: len(order) // size * size], key=lambda i: -(-self._lengths[i] // _WIDTH))
        groups = [kept[start : start + size] for start in range(0, len(kept), size)]
        chance.shuffle(groups)
        return groups

    def _long_rows(self, update: int) -> TextRows:
        """Returns rows of several random texts; together they have as many texts as another batch."""
        options = self.options
        chance = random.Random(f"{options.seed} long {update}")
        wanted = chance.choice(options.texts_per_row)
        count = max(1, self.batch_rows // wanted)
        rows = []
        for _ in range(count):
            row = [chance.randrange(len(self.texts))]
            length = self._lengths[row[0]]
            for index in chance.choices(range(len(self.texts)), k=wanted - 1):
                if length + self._lengths[index] <= options.longest_row:
                    row.append(index)
                    length += self._lengths[index]
            rows.append(row)
        return self._rows(rows, max(1, options.anchors * self.batch_rows // count))

    def _rows(self, rows: Sequence[Sequence[int]], anchors: int) -> TextRows:
        longest = max(sum(self._lengths[index] for index in row) for row in rows)
        width = -(-longest // _WIDTH) * _WIDTH
        tokens = torch.zeros(len(rows), width, dtype=torch.int64)
        stops = torch.zeros_like(tokens)
        for number, row in enumerate(rows):
            start = 0
            for index in row:
                text = self.texts[index]
                stop = start + self._lengths[index]
                tokens[number, start:stop] = torch.tensor(text.token_ids)
                stops[number, start + _first_start(text) : stop - 1] = stop
                start = stop
        return TextRows(tokens.to(self.device, non_blocking=True), stops, anchors)


def _first_start(text: Text) -> int:
    """Returns the first position where a block may begin: its first guess is the text's first own token.

    There is always a token of context before it.
    """
    return max(1, len(text.prompt_ids) - 1)
