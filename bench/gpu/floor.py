"""The floor of a pass: the bytes that it must read, and the time that reading them takes on this device.

    python -m bench.gpu.floor

A pass reads every matrix and norm of the network once, the head included, and the keys and values of its
context. It reads only some rows of the embedding, which is not counted. A draft reads the drafter's weights
and the target's head. The floor is stated for the read rate measured here and for a reference rate.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch

from bench.gpu.grown import REFERENCE_TB_PER_S, BenchSession
from bench.gpu.script import Script, main
from wager.train.grow import GrowthPlan, NetPlan

_LOOKED_UP = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Options:
    """Contexts whose keys and values are counted, and the reference rate."""

    contexts: tuple[int, ...] = (0, 1024, 4096, 16_384, 32_768)
    reference_tb_per_s: float = REFERENCE_TB_PER_S
    copy_bytes: int = 2 << 30


class StreamedBytes(NamedTuple):
    """Bytes that one pass of a network reads: its weights, and `kv_bytes` for every token of context."""

    weight_bytes: int
    kv_bytes: int

    def at(self, context: int) -> int:
        return self.weight_bytes + context * self.kv_bytes

    def limit_ms(self, context: int, bytes_per_s: float) -> float:
        return self.at(context) / bytes_per_s * 1e3


def target_bytes(plan: GrowthPlan) -> StreamedBytes:
    return _streamed(plan.target, plan, 0)


def drafter_bytes(plan: GrowthPlan) -> StreamedBytes:
    """Bytes of a draft, which scores its block with the target's head."""
    assert plan.drafter is not None
    return _streamed(plan.drafter, plan, math.prod(plan.target.growth.big_shapes()[_HEAD]))


def _streamed(net: NetPlan, plan: GrowthPlan, borrowed: int) -> StreamedBytes:
    shapes, big, size = net.growth.big_shapes(), net.growth.big, plan.dtype.itemsize
    numbers = sum(math.prod(shape) for name, shape in shapes.items() if name != _LOOKED_UP)
    return StreamedBytes(
        (numbers + borrowed) * size, 2 * big.num_layers * big.num_kv_heads * big.head_dim * size
    )


def copy_rate(session: BenchSession, num_bytes: int) -> float:
    """Bytes read and written per second by a copy within the device's memory."""
    source = torch.ones(num_bytes // 4, dtype=torch.int32, device=session.device)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        session.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        session.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * source.nbytes / statistics.median(times[2:])


def run(session: BenchSession, options: Options) -> None:
    found: dict[str, object] = {}
    nets = {"target": target_bytes(session.plan), "drafter": drafter_bytes(session.plan)}
    found["streamed_bytes"] = {name: net._asdict() for name, net in nets.items()}
    with session.case("copy rate"):
        found["copy_tb_per_s"] = copy_rate(session, options.copy_bytes) * 1e-12
    rates = {"reference": options.reference_tb_per_s * 1e12}
    with session.case("read rate"):
        rates["measured"] = session.bytes_per_s
    found["read_tb_per_s"] = {name: rate * 1e-12 for name, rate in rates.items()}
    found["limit_ms"] = {
        name: {
            whose: {str(context): net.limit_ms(context, rate) for context in options.contexts}
            for whose, rate in rates.items()
        }
        for name, net in nets.items()
    }
    session.save("floor", {"options": asdict(options)}, found)
    session.say(
        f"reads {rates.get('measured', math.nan) * 1e-12:.3f} TB/s; copies {found.get('copy_tb_per_s')}"
    )
    for name, net in nets.items():
        limits = ", ".join(
            f"{whose} " + " ".join(f"{net.limit_ms(one, rate):.3f}" for one in options.contexts)
            for whose, rate in rates.items()
        )
        session.say(f"{name}: {net.weight_bytes / 1e9:.3f} GB, ms at contexts {options.contexts}: {limits}")


SCRIPT = Script("floor", __doc__ or "", Options, {"copy_bytes": 1 << 22}, run)

if __name__ == "__main__":
    main(SCRIPT)
