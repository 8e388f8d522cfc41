"""Batches of uneven texts: like lengths together, every text once per epoch, ends and answers respected."""

import random
from collections import Counter
from typing import Any

import pytest
import torch

from wager.errors import ConfigError, InputError
from wager.train.text_batches import BatchOptions, TextBatches, TextRows
from wager.train.texts import Text

CPU = torch.device("cpu")


def texts(count: int, longest: int = 400) -> list[Text]:
    """Texts whose tokens tell their number: text 7 consists of 8s."""
    chance = random.Random(2)
    found = []
    for number in range(count):
        num_prompt, num_output = chance.randint(1, longest // 2), chance.randint(2, longest // 2)
        found.append(Text([number + 1] * num_prompt, [number + 1] * num_output, 0.0, number))
    return found


def batches(given: list[Text], **changes: Any) -> TextBatches:
    return TextBatches(given, BatchOptions(**{"batch_rows": 4, "anchors": 6, **changes}), CPU)


def numbers_of(batch: TextRows) -> list[int]:
    return [number - 1 for number in batch.tokens[:, 0].tolist()]


def test_every_text_comes_once_per_epoch_with_others_of_its_length() -> None:
    given = texts(80)
    made = batches(given, long_every=0)
    assert made.num_updates == 20
    spreads = []
    for epoch in range(2):
        seen = Counter[int]()
        for update in range(20 * epoch, 20 * epoch + 20):
            batch = made.at(update)
            lengths = [len(given[number].token_ids) for number in numbers_of(batch)]
            seen.update(numbers_of(batch))
            spreads.append(max(lengths) - min(lengths))
            assert batch.tokens.shape == (4, -(-max(lengths) // 64) * 64) and batch.anchors == 6
        assert seen == Counter(range(80))
    assert sum(spreads) / len(spreads) < 64


def test_batches_are_a_function_of_seed_and_update() -> None:
    given = texts(30)
    made = batches(given, long_every=3)
    in_order = [made.at(update) for update in range(24)]
    again = batches(given, long_every=3)
    for update in (23, 2, 9, 0, 16):
        assert torch.equal(again.at(update).tokens, in_order[update].tokens)
    other = batches(given, long_every=3, seed=1)
    assert any(not torch.equal(other.at(update).tokens, in_order[update].tokens) for update in range(24))


def test_blocks_begin_in_answers_and_end_with_their_texts() -> None:
    given = [Text([1, 1, 1], [1] * 5, 0.0, 0), Text([2], [2, 2, 2], 0.0, 0), Text([3], [3], 0.0, 0)]
    made = batches(given, batch_rows=2, long_every=0)
    assert len(made.texts) == 2  # the third has no token with context to predict
    batch = made.at(0)
    by_number = dict(zip(numbers_of(batch), batch.stops.tolist(), strict=True))
    assert by_number[0][:10] == [0, 0, 8, 8, 8, 8, 8, 0, 0, 0]
    assert by_number[1][:6] == [0, 4, 4, 0, 0, 0]


def test_long_rows_are_whole_texts_one_after_the_other() -> None:
    given = texts(40, longest=60)
    made = batches(given, batch_rows=16, anchors=5, long_every=4, texts_per_row=(8,), longest_row=300)
    batch = made.at(3)
    assert batch.tokens.shape[0] == 2 and batch.anchors == 40
    for tokens, stops in zip(batch.tokens.tolist(), batch.stops.tolist(), strict=True):
        start, count = 0, 0
        while start < len(tokens) and tokens[start]:
            text = given[tokens[start] - 1]
            stop = start + len(text.token_ids)
            assert tokens[start:stop] == text.token_ids and stop <= 300
            first = start + max(1, len(text.prompt_ids) - 1)
            assert stops[start:stop] == [0] * (first - start) + [stop] * (stop - 1 - first) + [0]
            start, count = stop, count + 1
        assert 3 < count <= 8 and not any(stops[start:])
    short = [made.at(update).tokens.shape[0] for update in (0, 1, 2, 4)]
    assert short == [16] * 4


def test_few_texts_make_small_batches() -> None:
    made = batches(texts(3), batch_rows=32, long_every=2)
    assert made.at(0).tokens.shape[0] == 3 and made.at(1).tokens.shape[0] == 1
    assert made.at(1).anchors == 18


def test_what_cannot_be_batched_is_named() -> None:
    with pytest.raises(InputError, match="own_text: has no text with two tokens"):
        batches([Text([1], [2], 0.0, 0)])
    with pytest.raises(ConfigError, match="anchors = 0"):
        BatchOptions(anchors=0)
    with pytest.raises(ConfigError, match="long_every"):
        BatchOptions(texts_per_row=())
