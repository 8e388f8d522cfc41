"""How contexts are cut into what a device's graphs take."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from wager.draft.feature_pieces import Piece, split_pieces

TENSORS = [torch.zeros(1) for _ in range(3)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), max_size=12), st.integers(1, 16))
def test_portions_are_full_and_keep_every_token(sizes: list[tuple[int, int]], most: int) -> None:
    pieces = [
        Piece(TENSORS[which], 100 * i, 1000 * i, 10_000 * i, count) for i, (which, count) in enumerate(sizes)
    ]
    portions = list(split_pieces(pieces, most))
    counts = [sum(piece.num_tokens for piece in portion) for portion in portions]
    assert all(count == most for count in counts[:-1]) and all(0 < count <= most for count in counts)
    assert _tokens([piece for portion in portions for piece in portion]) == _tokens(pieces)


def _tokens(pieces: list[Piece]) -> list[tuple[int, int, int, int]]:
    """Tensor, position, slot and line of every token."""
    return [
        (id(piece.features), piece.position + i, piece.slot + i, piece.first + i)
        for piece in pieces
        for i in range(piece.num_tokens)
    ]
