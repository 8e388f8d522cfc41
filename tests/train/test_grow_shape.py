"""Shapes to grow to: words, presets, refusals, and the seats of layers, heads and rotary pairs."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.train.grown import layer_shapes
from wager.errors import ConfigError
from wager.nn.rope import RopeSpec, frequencies
from wager.train.grow_shape import (
    PRESETS,
    LayerShape,
    PairShape,
    check_growth,
    key_dims,
    key_heads,
    layer_seats,
    parse_shape,
    query_dims,
    query_heads,
)

LAYERS, DRAFT = LayerShape(3, 4, 2, 16, 80), LayerShape(2, 4, 2, 16, 72)
SMALL = PairShape(48, 97, 512, LAYERS, DRAFT)
GOOD = PairShape(64, 120, 512, LAYERS, DRAFT)
REFUSED = {
    "hidden_size = 40: expected at least 48": replace(GOOD, hidden_size=40),
    "vocab_size = 96: expected at least 97": replace(GOOD, vocab_size=96),
    "hidden_size = 48: expected above 48": replace(GOOD, hidden_size=48),
    "max_position = 100": replace(GOOD, max_position=100),
    "target.num_layers = 2": replace(GOOD, target=replace(LAYERS, num_layers=2)),
    "target.num_heads = 2": replace(GOOD, target=replace(LAYERS, num_heads=2)),
    "target.num_heads = 5: expected a multiple": replace(GOOD, target=replace(LAYERS, num_heads=5)),
    "target.head_dim = 24: expected a multiple of the original's 16": replace(
        GOOD, target=replace(LAYERS, head_dim=24)
    ),
    "target.num_kv_heads = 1": replace(GOOD, target=replace(LAYERS, num_kv_heads=1)),
    "drafter.intermediate_size = 71": replace(GOOD, drafter=replace(DRAFT, intermediate_size=71)),
    "drafter = None": replace(GOOD, drafter=None),
}


@pytest.mark.parametrize("words", REFUSED)
def test_shapes_that_cannot_hold_the_pair_are_refused(words: str) -> None:
    check_growth(SMALL, GOOD)
    with pytest.raises(ConfigError) as error:
        check_growth(SMALL, REFUSED[words])
    assert words in str(error.value)


def test_key_heads_must_suffice_for_smaller_groups() -> None:
    """Three query heads to a key head become two to one: each key head is needed twice."""
    small = replace(GOOD, target=replace(LAYERS, num_heads=6))
    check_growth(small, replace(GOOD, target=replace(LAYERS, num_heads=8, num_kv_heads=4)))
    with pytest.raises(ConfigError, match="num_kv_heads = 3: expected at least 4"):
        check_growth(small, replace(GOOD, target=replace(LAYERS, num_heads=6, num_kv_heads=3)))


@pytest.mark.parametrize("text", ["9b", "", "hidden", "hidden=-1", "hidden=x", "width=9", "hidden=64,8b"])
def test_words_that_are_no_shape_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="shape"):
        parse_shape(text, SMALL)


def test_sizes_nobody_names_stay() -> None:
    assert parse_shape("vocab=120,hidden=64", SMALL) == GOOD
    assert parse_shape("8b, layers=40,draft_ffn=9000", SMALL) == replace(
        PRESETS["8b"],
        target=replace(PRESETS["8b"].target, num_layers=40),
        drafter=LayerShape(5, 32, 8, 128, 9000),
    )


@given(small=st.integers(1, 40), extra=st.integers(0, 60))
def test_layers_keep_their_order(small: int, extra: int) -> None:
    seats = layer_seats(small, small + extra)
    assert len(seats) == small and all(a < b for a, b in pairwise(seats))
    assert seats[0] >= 0 and seats[-1] < small + extra


@given(shape=layer_shapes(3, 80))
def test_a_query_head_reads_a_copy_of_its_key_head(shape: LayerShape) -> None:
    queries, keys = query_heads(LAYERS, shape), key_heads(LAYERS, shape)
    assert len(set(queries)) == LAYERS.num_heads
    for head, seat in enumerate(queries):
        assert seat < shape.num_heads and keys[seat // shape.group] == head // LAYERS.group


@pytest.mark.parametrize("ratio", [1, 2, 3, 8])
def test_rotary_pairs_keep_their_speed(ratio: int) -> None:
    big = replace(LAYERS, head_dim=ratio * LAYERS.head_dim)
    slow, fast = (frequencies(RopeSpec(net.head_dim)).repeat(2) for net in (LAYERS, big))
    keys, queries = key_dims(LAYERS, big), query_dims(LAYERS, big)
    assert torch.equal(fast[list(keys.big)], slow[list(keys.small)])
    assert sorted(keys.big + keys.empty) == list(range(big.head_dim)) == sorted(queries.big)
    meeting = dict(zip(queries.big, queries.small, strict=True))
    assert all(meeting[place] == source for place, source in zip(keys.big, keys.small, strict=True))
