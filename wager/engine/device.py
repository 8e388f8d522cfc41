"""Chooses the target's runner for the device, and captures and compiles its passes before the first request.

On a CUDA device with Triton the passes are kernels, captured as CUDA graphs here; elsewhere they are plain
torch or native code. Called by assemble.py.
"""

from __future__ import annotations

import logging
import time

from wager.config import EngineConfig
from wager.engine.engine import Engine
from wager.errors import ConfigError
from wager.nn.kernels.support import pool_refusal
from wager.nn.models.decoder import Decoder
from wager.target import TargetRunner

log = logging.getLogger("wager.engine")

PROGRESS_INTERVAL_S = 2.0
"""The time between two log lines while passes are captured."""


def make_runner(decoder: Decoder, num_pages: int, config: EngineConfig, max_context: int) -> TargetRunner:
    """Returns a runner with kernels if the device and the model have them and the config allows them."""
    page_size = config.cache.page_size
    if config.model.kernels == "off" or decoder.weights is None:
        return TargetRunner(decoder, num_pages, page_size)
    refusal = pool_refusal(num_pages * page_size, decoder.spec.head_dim)
    if refusal:
        raise ConfigError("num_pages", num_pages, f"fewer pages: {refusal}")
    from wager.target.buckets import GraphLimits
    from wager.target.graphs import GraphRunner

    scheduler = config.scheduler
    # Tree nodes come on top of the scheduled tokens, of which every running row has at least one.
    most = scheduler.max_step_tokens + scheduler.max_rows * (1 + GraphRunner.max_nodes)
    limits = GraphLimits(scheduler.max_rows, most, max_context, scheduler.max_step_tokens)
    return GraphRunner(decoder, num_pages, page_size, limits, capture=config.model.kernels == "auto")


def warm(engine: Engine) -> None:
    """Captures and compiles all passes of target and drafters, so that no request waits for that."""
    runner = engine.runner
    if not runner.has_kernels:
        return
    began, told = time.perf_counter(), time.perf_counter()

    def progress(done: int, count: int) -> None:
        nonlocal told
        if time.perf_counter() - told > PROGRESS_INTERVAL_S:
            told = time.perf_counter()
            log.info("capturing passes: %d of %d", done, count)

    num_graphs = runner.warm(progress)
    for drafter in engine.drafters.values():
        if drafter.device is not None:
            warm_device = drafter.device.warm(runner.features_at)
            num_graphs += warm_device.num_graphs
            runner.warm_blind(warm_device.top, warm_device.max_depth)
    decoder = runner.decoder
    engine.sampler.warm(decoder.spec.vocab_size, decoder.dtype)
    took = time.perf_counter() - began
    engine.parts.notes["graphs"] = {"value": num_graphs, "source": f"captured in {took:.1f} s"}
    log.info("captured %d passes in %.1f s", num_graphs, took)
