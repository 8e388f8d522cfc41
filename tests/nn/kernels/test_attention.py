"""Paged attention against float64: trees, blocks, prompts, windows, groups, scattered pages, padding."""

import numpy as np
import pytest
import torch

from tests.nn.kernels.attention_case import Kind, Shape, World, make_world
from tests.nn.kernels.interpreter import DTYPES, error
from wager.kvcache.pool import KVPool, PoolSpec
from wager.nn.batch import PassBatch, PassRow
from wager.nn.kernels.attention import attend, attend_reference, plan_attention
from wager.nn.kernels.device import Launch, prefetch_of
from wager.nn.layers import attention as plain
from wager.nn.layers.attention import HeadShape

# Shares are rounded before they meet the values, so 16-bit results carry two roundings.
BOUNDS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
SENTINEL = 5.0
MIXED = [Kind(1, 0, 70), Kind(2, 9, 130), Kind(11, 0, 0), Kind(1, 0, 0), Kind(0, 6, 33, is_block=True)]


def run(
    world: World, heads: HeadShape, page_size: int, window: int | None = None, merge: str = "last",
    block_keys: int = 16,
) -> torch.Tensor:  # fmt: skip
    """Attention over the world; checks that padding is untouched and that counters are zero again."""
    plan = plan_attention(heads, world.tiling, page_size, world.queries.device, merge)._replace(
        block_keys=block_keys
    )
    plan.space.partial.fill_(torch.nan)
    plan.space.stats.fill_(torch.nan)
    out = world.queries.new_full((world.queries.shape[0], heads.num_heads * heads.head_dim), SENTINEL)
    out[: world.num_tokens] = torch.nan
    attend(world.queries, world.layer, world.tables, plan, window, out)
    assert bool((out[world.num_tokens :] == SENTINEL).all()), "padding was written"
    assert not plan.space.counters.any()
    return out[: world.num_tokens]


def reference(world: World, page_size: int, window: int | None = None) -> torch.Tensor:
    exact = attend_reference(world.queries.double(), world.layer.double(), world.tables, page_size, window)
    return exact[: world.num_tokens]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("merge", "window"), [("last", None), ("after", 40), ("last", 3)])
def test_rows_of_all_kinds_together(
    device: torch.device, dtype: torch.dtype, merge: str, window: int | None
) -> None:
    heads = HeadShape(4, 2, 32)
    world = make_world(MIXED, Shape(heads, 16, dtype), device, padding=3)
    got = run(world, heads, 16, window, merge)
    assert error(got, reference(world, 16, window)) <= BOUNDS[dtype]


@pytest.mark.parametrize("group", range(1, 9))
def test_every_group_of_query_heads(device: torch.device, group: int) -> None:
    heads = HeadShape(2 * group, 2, 16)
    world = make_world([Kind(3, 20, 90), Kind(1, 0, 40)], Shape(heads, 8), device, padding=1)
    assert error(run(world, heads, 8), reference(world, 8)) <= BOUNDS[torch.float32]


@pytest.mark.parametrize(("head_dim", "page_size"), [(16, 1), (48, 5), (80, 16), (128, 64), (128, 7)])
def test_head_and_page_sizes(device: torch.device, head_dim: int, page_size: int) -> None:
    heads = HeadShape(4, 1, head_dim)
    world = make_world([Kind(1, 5, 75), Kind(4, 0, 30)], Shape(heads, page_size), device)
    assert error(run(world, heads, page_size), reference(world, page_size)) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("context_len", [0, 1, 15, 16, 17, 63, 64, 65, 255])
@pytest.mark.parametrize("num_programs", [1, 3, 16])
def test_splits_at_every_edge(device: torch.device, context_len: int, num_programs: int) -> None:
    heads = HeadShape(2, 1, 16)
    world = make_world([Kind(1, 3, context_len)], Shape(heads, 16, num_programs=num_programs), device)
    got = {merge: run(world, heads, 16, None, merge) for merge in ("last", "after")}
    want = reference(world, 16)
    assert error(got["last"], want) <= BOUNDS[torch.float32]
    assert error(got["after"], got["last"]) <= 1e-6


@pytest.mark.parametrize("num_nodes", [63, 64, 65, 100])
def test_trees_wider_than_a_word(device: torch.device, num_nodes: int) -> None:
    heads = HeadShape(2, 1, 16)
    world = make_world([Kind(2, num_nodes, 20)], Shape(heads, 16, mask_words=2), device)
    assert error(run(world, heads, 16), reference(world, 16)) <= BOUNDS[torch.float32]


def test_a_prompt_chunk_is_causal_and_long_tiles_agree(device: torch.device) -> None:
    heads = HeadShape(4, 2, 16)
    world = make_world([Kind(100, 0, 37)], Shape(heads, 16, num_programs=2), device)
    for keys in (16, 32, 64):
        assert error(run(world, heads, 16, block_keys=keys), reference(world, 16)) <= BOUNDS[torch.float32]


