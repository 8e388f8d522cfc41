"""Texts to learn from: the same by number every time, stored as they come, packed with whole beginnings."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.toy import Toy
from wager.errors import InputError
from wager.train.corpus import Record, read_corpus
from wager.train.texts import PromptSource, Text, TextOptions, TextOrder, TextStore, pack_texts, write_texts

OPTIONS = TextOptions(text_len=48, max_prompt=20, greedy_share=0.5, temperatures=(0.5, 1.0), seed=3)
SETTINGS = {"seed": 3, "row_len": 48}


@pytest.fixture(scope="module")
def records(toy: Toy) -> list[Record]:
    return read_corpus([toy.corpus], toy.target.template).records


def test_orders_are_functions_of_seed_and_number(toy: Toy, records: list[Record]) -> None:
    first = [PromptSource(records, toy.target, OPTIONS).at(number) for number in range(40)]
    again = PromptSource(records, toy.target, OPTIONS)
    assert [again.at(number) for number in reversed(range(40))] == first[::-1]
    other = PromptSource(records, toy.target, TextOptions(48, 20, seed=4))
    assert [other.at(number) for number in range(40)] != first


def test_orders_keep_to_their_manner(toy: Toy, records: list[Record]) -> None:
    orders = [PromptSource(records, toy.target, OPTIONS).at(number) for number in range(200)]
    assert all(len(order.prompt_ids) + order.num_output == 48 for order in orders)
    assert all(order.temperature == 0 or 0.5 <= order.temperature <= 1.0 for order in orders)
    assert 60 < sum(order.temperature == 0 for order in orders) < 140
    assert len({order.seed for order in orders}) == 200
    chats, pieces = orders[::2], orders[1::2]  # kinds in turn: chat, math
    texts = [toy.target.tokenizer.decode(order.prompt_ids, skip_special=False) for order in chats]
    assert all(text.startswith("<|user|>") and text.endswith("<|assistant|>\n") for text in texts)
    assert {len(order.prompt_ids) for order in pieces} >= set(range(5, 19))
    starts = [toy.target.tokenizer.decode(order.prompt_ids).startswith("What") for order in pieces]
    assert 30 < sum(starts) < 80


def test_nothing_to_begin_with_is_an_error(toy: Toy) -> None:
    with pytest.raises(InputError, match="has no prompt of 4 to 20 tokens"):
        PromptSource([Record("a")], toy.target, OPTIONS).at(0)
    long_chat = Record("x", prompt="What is 1 plus 2? " * 40)
    with pytest.raises(InputError, match="has no prompt"):
        PromptSource([long_chat], toy.target, OPTIONS).at(0)
    # A kind without usable texts is passed over.
    mixed = [Record("a", "short"), Record("What is 1 plus 2? It is 3.", "long")]
    assert all(PromptSource(mixed, toy.target, OPTIONS).at(number).prompt_ids for number in range(4))


class Counting:
    """Writes two tokens behind every beginning, and fails at one call."""

    def __init__(self, fail_at: int = 0) -> None:
        self.calls: list[int] = []
        self.fail_at = fail_at

    def __call__(self, orders: Sequence[TextOrder]) -> list[list[int]]:
        self.calls.append(len(orders))
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt
        return [[order.seed, 7] for order in orders]


def order(number: int) -> TextOrder:
    return TextOrder([1, number], 2, 0.5 * (number % 2), number)


WANTED = [Text([1, number], [number, 7], 0.5 * (number % 2), number) for number in range(10)]


def test_what_was_written_is_not_written_again(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "new" / "texts.npz", SETTINGS)
    broken, told = Counting(fail_at=3), list[tuple[int, int]]()
    with pytest.raises(KeyboardInterrupt):
        write_texts(store, order, 10, broken, 3)
    again = Counting()
    assert write_texts(store, order, 10, again, 3, lambda *at: told.append(at)) == WANTED
    assert again.calls == [3, 1] and told == [(6, 10), (9, 10), (10, 10)]
    assert write_texts(store, order, 4, Counting(fail_at=1), 3) == WANTED[:4]
    assert [path.name for path in store.path.parent.iterdir()] == ["texts.npz"]


def test_a_store_of_other_settings_or_torn_is_refused(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "texts.npz", SETTINGS)
    store.save(WANTED)
    with pytest.raises(InputError, match=r"texts: .*texts\.npz has other settings: seed was 3, now 4"):
        TextStore(store.path, SETTINGS | {"seed": 4}).load()
    whole = store.path.read_bytes()
    for damaged in (b"torn", whole[: len(whole) // 2], b""):
        store.path.write_bytes(damaged)
        with pytest.raises(InputError, match="is not a file of texts"):
            store.load()
        assert TextStore(store.path, SETTINGS, replace=True).load() == []


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(2, 12), st.integers(0, 99))
@settings(deadline=None, max_examples=100)
def test_packing_is_made_of_beginnings(sizes: list[int], row_len: int, seed: int) -> None:
    texts = [Text([100 * i], [100 * i + k for k in range(1, size)], 0.0, 0) for i, size in enumerate(sizes)]
    if sum(min(size, row_len) for size in sizes) < row_len:
        with pytest.raises(InputError, match="less than one row"):
            pack_texts(texts, row_len, seed)
        return
    rows = pack_texts(texts, row_len, seed)
    assert rows.shape[1] == row_len
    for row in rows.tolist():
        follows = [after == before + 1 for before, after in pairwise(row)]
        assert all(goes_on or token % 100 == 0 for goes_on, token in zip([False, *follows], row, strict=True))
    assert len({token for row in rows.tolist() for token in row}) == rows.size


def test_long_texts_have_rows_of_their_own() -> None:
    sizes = [12, 3, 5, 10, 4, 2, 9, 25]
    texts = [Text([100 * i], [100 * i + k for k in range(1, size)], 0.0, 0) for i, size in enumerate(sizes)]
    rows = pack_texts(texts, 10, seed=1)
    assert rows.dtype == np.int32 and rows[:3, 0].tolist() == [0, 300, 700] and len(rows) > 3
    assert np.array_equal(rows, pack_texts(texts, 10, seed=1))
