"""Features on their way into a block drafter's context: where they wait, and which slots they go to.

They wait line by line in the tensors that passes left (`context.py`), and go to the pages of their requests,
as many at once as a pass takes. Used by `block.py` and its device's part; knows no network.
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
    """Waiting features of one request to be ingested: those before position `stop`."""

    context: FeatureContext
    pages: PageIds
    stop: int


class Piece(NamedTuple):
    """Features that lie side by side, of tokens whose positions and slots are consecutive as well."""

    features: Tensor
    position: int
    slot: int
    first: int
    """Their first line in `features`."""
    num_tokens: int


def pieces_of(portions: Iterable[Portion], page_size: int) -> list[Piece]:
    """The features of all portions, cut where a page ends."""
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


def laid_out(pieces: Sequence[Piece]) -> npt.NDArray[np.int64]:
    """[3, tokens]: position, slot and line of every token."""
    _, *numbers = zip(*pieces, strict=True)
    firsts = np.array(numbers, np.int64)
    counts = firsts[3]
    begins = firsts[:3] - (np.cumsum(counts) - counts)
    which = np.repeat(np.arange(len(pieces)), counts)
    laid: npt.NDArray[np.int64] = begins[:, which] + np.arange(len(which))
    return laid


def portions_of(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    """The same tokens in their order, at most so many at a time."""
    portion: list[Piece] = []
    room = most
    for features, position, slot, first, num_tokens in pieces:
        done = 0
        while done < num_tokens:
            num = min(room, num_tokens - done)
            portion.append(Piece(features, position + done, slot + done, first + done, num))
            done, room = done + num, room - num
            if not room:
                yield portion
                portion, room = [], most
    if portion:
        yield portion


def gather(pieces: Iterable[Piece], lines: Tensor, out: Tensor) -> None:
    """Lines of the pieces' tensors, one tensor after the other, to the first lines of `out`."""
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