def test_a_tree_does_not_see_its_siblings(device: torch.device) -> None:
    """Changing one leaf's key and value changes only that leaf."""
    heads = HeadShape(2, 1, 16)
    kinds, shape = [Kind(1, 6, 30)], Shape(heads, 8)
    world = make_world(kinds, shape, device)
    before = run(world, heads, 8)
    slot = int(world.tables.pages[1, 36 // 8]) * 8 + 36 % 8  # the last token of the row
    world.layer[:, :, slot] += 3.0
    changed = (run(world, heads, 8) != before).any(dim=1)
    assert changed.tolist() == [False] * 6 + [True]


def test_layers_of_the_plain_path_agree(device: torch.device) -> None:
    """Against `layers/attention.py` over a real pool, float32, with a window and without."""
    heads, page_size = HeadShape(4, 2, 16), 8
    kinds = [Kind(1, 5, 21), Kind(6, 0, 10), Kind(1, 0, 60)]
    world = make_world(kinds, Shape(heads, page_size), device)
    num_pages = world.layer.shape[2] // page_size
    pool = KVPool(PoolSpec(1, num_pages, page_size, 2, 16, torch.float32, device))
    pool.store[0] = world.layer
    rows = []
    for index, kind in enumerate(kinds):
        start, count, num_causal, context_len, _, page_row = world.tables.rows[index].tolist()
        pages = world.tables.pages[page_row].tolist()[: -(-(context_len + count) // page_size)]
        token = torch.arange(count, device=device)
        mask = token[None, :] <= token[:, None]
        if kind.num_nodes:
            words = world.tables.masks[start : start + count, :1] >> (token - num_causal).clamp_min(0) & 1
            mask = torch.where(token[None, :] >= num_causal, words.bool(), mask)
        rows.append(PassRow(start, start + count, context_len, pages, mask))
    positions = world.tables.positions[: world.num_tokens]
    batch = PassBatch(positions, positions, positions, rows)
    for window in (None, 12):
        [views] = plain.plan_rows(batch, pool, heads, [window])
        want = plain.attend(world.queries, pool, 0, views)
        assert error(run(world, heads, page_size, window), want) <= 2e-6


def test_the_space_serves_pass_after_pass(device: torch.device) -> None:
    heads = HeadShape(2, 1, 16)
    world = make_world([Kind(1, 0, 200)], Shape(heads, 16), device)
    plan = plan_attention(heads, world.tiling, 16, device)._replace(block_keys=16)
    first, second = (attend(world.queries, world.layer, world.tables, plan) for _ in range(2))
    assert torch.equal(first, second)
    assert error(first, reference(world, 16)) <= BOUNDS[torch.float32]


def test_fetching_ahead_changes_nothing(device: torch.device) -> None:
    heads = HeadShape(2, 1, 16)
    world = make_world([Kind(1, 3, 100)], Shape(heads, 16), device)
    plan = plan_attention(heads, world.tiling, 16, device)
    prefetch = Launch(prefetch=prefetch_of(torch.ones(64, 96, device=device), 4096), prefetch_programs=3)
    got = attend(world.queries, world.layer, world.tables, plan, None, None, prefetch)
    assert torch.equal(got, attend(world.queries, world.layer, world.tables, plan))


def test_an_empty_pass_writes_nothing(device: torch.device) -> None:
    heads = HeadShape(2, 1, 16)
    world = make_world([Kind(1, 0, 20)], Shape(heads, 16), device)
    world.tables.items.fill_(-1)
    plan = plan_attention(heads, world.tiling, 16, device)
    out = world.queries.new_full((1, 32), SENTINEL)
    attend(world.queries, world.layer, world.tables, plan, None, out)
    assert bool((out == SENTINEL).all())
    none = attend(world.queries[:0], world.layer, world.tables, plan)
    assert none.shape == (0, 32)


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    heads = HeadShape(2, 1, 16)
    world = make_world([Kind(1, 0, 20)], Shape(heads, 16), device)
    plan = plan_attention(heads, world.tiling, 16, device)
    with pytest.raises(AssertionError):
        attend(world.queries[:, :1], world.layer, world.tables, plan)
    with pytest.raises(AssertionError):
        attend(world.queries, world.layer[:1], world.tables, plan)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(3))
def test_large_batches_on_the_device(device: torch.device, seed: int) -> None:
    """Sizes that the interpreter cannot reach: many rows, long contexts, the shapes of real models."""
    if device.type != "cuda":
        pytest.skip("too large for the interpreter")
    rng = np.random.default_rng(seed)
    heads = HeadShape(32, 8, 128)
    kinds = [Kind(1, int(rng.integers(0, 60)), int(rng.integers(0, 3000))) for _ in range(40)]
    kinds += [Kind(300, 0, 100), Kind(1, 0, 16_000)]
    world = make_world(
        kinds, Shape(heads, 64, torch.bfloat16, num_programs=264), device, padding=13, seed=seed
    )
    for window in (None, 512):
        want = reference(world, 64, window)
        for merge in ("last", "after"):
            got = run(world, heads, 64, window, merge, block_keys=64)
            assert error(got, want) <= BOUNDS[torch.bfloat16]
