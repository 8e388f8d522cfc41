"""Native passes against plain torch in float64, for every feature a decoder has."""

import pytest
import torch

from tests.nn.native.nets import (
    CASES,
    NATIVE,
    VOCAB,
    Pair,
    Text,
    decoder_parts,
    ids,
    make_decoder,
    off,
    poisoned,
    scattered,
    tree,
    widened,
)
from wager.errors import CapacityError, InputError
from wager.kvcache.pool import KVPool
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models.decoder import Decoder
from wager.nn.native.library import Library
from wager.nn.native.loader import PassOptions
from wager.nn.native.pack import dequantised

TOLERANCE = 1e-5


@pytest.fixture(params=list(CASES))
def pair(request: pytest.FixtureRequest, ready: Library) -> Pair:
    return make_decoder(CASES[request.param])


def texts(pair: Pair, seed: int = 0) -> tuple[Text, Text]:
    """The same text in both, on different pages."""
    native = Text(pair.native, poisoned(pair.native), scattered(seed))
    return native, Text(pair.exact, poisoned(pair.exact), scattered(seed + 7))


def test_prompts_steps_and_features(pair: Pair) -> None:
    native, exact = texts(pair)
    for count in (19, 1, 7, 1, 2):
        tokens = ids(count, count)
        for got, want in zip(native.feed(tokens), exact.feed(tokens), strict=True):
            assert off(got, want) < TOLERANCE


def test_scores(pair: Pair) -> None:
    hidden = torch.randn(9, pair.native.spec.hidden_size, generator=torch.Generator().manual_seed(1))
    assert off(pair.native.logits(hidden), pair.exact.logits(hidden.double())) < TOLERANCE


def test_trees(pair: Pair) -> None:
    native, exact = texts(pair)
    prompt, nodes = ids(11), ids(9, 3)
    depths, mask = tree([-1, 0, 0, 1, 1, 2, 5, 0, 3])
    for text in (native, exact):
        text.feed(prompt)
    for got, want in zip(native.run(nodes, depths, mask), exact.run(nodes, depths, mask), strict=True):
        assert off(got, want) < TOLERANCE


def test_keys_and_values_lie_in_the_pool(pair: Pair) -> None:
    native, exact = texts(pair)
    for text in (native, exact):
        text.feed(ids(10))
    for layer in range(pair.native.spec.num_layers):
        got = native.pool.view(layer, native.pages, 10)
        want = exact.pool.view(layer, exact.pages, 10)
        assert off(got.keys, want.keys) < TOLERANCE and off(got.values, want.values) < TOLERANCE
    written = native.pool.slots(native.pages, 0, 10)
    others = torch.ones(native.pool.num_slots, dtype=torch.bool).index_fill(0, written, False)
    assert native.pool.store[:, :, :, others].isnan().all()


def test_a_long_prompt(ready: Library) -> None:
    """More tokens than one thread norms for itself, and than one tile of queries has."""
    pair = make_decoder(CASES["odd"])
    native = Text(pair.native, poisoned(pair.native), scattered(0, 60))
    exact = Text(pair.exact, poisoned(pair.exact), scattered(1, 60))
    for count in (150, 77):
        tokens = ids(count)
        assert off(native.feed(tokens)[0], exact.feed(tokens)[0]) < TOLERANCE


def test_an_empty_pass(ready: Library) -> None:
    decoder = make_decoder(CASES["odd"]).native
    empty = torch.empty(0, dtype=torch.int64)
    hidden, features = decoder.forward(PassBatch(empty, empty, empty, []), poisoned(decoder), (1,))
    assert hidden.shape == (0, 48) and features is not None and features.shape == (0, 48)
    assert decoder.logits(hidden).shape == (0, VOCAB)


def test_published_bfloat16_is_kept_and_changes_nothing(ready: Library) -> None:
    narrow, full = (
        make_decoder(CASES["odd"]).native,
        make_decoder(CASES["odd"], PassOptions("on", "full")).native,
    )
    assert "bfloat16" in narrow.layout and "float32" in full.layout
    for tokens in (ids(13), ids(1)):
        got, want = (Text(net, poisoned(net), scattered(0)).run(tokens)[0] for net in (narrow, full))
        assert torch.equal(got, want) and torch.equal(narrow.logits(got), full.logits(got))


