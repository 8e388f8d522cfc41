"""The memory budget bounds the target's pages and the drafter's context together; what goes, goes."""

import gc
import weakref

from tests.equivalence.world import World, make_engine
from wager.config import EngineConfig, with_values
from wager.engine.assemble import drafter_page_bytes, size_memory


def test_a_budget_holds_target_and_drafter(world: World) -> None:
    for drafter in ("none", "lookup", "chain", "block"):
        engine = make_engine(world, drafter)
        pools = [engine.runner.pool, *(d.pool for d in engine.drafters.values() if hasattr(d, "pool"))]
        folder = world.drafter(drafter)
        size = engine.runner.pool.spec.page_size
        own = drafter_page_bytes(folder, size, engine.runner.decoder.dtype)
        assert own == sum(pool.page_bytes for pool in pools[1:])
        config = with_values(EngineConfig(), page_size=size, memory_gib=0.001, max_rows=4096)
        pages = size_memory(engine.runner.decoder, config, 100_000, folder)
        assert pages * (engine.runner.pool.page_bytes + own) <= 0.001 * (1 << 30)
        assert (pages + 1) * (engine.runner.pool.page_bytes + own) > 0.001 * (1 << 30)


def test_an_engine_that_nobody_holds_is_gone(world: World) -> None:
    """With its weights: whoever loads one model after another must not run out of memory."""
    engine = make_engine(world, "block")
    seen = weakref.ref(engine.runner.decoder)
    del engine
    gc.collect()
    assert seen() is None
