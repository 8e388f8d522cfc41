"""The floor of a pass: the bytes it must read, how fast this device reads, and the time that follows.

    python -m bench.gpu.floor

A pass reads every matrix and norm of the network once, the head among them, and the keys and values of its
context; the embedding is looked up, not read. A draft reads the drafter's weights and the target's head. The
limit is stated against the rate measured here and against a stated reference rate.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch

from bench.gpu.grown import REFERENCE_TB_PER_S, World
from bench.gpu.script import Script, main
from wager.train.grow import GrowthPlan, NetPlan

_LOOKED_UP = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Options:
    """Contexts whose keys and values are counted, and the rate to compare with."""

    contexts: tuple[int, ...] = (0, 1024, 4096, 16_384, 32_768)
    reference_tb_per_s: float = REFERENCE_TB_PER_S
    copy_bytes: int = 2 << 30


class Streamed(NamedTuple):
    """What one pass of a network reads: weights always, `kv_bytes` for every token of context."""

    weight_bytes: int
    kv_bytes: int

    def at(self, context: int) -> int:
        return self.weight_bytes + context * self.kv_bytes

    def limit_ms(self, context: int, bytes_per_s: float) -> float:
        return self.at(context) / bytes_per_s * 1e3


def target_bytes(plan: GrowthPlan) -> Streamed:
    return _streamed(plan.target, plan, 0)


def drafter_bytes(plan: GrowthPlan) -> Streamed:
    """A draft scores its block with the target's head."""
    assert plan.drafter is not None
    return _streamed(plan.drafter, plan, math.prod(plan.target.growth.big_shapes()[_HEAD]))


def _streamed(net: NetPlan, plan: GrowthPlan, borrowed: int) -> Streamed:
    shapes, big, size = net.growth.big_shapes(), net.growth.big, plan.dtype.itemsize
    numbers = sum(math.prod(shape) for name, shape in shapes.items() if name != _LOOKED_UP)
    return Streamed((numbers + borrowed) * size, 2 * big.num_layers * big.num_kv_heads * big.head_dim * size)


def copy_rate(world: World, num_bytes: int) -> float:
    """Bytes read and written per second by a copy from one part of memory to another."""
    source = torch.ones(num_bytes // 4, dtype=torch.int32, device=world.device)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        world.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        world.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * source.nbytes / statistics.median(times[2:])


def run(world: World, options: Options) -> None:
    found: dict[str, object] = {}
    nets = {"target": target_bytes(world.plan), "drafter": drafter_bytes(world.plan)}
    found["streamed_bytes"] = {name: net._asdict() for name, net in nets.items()}
    with world.case("copy rate"):
        found["copy_tb_per_s"] = copy_rate(world, options.copy_bytes) * 1e-12
    rates = {"reference": options.reference_tb_per_s * 1e12}
    with world.case("read rate"):
        rates["measured"] = world.bytes_per_s
    found["read_tb_per_s"] = {name: rate * 1e-12 for name, rate in rates.items()}
    found["limit_ms"] = {
        name: {
            whose: {str(context): net.limit_ms(context, rate) for context in options.contexts}
            for whose, rate in rates.items()
        }
        for name, net in nets.items()
    }
    world.save("floor", {"options": asdict(options)}, found)
    world.say(
        f"reads {rates.get('measured', math.nan) * 1e-12:.3f} TB/s; copies {found.get('copy_tb_per_s')}"
    )
    for name, net in nets.items():
        limits = ", ".join(
            f"{whose} " + " ".join(f"{net.limit_ms(one, rate):.3f}" for one in options.contexts)
            for whose, rate in rates.items()
        )
        world.say(f"{name}: {net.weight_bytes / 1e9:.3f} GB, ms behind {options.contexts} tokens: {limits}")


SCRIPT = Script("floor", __doc__ or "", Options, {"copy_bytes": 1 << 22}, run)

if __name__ == "__main__":
    main(SCRIPT)
