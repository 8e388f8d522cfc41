"""Waiting features cut into pieces that passes can read: where each piece lies, and which slots it goes to.

Features wait line by line in the tensors that the target's passes left (context.py). They are read in by
passes of limited size, so they are cut where a page ends and grouped into portions. Knows no network. Used by
block.py and block_device.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.draft.context import FeatureContext
from wager.kvcache.pool import PageIds


class Portion(NamedTuple):
    """The waiting features of one request that are to be read in: those before position `stop`."""

    context: FeatureContext
    pages: PageIds
    stop: int


class Piece(NamedTuple):
    """Consecutive lines of one tensor, for tokens whose positions and slots are consecutive as well."""

    features: Tensor
    position: int
    """The position of the first token."""
    slot: int
    """The slot of the first token."""
    first: int
    """The line of the first token in `features`."""
    num_tokens: int


def pieces_of(portions: Iterable[Portion], page_size: int) -> list[Piece]:
    """Cuts the features of all portions where a page ends."""
    pieces = []
    for context, pages, stop in portions:
        position = context.watermark
        for features, first, count in context.lines_before(stop):
            while count:
                page, offset = divmod(position, page_size)
                now = min(count, page_size - offset)
                pieces.append(Piece(features, position, pages[page] * page_size + offset, first, now))
                position, first, count = position + now, first + now, count - now
    return pieces


def token_table(pieces: Sequence[Piece]) -> npt.NDArray[np.int64]:
    """Returns position, slot and line of every token: [3, tokens]."""
    _, *numbers = zip(*pieces, strict=True)
    firsts = np.array(numbers, np.int64)
    counts = firsts[3]
    begins = firsts[:3] - (np.cumsum(counts) - counts)
    which = np.repeat(np.arange(len(pieces)), counts)
    table: npt.NDArray[np.int64] = begins[:, which] + np.arange(len(which))
    return table


def split_pieces(pieces: Iterable[Piece], max_tokens: int) -> Iterator[list[Piece]]:
    """Groups the pieces in their order, with at most `max_tokens` tokens in a group; cuts pieces for that."""
    group: list[Piece] = []
    room = max_tokens
    for features, position, slot, first, num_tokens in pieces:
        done = 0
        while done < num_tokens:
            num = min(room, num_tokens - done)
            group.append(Piece(features, position + done, slot + done, first + done, num))
            done, room = done + num, room - num
            if not room:
                yield group
                group, room = [], max_tokens
    if group:
        yield group


def gather(pieces: Iterable[Piece], lines: Tensor, out: Tensor) -> None:
    """Copies the lines of the pieces, in order, to the first lines of `out`.

    `lines` holds the line of every token on the device of the features.
    """
    start = 0
    for _, own in groupby(pieces, key=lambda piece: id(piece.features)):
        same = list(own)
        stop = start + sum([piece.num_tokens for piece in same])
        features = same[0].features
        if features.dtype == out.dtype:
            torch.index_select(features, 0, lines[start:stop], out=out[start:stop])
        else:
            out[start:stop].copy_(features.index_select(0, lines[start:stop]))
        start = stop
