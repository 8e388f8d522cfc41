"""A token's numbers are bit for bit the same alone, in a batch, in any tree, and on any number of threads."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.nn.native.nets import CASES, Text, ids, make_decoder, make_drafter, poisoned, scattered, tree
from wager.kvcache.commit import commit_path
from wager.nn.batch import BlockBatch, BlockRow, PassBatch
from wager.nn.models.decoder import Decoder
from wager.nn.native.library import Library
from wager.nn.native.loader import PassOptions

WEIGHT_KINDS = ("auto", "full", "int8")
QUICK = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(
    params=[(case, weights) for case in ("odd", "windows", "whole-vectors") for weights in WEIGHT_KINDS]
)
def decoder(request: pytest.FixtureRequest, ready: Library) -> Decoder:
    case, weights = request.param
    found: Decoder = make_decoder(CASES[case], PassOptions("on", weights)).native
    return found


def fed(decoder: Decoder, tokens: Tensor, cuts: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A text in pieces of these lengths (the rest as one): hidden states, features, scores."""
    text = Text(decoder, poisoned(decoder), scattered(seed))
    parts, at = [], 0
    for count in [*cuts, len(tokens)]:
        part = tokens[at : at + count]
        if len(part):
            parts.append(text.feed(part))
        at += len(part)
    hidden, features = (torch.cat(one) for one in zip(*parts, strict=True))
    return hidden, features, decoder.logits(hidden)


def assert_same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


def test_every_product_of_few_rows(decoder: Decoder) -> None:
    hidden = torch.randn(40, decoder.spec.hidden_size, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([decoder.logits(hidden[i : i + 1]) for i in range(40)])
    for count in range(2, 41):
        assert torch.equal(decoder.logits(hidden[:count]), alone[:count])


def test_a_text_in_any_pieces(decoder: Decoder) -> None:
    tokens = ids(45)
    one_by_one = fed(decoder, tokens, [1] * 45)
    for seed, cuts in enumerate(([], [40], [3, 30, 1, 7], [17, 1, 1, 1, 16])):
        assert_same(fed(decoder, tokens, cuts, seed), one_by_one)


def test_threads(decoder: Decoder) -> None:
    results = []
    for threads in (1, 2, 3, 10):  # 10: some of them begin with the same share
        torch.set_num_threads(threads)
        results.append(fed(decoder, ids(45), [30, 1, 5]))
    for result in results[1:]:
        assert_same(result, results[0])


def test_a_batch(decoder: Decoder) -> None:
    pool = poisoned(decoder)
    request_build = scattered(3, 80)
    texts = [Text(decoder, pool, request_build[16 * i : 16 * i + 16]) for i in range(4)]
    prompts = [ids(count, count) for count in (9, 1, 14, 23)]
    for text, prompt in zip(texts, prompts, strict=True):
        text.feed(prompt)
    steps = [ids(count, 50 + count) for count in (1, 6, 1, 3)]
    alone = [text.run(step) for text, step in zip(texts, steps, strict=True)]
    rows, start = [], 0
    for text, step in zip(texts, steps, strict=True):
        rows.append(text.row(start, len(step)))
        start += len(step)
    positions = [text.cached + torch.arange(len(step)) for text, step in zip(texts, steps, strict=True)]
    places = [text.places(len(step)) for text, step in zip(texts, steps, strict=True)]
    batch = PassBatch(torch.cat(steps), torch.cat(positions), torch.cat(places), rows)
    hidden, features = decoder.forward(batch, pool, (2, 0))
    assert features is not None
    assert_same((hidden, features), tuple(torch.cat(one) for one in zip(*alone, strict=True)))


@QUICK
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=24), st.integers(1, 30))
def test_every_path_of_any_tree(decoder: Decoder, seeds: list[int], num_prompt: int) -> None:
    parents = [-1, *[seed % (node + 1) for node, seed in enumerate(seeds)]]
    depths, mask = tree(parents)
    tokens, prompt = ids(len(parents), seeds[0]), ids(num_prompt, 5)
    text = Text(decoder, poisoned(decoder), scattered(1, 20))
    text.feed(prompt)
    hidden, features = text.run(tokens, depths, mask)
    leaf = int(depths.argmax())
    path = mask[leaf].nonzero()[:, 0]
    other = Text(decoder, poisoned(decoder), scattered(2, 20))
    other.feed(prompt)
    plain = [other.feed(tokens[node : node + 1]) for node in path.tolist()]
    assert_same((hidden[path], features[path]), tuple(torch.cat(one) for one in zip(*plain, strict=True)))
    # What the tree left in the pool, moved into place, is what plain decoding left there.
    commit_path(text.pool, [text.places(len(parents)).numpy()], [path.numpy()])
    for layer in range(decoder.spec.num_layers):
        stop = num_prompt + len(path)
        mine, theirs = text.pool.view(layer, text.pages, stop), other.pool.view(layer, other.pages, stop)
        assert torch.equal(mine.keys, theirs.keys) and torch.equal(mine.values, theirs.values)


@pytest.mark.parametrize("weights", WEIGHT_KINDS)
@pytest.mark.parametrize("case", ["odd", "windows", "biases"])
def test_blocks_and_their_context(ready: Library, case: str, weights: str) -> None:
    drafter = make_drafter(CASES[case], PassOptions("on", weights)).native
    hidden = drafter.spec.hidden_size
    features = torch.randn(40, 2 * hidden, generator=torch.Generator().manual_seed(0))
    blocks = torch.randn(3, 8, hidden, generator=torch.Generator().manual_seed(1))
    lengths, contexts, results = (8, 3, 5), (0, 33, 9), []
    pool, pieces = poisoned(drafter), poisoned(drafter)
    request_build = scattered(4, 60)
    rows, start = [], 0
    for index, (length, context) in enumerate(zip(lengths, contexts, strict=True)):
        pages = request_build[20 * index : 20 * index + 20]
        drafter.ingest(features[:context], torch.arange(context), pool.slots(pages, 0, context), pool)
        for at in range(context):
            drafter.ingest(features[at : at + 1], torch.tensor([at]), pieces.slots(pages, at, at + 1), pieces)
        alone = BlockBatch(
            blocks[index, :length],
            torch.arange(context, context + length),
            [BlockRow(0, length, context, pages, index == 1)],
        )
        results.append(drafter.forward(alone, pieces))
        rows.append(BlockRow(start, start + length, context, pages))
        start += length
    together = BlockBatch(
        torch.cat([blocks[i, :length] for i, length in enumerate(lengths)]),
        torch.cat([torch.arange(c, c + length) for c, length in zip(contexts, lengths, strict=True)]),
        rows,
    )
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert torch.equal(drafter.forward(together, pool), torch.cat(results))
    assert torch.equal(pool.store.nan_to_num(), pieces.store.nan_to_num())
