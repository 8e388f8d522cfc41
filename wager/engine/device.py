"""Which runner an engine gets for its device, and what is made ready before the first request.

On a CUDA device with triton passes are kernels, captured as graphs here, with progress in the log; elsewhere
plain torch or native code. Called by assemble.py.
"""

from __future__ import annotations

import logging
import time

from wager.config import EngineConfig
from wager.draft.block import BlockDrafter
from wager.engine.engine import Engine
from wager.nn import kernels
from wager.nn.models.decoder import Decoder
from wager.target import TargetRunner

log = logging.getLogger("wager.engine")


def make_runner(decoder: Decoder, num_pages: int, config: EngineConfig, max_context: int) -> TargetRunner:
    """The target's runner: by kernels where there are any and nobody objects."""
    page_size = config.cache.page_size
    if config.model.kernels == "off" or not kernels.has_kernels(decoder.device):
        return TargetRunner(decoder, num_pages, page_size)
    from wager.target.buckets import GraphLimits
    from wager.target.graphs import GraphRunner

    scheduler = config.scheduler
    # Nodes come on top of the tokens that are scheduled, and every running row has at least one of those.
    most = scheduler.max_step_tokens + scheduler.max_rows * (1 + GraphRunner.max_nodes)
    limits = GraphLimits(scheduler.max_rows, most, max_context)
    return GraphRunner(decoder, num_pages, page_size, limits, capture=config.model.kernels == "auto")


def warm(engine: Engine) -> None:
    """Capture the passes of target and drafters and compile the rest, so that no request waits for it."""
    runner = engine.runner
    if not runner.has_kernels:
        return
    began, told = time.perf_counter(), time.perf_counter()

    def progress(done: int, count: int) -> None:
        nonlocal told
        if time.perf_counter() - told > 2.0:
            told = time.perf_counter()
            log.info("capturing passes: %d of %d", done, count)

    num_graphs = runner.warm(progress)
    for drafter in engine.drafters.values():
        if isinstance(drafter, BlockDrafter) and drafter.device is not None:
            drafter.device.source = runner.features_at
            num_graphs += drafter.device.warm()
            runner.warm_unseen(drafter.device.top, drafter.spec.block_size - 1)
    decoder = runner.decoder
    engine.sampler.warm(decoder.spec.vocab_size, decoder.dtype)
    took = time.perf_counter() - began
    engine.parts.notes["graphs"] = {"value": num_graphs, "source": f"captured in {took:.1f} s"}
    log.info("captured %d passes in %.1f s", num_graphs, took)
