"""Load on a server: many streaming clients, some of which leave, dawdle or misbehave; then its two endings.

    python -m bench.load                      200 clients for 60 s on the demo pair, then TERM and KILL
    python -m bench.load --clients 20 --seconds 5 --no-endings --out load.json -- --threads 1

Clients speak HTTP by hand over asyncio, to cost little beside the server they share the machine with. What is
judged: no error but those provoked, nothing left behind, progress shared fairly, health answered in time,
TERM drains, KILL and a restart come back clean. Writes bench/results/load.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from bench.load_server import Address, ServerProcess
from bench.results import write_result
from wager.nn.native import build

PROMPTS = (
    "Write a Python function that reverses a list.",
    "A train travels 60 miles in 3 hours. How fast does it go?",
    "Tell me a story about a lighthouse.",
    "What is the capital of France, and why is it famous?",
    "def fibonacci(n):",
    "Book a table for two at seven, please.",
)
KINDS = {"plain": 0.72, "leaves": 0.12, "slow": 0.08, "too large": 0.04, "no JSON": 0.04}
"""What clients do, and how often."""
INTENDED = {"too large": 413, "no JSON": 400}
HEALTH_EVERY_S = 0.1
MEMORY_EVERY_S = 5.0
LONGEST_WAIT_S = 300.0


@dataclass(frozen=True)
class Plan:
    """What is done to the server."""

    clients: int = 200
    seconds: float = 60.0
    tokens: int = 64
    large_bytes: int = 6 << 20
    seed: int = 0
    flags: tuple[str, ...] = ()
    """What `wager serve` is told."""


@dataclass
class Tally:
    """What was seen."""

    outcomes: Counter[str] = field(default_factory=Counter)
    unintended: list[str] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    """Tokens per second of whole plain answers, from their first token to their last."""
    first_s: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    tokens: int = 0

    def wrong(self, what: str) -> None:
        self.outcomes["wrong"] += 1
        if len(self.unintended) < 20:
            self.unintended.append(what)


async def run_load(address: Address, plan: Plan) -> Tally:
    """Let the clients loose for a while; all requests that have begun are seen to their end."""
    tally = Tally()
    until = time.monotonic() + plan.seconds
    probing = asyncio.create_task(_probe_health(address, tally))
    clients = [_client(address, plan, tally, until, number) for number in range(plan.clients)]
    await asyncio.gather(*clients)
    probing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await probing
    return tally


async def _client(address: Address, plan: Plan, tally: Tally, until: float, number: int) -> None:
    """One client: request after request, each of a kind that the dice say."""
    dice = random.Random(f"{plan.seed}-{number}")
    await asyncio.sleep(dice.random() * min(2.0, plan.seconds / 4))
    while time.monotonic() < until:
        [kind] = dice.choices(list(KINDS), list(KINDS.values()))
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                await _visit(address, plan, tally, kind, dice)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            tally.wrong(f"{kind}: {type(error).__name__} {error}")


async def _visit(address: Address, plan: Plan, tally: Tally, kind: str, dice: random.Random) -> None:
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(*address)
    try:
        status = await _ask(reader, writer, _body(plan, kind, dice))
        if kind in INTENDED:
            if status != INTENDED[kind]:
                tally.wrong(f"{kind}: status {status}")
            tally.outcomes[kind] += 1
        elif status == 429:
            tally.outcomes["told to come back"] += 1
            await asyncio.sleep(0.5 + dice.random())
        elif status != 200:
            tally.wrong(f"{kind}: status {status}")
        else:
            await _read(reader, tally, kind, dice, began)
    finally:
        writer.close()


def _body(plan: Plan, kind: str, dice: random.Random) -> bytes:
    if kind == "no JSON":
        return b'{"messages": [' + dice.randbytes(40)
    if kind == "too large":
        return _large_body(plan.large_bytes)
    asked = {
        "messages": [{"role": "user", "content": dice.choice(PROMPTS)}],
        "max_tokens": plan.tokens,
        "temperature": dice.choice([0.0, 0.8]),
        "seed": dice.randrange(1 << 30),
        "stream": True,
        "ignore_eos": True,
    }
    return json.dumps(asked).encode()


@cache
def _large_body(size: int) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x" * size}]}).encode()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> int:
    """Send a request; the status of its answer."""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    with contextlib.suppress(ConnectionError):  # refused in the middle of a large body
        await writer.drain()
    return await _status(reader)


async def _status(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1])


async def _read(
    reader: asyncio.StreamReader, tally: Tally, kind: str, dice: random.Random, began: float
) -> None:
    """Read a stream as its kind does: to the end, slowly, or only in part."""
    leave_after = dice.randrange(1, 12)
    first, last, seen, final = 0.0, 0.0, 0, b""
    async for line in reader:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            break
        last = time.monotonic()
        first, seen, final = first or last, seen + 1, line
        if kind == "leaves" and seen > leave_after:
            tally.outcomes["left"] += 1
            return
        if kind == "slow":
            await asyncio.sleep(0.05 + 0.1 * dice.random())
    _count(tally, kind, final, (began, first, last))


def _count(tally: Tally, kind: str, final: bytes, times: tuple[float, float, float]) -> None:
    began, first, last = times
    ended = json.loads(final[6:]) if final else {}
    if "usage" not in ended:
        tally.wrong(f"{kind}: ended with {final[:200]!r}")
        return
    written = ended["usage"]["completion_tokens"]
    tally.tokens += written
    tally.outcomes[f"{kind} answered"] += 1
    tally.first_s.append(first - began)
    if kind == "plain" and last > first and written > 8:
        tally.speeds.append(written / (last - first))


async def _probe_health(address: Address, tally: Tally) -> None:
    while True:
        began = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            if await _status(reader) != 200:
                tally.wrong("health: not 200")
            writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.wrong(f"health: {type(error).__name__} {error}")
        tally.health_ms.append((time.monotonic() - began) * 1e3)
        await asyncio.sleep(HEALTH_EVERY_S)


async def get_json(address: Address, path: str) -> Any:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    raw = await reader.read()
    writer.close()
    return json.loads(raw.partition(b"\r\n\r\n")[2])


async def settle(address: Address) -> dict[str, Any]:
    """Wait until nothing runs; the state then."""
    while True:
        state: dict[str, Any] = await get_json(address, "/wager/state")
        if state["running"] == 0 and state["waiting"] == 0:
            return state
        await asyncio.sleep(0.2)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def summary(tally: Tally, plan: Plan) -> dict[str, Any]:
    """The figures, and what they are judged by."""
    median = statistics.median(tally.speeds) if tally.speeds else 0.0
    slowest = min(tally.speeds, default=0.0)
    return {
        "outcomes": dict(sorted(tally.outcomes.items())),
        "unintended_errors": tally.unintended,
        "tokens": tally.tokens,
        "tokens_per_s": round(tally.tokens / plan.seconds, 1),
        "request_tokens_per_s": {
            "median": round(median, 2),
            "slowest": round(slowest, 2),
            "p05": round(percentile(tally.speeds, 0.05), 2),
            "p95": round(percentile(tally.speeds, 0.95), 2),
            "slowest_over_median": round(slowest / median, 3) if median else None,
            "requests": len(tally.speeds),
        },
        "time_to_first_token_s": {
            "p50": round(percentile(tally.first_s, 0.5), 3),
            "p99": round(percentile(tally.first_s, 0.99), 3),
        },
        "health_ms": {
            "p50": round(percentile(tally.health_ms, 0.5), 1),
            "p99": round(percentile(tally.health_ms, 0.99), 1),
            "worst": round(max(tally.health_ms, default=0.0), 1),
            "probes": len(tally.health_ms),
        },
    }


async def term_drains(server: ServerProcess, plan: Plan) -> dict[str, Any]:
    """TERM while requests run: they end whole, and the process with status 0."""
    tally = Tally()
    few = [_visit(server.address, plan, tally, "plain", random.Random(n)) for n in range(8)]
    running = [asyncio.ensure_future(one) for one in few]
    while (await get_json(server.address, "/wager/state"))["running"] < 4:
        await asyncio.sleep(0.05)
    began = time.monotonic()
    server.terminate()
    await asyncio.gather(*running, return_exceptions=True)
    status = await asyncio.to_thread(server.wait)
    return {
        "answered_whole": tally.outcomes["plain answered"],
        "asked": len(few),
        "unintended_errors": tally.unintended,
        "exit_status": status,
        "took_s": round(time.monotonic() - began, 2),
    }


async def kill_comes_back(server: ServerProcess, plan: Plan) -> dict[str, Any]:
    """KILL while requests run, and a new server on the same port."""
    few = [_visit(server.address, plan, Tally(), "plain", random.Random(n)) for n in range(4)]
    running = [asyncio.ensure_future(one) for one in few]
    while (await get_json(server.address, "/wager/state"))["running"] < 2:
        await asyncio.sleep(0.05)
    server.kill()
    await asyncio.gather(*running, return_exceptions=True)
    await asyncio.to_thread(server.wait)
    again = ServerProcess(plan.flags, server.address.port)
    try:
        await asyncio.to_thread(again.wait_until_ready)
        tally = Tally()
        await _visit(again.address, plan, tally, "plain", random.Random(1))
        return {"answers_again": tally.outcomes["plain answered"] == 1, "ready_after_s": again.ready_after_s}
    finally:
        again.terminate()
        await asyncio.to_thread(again.wait)


async def _watch_memory(server: ServerProcess) -> None:
    """Every few seconds while the load lasts: the cache fills up first, and then it should stand."""
    while True:
        server.memory_mib.append(round(server.footprint().memory_bytes / (1 << 20), 1))
        await asyncio.sleep(MEMORY_EVERY_S)


async def measure(plan: Plan, endings: bool) -> dict[str, Any]:
    """The whole measurement, on servers of its own."""
    server = ServerProcess(plan.flags)
    try:
        await asyncio.to_thread(server.wait_until_ready)
        await run_load(server.address, Plan(clients=8, seconds=3.0, seed=plan.seed + 1))
        before = server.footprint()
        idle = await settle(server.address)
        watching = asyncio.create_task(_watch_memory(server))
        tally = await run_load(server.address, plan)
        watching.cancel()
        state = await settle(server.address)
        await asyncio.sleep(1.0)
        found = {
            "ready_after_s": server.ready_after_s,
            **summary(tally, plan),
            "left_behind": {
                "pages_used": state["pages_used"] - idle["pages_used"],
                "files": server.footprint().files - before.files,
            },
            "memory_mib": server.memory_mib,
            "wager": {name: state[name] for name in ("speedup", "ledger_ms")},
        }
        if endings:
            found["term"] = await term_drains(server, plan)
            server = ServerProcess(plan.flags)
            await asyncio.to_thread(server.wait_until_ready)
            found["kill"] = await kill_comes_back(server, plan)
        return found
    finally:
        server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=Plan.clients)
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--tokens", type=int, default=Plan.tokens)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("flags", nargs="*", help="flags for wager serve, behind --")
    parser.add_argument("--no-endings", action="store_true", help="leave TERM and KILL out")
    parser.add_argument("--out", default=None)
    args = parser.parse_args()
    plan = Plan(args.clients, args.seconds, args.tokens, seed=args.seed, flags=tuple(args.flags))
    if build.find().path is None:
        build.build()  # the server would build it while clocks run
    found = asyncio.run(measure(plan, not args.no_endings))
    path = write_result("load", asdict(plan), found, args.out)
    print(json.dumps(found, indent=1))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
