"""The block drafter natively against plain torch in float64: context in, blocks out, the pool left alone."""

import pytest
import torch
from torch import Tensor

from tests.nn.native.nets import CASES, NATIVE, Pair, make_drafter, off, poisoned, scattered
from wager.kvcache.pool import KVPool
from wager.nn.batch import BlockBatch, BlockRow
from wager.nn.models.dflash import DFlash
from wager.nn.native.library import Library

TOLERANCE = 1e-5


@pytest.fixture(params=[*CASES, "causal"])
def pair(request: pytest.FixtureRequest, ready: Library) -> Pair:
    name = "windows" if request.param == "causal" else request.param
    return make_drafter(CASES[name], NATIVE, causal=request.param == "causal")


@pytest.mark.parametrize("spare", [False, True])
def test_step_after_step(pair: Pair, spare: bool) -> None:
    native, exact = pair
    pools, pages = (poisoned(native), poisoned(exact)), scattered(0)
    hidden, start = native.spec.hidden_size, 0
    generator = torch.Generator().manual_seed(0)
    for step, kept in enumerate((5, 1, 20, 2)):
        features = torch.randn(kept, 2 * hidden, generator=generator)
        block = torch.randn(8 - step, hidden, generator=generator)
        got, want = (
            advance(net, pool, pages, start, features.to(net.dtype), block.to(net.dtype), spare)
            for net, pool in zip(pair, pools, strict=True)
        )
        assert off(got, want) < TOLERANCE
        start += kept
    for layer in range(native.spec.num_layers):
        mine, theirs = (pool.view(layer, pages, start) for pool in pools)
        assert off(mine.keys, theirs.keys) < TOLERANCE and off(mine.values, theirs.values) < TOLERANCE
    beyond = pools[0].slots(pages, start, start + 8)
    assert pools[0].store[:, :, :, beyond].isnan().all(), "a block left something in the pool"


def advance(
    net: DFlash, pool: KVPool, pages: list[int], start: int, features: Tensor, block: Tensor, spare: bool
) -> Tensor:
    stop = start + len(features)
    net.ingest(features, torch.arange(start, stop), pool.slots(pages, start, stop), pool)
    row = BlockRow(0, len(block), stop, pages, spare)
    return net.forward(BlockBatch(block, torch.arange(stop, stop + len(block)), [row]), pool)


def test_slots_as_a_range_and_nothing_at_all(ready: Library) -> None:
    drafter = make_drafter(CASES["odd"]).native
    features = torch.randn(6, 96)
    one, other = poisoned(drafter), poisoned(drafter)
    drafter.ingest(features, torch.arange(6), slice(8, 14), one)
    drafter.ingest(features, torch.arange(6), torch.arange(8, 14), other)
    assert torch.equal(one.store.nan_to_num(), other.store.nan_to_num())
    drafter.ingest(features[:0], torch.arange(0), slice(0, 0), one)
    assert torch.equal(one.store.nan_to_num(), other.store.nan_to_num())
    empty = BlockBatch(torch.empty(0, 48), torch.arange(0), [])
    assert drafter.forward(empty, one).shape == (0, 48)


def test_a_long_context_at_once(ready: Library) -> None:
    pair = make_drafter(CASES["odd"])
    pools = poisoned(pair.native), poisoned(pair.exact)
    features = torch.randn(150, 96, generator=torch.Generator().manual_seed(3))
    pages = scattered(1, 60)
    for net, pool in zip(pair, pools, strict=True):
        net.ingest(features.to(net.dtype), torch.arange(150), pool.slots(pages, 0, 150), pool)
    mine, theirs = (pool.view(2, pages, 150) for pool in pools)
    assert off(mine.keys, theirs.keys) < TOLERANCE and off(mine.values, theirs.values) < TOLERANCE
