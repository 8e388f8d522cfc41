"""Every target type against transformers: prefill, steps, chains, trees, commits, windows, rope scaling."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.nn.tiny import SHAPE, save_target
from wager.kvcache.commit import commit_path
from wager.kvcache.pool import KVPool
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder

PAGE = 4
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "qwen3-tied-bias": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3-window": ("qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3-yarn": ("qwen3", {"rope_parameters": YARN}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN | {"factor": 2.0, "beta_fast": 16}}),
    "llama": ("llama", {"num_key_value_heads": 1}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR, "num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 7, "head_dim": 20}),
}


class Pair(NamedTuple):
    """A target in both implementations."""

    reference: Any
    decoder: Decoder


@pytest.fixture(scope="module", params=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model_type, changes = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    reference = save_target(folder, model_type, **changes)
    return Pair(reference, load_target(folder, torch.float32, layout="out_in"))


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Row:
    """A test's sequence: its pages, its cached length, and passes over it."""

    def __init__(self, decoder: Decoder, pages: list[int], pool: KVPool | None = None) -> None:
        self.decoder, self.pages, self.cached = decoder, pages, 0
        self.pool = pool or poisoned_pool(decoder)

    def inputs(self, ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> PassBatch:
        stop = self.cached + len(ids)
        where = torch.arange(self.cached, stop) if positions is None else positions
        row = PassRow(0, len(ids), self.cached, self.pages, mask)
        return PassBatch(ids, where, self.pool.slots(self.pages, self.cached, stop), [row])

    def run(self, ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        out = self.decoder.forward(self.inputs(ids, positions, mask), self.pool)
        return self.decoder.logits(out.hidden)

    def feed(self, ids: Tensor) -> Tensor:
        logits = self.run(ids)
        self.cached += len(ids)
        return logits


def poisoned_pool(decoder: Decoder, num_pages: int = 64) -> KVPool:
    """A pool full of NaN: reading a slot that was never written would show."""
    pool = KVPool(decoder.pool_spec(num_pages, PAGE))
    pool.store.fill_(float("nan"))
    return pool


def random_ids(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, SHAPE["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed))


def reference_logits(pair: Pair, ids: Tensor) -> Tensor:
    logits: Tensor = pair.reference(ids[None]).logits[0]
    return logits


def assert_close(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    assert (got - want).abs().max().item() < 1e-4


def random_tree(num_nodes: int, seed: int) -> list[int]:
    """Parents of nodes, -1 for the root; parents come first."""
    generator = np.random.default_rng(seed)
    return [int(generator.integers(-1, node)) for node in range(num_nodes)]


def ancestors(parents: list[int], node: int) -> list[int]:
    """The path from the root's child to the node."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def tree_mask(parents: list[int]) -> Tensor:
    mask = torch.zeros(len(parents) + 1, len(parents) + 1, dtype=torch.bool)
    mask[:, 0] = True
    for node in range(len(parents)):
        mask[node + 1, [other + 1 for other in ancestors(parents, node)]] = True
    return mask


def test_prefill(pair: Pair) -> None:
    ids = random_ids(40)
    assert_close(Row(pair.decoder, list(range(3, 14))).feed(ids), reference_logits(pair, ids))


def test_prefill_in_chunks_with_scattered_pages(pair: Pair) -> None:
    ids = random_ids(40)
    row = Row(pair.decoder, [9, 2, 30, 31, 5, 4, 11, 12, 13, 40, 1])
    got = torch.cat([row.feed(ids[:7]), row.feed(ids[7:26]), row.feed(ids[26:])])
    assert_close(got, reference_logits(pair, ids))


def test_single_steps(pair: Pair) -> None:
    ids = random_ids(24)
    row = Row(pair.decoder, list(range(2, 10)))
    got = torch.cat([row.feed(ids[:4])] + [row.feed(ids[i : i + 1]) for i in range(4, 24)])
    assert_close(got, reference_logits(pair, ids))


def test_sixteen_token_chain(pair: Pair) -> None:
    ids = random_ids(33)
    row = Row(pair.decoder, list(range(10)))
    row.feed(ids[:17])
    assert_close(row.feed(ids[17:]), reference_logits(pair, ids)[17:])


def test_tree_each_node_against_its_own_path(pair: Pair) -> None:
    prompt, nodes = random_ids(19), random_ids(32, seed=5)
    parents = random_tree(32, seed=1)
    row = Row(pair.decoder, list(range(4, 24)))
    row.feed(prompt[:-1])
    depths = [len(ancestors(parents, node)) for node in range(32)]
    positions = torch.tensor([18] + [18 + depth for depth in depths])
    got = row.run(torch.cat((prompt[-1:], nodes)), positions, tree_mask(parents))
    assert_close(got[:1], reference_logits(pair, prompt)[-1:])
    for node in range(32):
        path = torch.cat((prompt, nodes[ancestors(parents, node)]))
        assert_close(got[node + 1 : node + 2], reference_logits(pair, path)[-1:])


def test_commits_between_trees(pair: Pair) -> None:
    """Three verified trees in a row: after each commit the cache equals that of the kept text alone."""
    text = random_ids(11)
    row = Row(pair.decoder, [20, 21, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    row.feed(text[:-1])
    for step in range(3):
        parents = random_tree(12, seed=step)
        nodes = random_ids(12, seed=50 + step)
        kept = ancestors(parents, int(np.argmax([len(ancestors(parents, n)) for n in range(12)])))
        depths = torch.tensor([0] + [len(ancestors(parents, n)) for n in range(12)])
        row.run(torch.cat((text[-1:], nodes)), row.cached + depths, tree_mask(parents))
        slots = row.pool.slots(row.pages, row.cached, row.cached + 13).numpy()
        commit_path(row.pool, [slots], [np.array([0] + [n + 1 for n in kept])])
        row.cached += 1 + len(kept)
        text = torch.cat((text, nodes[kept], random_ids(1, seed=90 + step)))
        assert_close(row.run(text[-1:]), reference_logits(pair, text)[-1:])


def test_mixed_batch_equals_rows_alone(pair: Pair) -> None:
    """A prompt chunk, a plain row and a tree in one pass."""
    pool = poisoned_pool(pair.decoder)
    rows = [Row(pair.decoder, list(range(8 * i, 8 * i + 8)), pool) for i in range(3)]
    texts = [random_ids(20, seed) for seed in range(3)]
    rows[1].feed(texts[1][:15])
    rows[2].feed(texts[2][:9])
    parents = [-1, -1, 0, 2]
    parts = [
        rows[0].inputs(texts[0][:13]),
        rows[1].inputs(texts[1][15:16]),
        rows[2].inputs(texts[2][9:14], torch.tensor([9, 10, 10, 11, 12]), tree_mask(parents)),
    ]
    got = pair.decoder.logits(pair.decoder.forward(joined(parts), pool).hidden)
    assert_close(got[:13], reference_logits(pair, texts[0][:13]))
    assert_close(got[13:14], reference_logits(pair, texts[1][:16])[-1:])
    for node in range(4):
        path = torch.cat((texts[2][:10], texts[2][10:][ancestors(parents, node)]))
        assert_close(got[15 + node : 16 + node], reference_logits(pair, path)[-1:])


def joined(parts: list[PassBatch]) -> PassBatch:
    """One batch of several one-row batches."""
    rows, start = [], 0
    for part in parts:
        row = part.rows[0]
        rows.append(PassRow(start, start + part.num_tokens, row.context_len, row.pages, row.mask))
        start += part.num_tokens
    names = ("token_ids", "positions", "slots")
    return PassBatch(*(torch.cat([getattr(part, name) for part in parts]) for name in names), rows)


def test_features_are_the_outputs_of_the_layers_themselves(pair: Pair) -> None:
    ids = random_ids(15)
    seen: dict[int, Tensor] = {}
    hooks = [
        layer.register_forward_hook(lambda _m, _a, out, index=index: seen.__setitem__(index, out[0]))
        for index, layer in enumerate(pair.reference.model.layers)
    ]
    pair.reference(ids[None])
    for hook in hooks:
        hook.remove()
    row = Row(pair.decoder, list(range(8)))
    out = pair.decoder.forward(row.inputs(ids), row.pool, (2, 0))
    assert out.features is not None
    assert_close(out.features, torch.cat((seen[2].view(15, -1), seen[0].view(15, -1)), dim=-1))


def test_long_windowed_prompt_stays_finite(tmp_path: Path) -> None:
    """Whole tiles of keys out of the window must not turn into NaN."""
    changes = {"sliding_window": 9, "num_hidden_layers": 2, "max_position_embeddings": 2048}
    reference = save_target(tmp_path, "mistral", **changes)
    decoder = load_target(tmp_path, torch.float32, layout="out_in")
    ids = random_ids(1300)
    row = Row(decoder, list(range(330)), KVPool(decoder.pool_spec(330, PAGE)))
    assert_close(row.feed(ids), reference(ids[None]).logits[0])


@pytest.mark.parametrize("layout", ["auto", "in_out", "packed"])
def test_every_layout_gives_the_same_numbers(tmp_path: Path, layout: str) -> None:
    reference = save_target(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    pair = Pair(reference, load_target(tmp_path, torch.float32, layout=layout))
    test_single_steps(pair)
    test_sixteen_token_chain(pair)


def test_float64_passes_of_any_width_agree_closely(tmp_path: Path) -> None:
    save_target(tmp_path, "qwen3")
    decoder = load_target(tmp_path, torch.float64)
    ids = random_ids(20)
    whole = Row(decoder, list(range(8))).feed(ids)
    row = Row(decoder, list(range(8)))
    steps = torch.cat([row.feed(ids[i : i + 1]) for i in range(20)])
    assert (whole - steps).abs().max().item() < 1e-12


def test_bfloat16_runs_near_float32(tmp_path: Path) -> None:
    reference = save_target(tmp_path, "qwen3")
    decoder = load_target(tmp_path, torch.bfloat16)
    ids = random_ids(12)
    got = Row(decoder, list(range(8))).feed(ids).float()
    assert (got - reference(ids[None]).logits[0]).abs().max().item() < 0.5
