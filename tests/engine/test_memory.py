"""The memory budget bounds the target's pages and the drafter's context together; what goes, goes."""

import gc
import weakref

import pytest

from tests.equivalence.world import World, make_engine
from wager.config import EngineConfig, with_values
from wager.engine.assemble import drafter_page_bytes, size_memory
from wager.engine.device import make_runner
from wager.errors import ConfigError
from wager.nn import kernels
from wager.nn.kernels import support
from wager.nn.models import load_target


def test_a_budget_holds_target_and_drafter(world: World) -> None:
    for drafter in ("none", "lookup", "chain", "block"):
        engine = make_engine(world, drafter)
        pools = [
            engine.runner.pool,
            *(pool for drafter in engine.drafters.values() for pool in drafter.pools()),
        ]
        folder = world.drafter(drafter)
        size = engine.runner.pool.spec.page_size
        own = drafter_page_bytes(folder, size, engine.runner.decoder.dtype)
        assert own == sum(pool.page_bytes for pool in pools[1:])
        config = with_values(EngineConfig(), page_size=size, memory_gib=0.001, max_rows=4096)
        pages = size_memory(engine.runner.decoder, config, 100_000, folder)
        assert pages * (engine.runner.pool.page_bytes + own) <= 0.001 * (1 << 30)
        assert (pages + 1) * (engine.runner.pool.page_bytes + own) > 0.001 * (1 << 30)


def test_the_kernels_bound_the_pool(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for more tokens than they can address is left free, and asking for more is refused by name."""
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)
    monkeypatch.setattr(support, "MAX_POOL_VALUES", 1000)
    decoder = load_target(world.target, "float32", layout="out_in")
    config = with_values(EngineConfig(), page_size=8, memory_gib=1)
    pages = size_memory(decoder, config, 100_000)
    head_dim = decoder.spec.head_dim
    assert pages * 8 * head_dim < 1000 <= (pages + 1) * 8 * head_dim
    with pytest.raises(ConfigError, match=rf"num_pages = {pages + 1}.*up to \d+ tokens"):
        make_runner(decoder, pages + 1, config, 512)


def test_an_engine_that_nobody_holds_is_gone(world: World) -> None:
    """With its weights: whoever loads one model after another must not run out of memory."""
    engine = make_engine(world, "block")
    seen = weakref.ref(engine.runner.decoder)
    del engine
    gc.collect()
    assert seen() is None