@pytest.mark.parametrize("case", ["odd", "biases", "one-kv-head", "whole-vectors"])
def test_int8_is_near_its_own_weights_in_float64(ready: Library, case: str) -> None:
    """Rows are rounded to 8 bits on their way into a product, so only nearly."""
    spec, weights = decoder_parts(CASES[case])
    native = Decoder(spec, weights, options=PassOptions("on", "int8"))
    exact = Decoder(spec, widened(weights), "out_in", PassOptions("off", "int8"))
    assert "int8" in native.layout and exact.native_loader.reason
    text, reference = Text(native, poisoned(native), scattered(0)), Text(exact, poisoned(exact), scattered(1))
    for count in (12, 1):
        got, want = text.feed(ids(count))[0], reference.feed(ids(count))[0]
        assert off(got, want) < 0.05 and float((got - want).norm() / want.norm()) < 0.02
    assert float((native.logits(got) - exact.logits(want)).norm() / exact.logits(want).norm()) < 0.02


def test_int8_products_are_exact_where_rows_are_whole_numbers(ready: Library) -> None:
    """With inputs that 8 bits hold, nothing is lost but the rounding of float32."""
    spec, weights = decoder_parts(CASES["one-kv-head"])
    native = Decoder(spec, weights, options=PassOptions("on", "int8"))
    rows = torch.randint(-127, 128, (23, 37), generator=torch.Generator().manual_seed(0)).float()
    rows[:, 0] = rows[:, 36] = 127.0
    want = rows.double() @ dequantised(weights.head.double()).T
    assert off(native.logits(rows), want) < 1e-6


def test_bad_numbers_are_refused_before_memory_is_touched(ready: Library) -> None:
    decoder = make_decoder(CASES["odd"]).native
    pool = poisoned(decoder)
    one, pages = torch.tensor([1]), list(range(16))

    def run(token: int = 1, position: int = 0, slot: int = 0, row: PassRow | None = None) -> None:
        batch = PassBatch(one * token, one * position, one * slot, [row or PassRow(0, 1, 0, [0])])
        decoder.forward(batch, pool)

    run()
    for token in (-1, VOCAB):
        with pytest.raises(InputError, match="token_ids"):
            run(token=token)
    with pytest.raises(InputError, match="positions"):
        run(position=100_000)
    with pytest.raises(CapacityError):
        run(slot=pool.num_slots)
    with pytest.raises(CapacityError):
        run(row=PassRow(0, 1, 9, pages[:2]))
    with pytest.raises(CapacityError):
        run(row=PassRow(0, 1, 4, [99_999]))


def test_numbers_that_are_not_finite_stay_visible(ready: Library) -> None:
    for weights in ("auto", "int8"):
        decoder = make_decoder(CASES["odd"], PassOptions("on", weights)).native
        hidden = torch.ones(3, 48)
        hidden[1, 7] = float("nan")
        hidden[2, 40] = float("inf")
        scores = decoder.logits(hidden)
        assert torch.isfinite(scores[0]).all() and not torch.isfinite(scores[1:]).any()


def test_another_dtype_or_layout_is_served_by_torch(ready: Library) -> None:
    spec, weights = decoder_parts(CASES["odd"])
    assert "float64" in Decoder(spec, widened(weights), options=NATIVE).native_loader.reason
    assert "out_in" in Decoder(spec, weights, "out_in", NATIVE).native_loader.reason
    assert Decoder(spec, weights, options=PassOptions("off")).native_loader.reason == "not asked for"


def test_pools_of_any_page_size(ready: Library) -> None:
    pair = make_decoder(CASES["odd"])
    results = []
    for page_size in (1, 3, 32):
        pool = KVPool(pair.native.pool_spec(40, page_size))
        text = Text(pair.native, pool, list(range(39, -1, -1)))
        text.feed(ids(20))
        results.append(text.run(ids(5))[0])
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
