"""A thousand random requests through a small memory: nothing leaks, nothing hangs, everybody hears one end.

Requests arrive in bursts, stop by token, by length or from outside, lose their pages and come back, under
policies that change on the way. At the end of the run the engine must be as empty as at its beginning.
"""

import gc
import tracemalloc
from collections import Counter
from random import Random

import pytest
import torch

from tests.equivalence.world import VOCAB, World, is_clean, make_engine
from wager.engine.engine import Engine, Event
from wager.engine.sequence import Finish
from wager.nn.noise import NoiseSource
from wager.records import SamplingParams

POLICIES = ("fixed:3", "tree:10", "auto", "ar", "bod", "ema+fixed:4", "entropy+tree:6")
TIGHT = {"num_pages": 40, "page_size": 4, "max_rows": 9, "prefill_chunk": 20, "max_step_tokens": 60}


def random_request(random: Random) -> tuple[list[int], SamplingParams]:
    """Prompts share beginnings now and then, so that pages are reused; one in eight samples with extras."""
    head = [random.randrange(3)] * random.choice((0, 8, 17))
    prompt = head + [random.randrange(VOCAB) for _ in range(random.randint(1, 30))]
    extras = {"repetition_penalty": 1.2, "top_p": 0.9, "min_tokens": 1} if random.random() < 0.125 else {}
    params = SamplingParams(
        max_tokens=random.randint(1, 24),
        temperature=random.choice((0.0, 0.8)),
        seed=random.randrange(1 << 40),
        stop_token_ids=[random.randrange(VOCAB) for _ in range(random.randrange(6))],
        priority=random.randrange(3),
        logprobs=random.choice((None, None, 2)),
        **extras,
    )
    return prompt, params


class Crowd:
    """Feeds an engine at random and remembers what each request heard."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.random = engine, Random(seed)
        self.ends: Counter[str] = Counter()
        self.finishes: Counter[Finish] = Counter()
        self.open: set[str] = set()
        self.num_steps = 0
        self.num_sent = 0

    def send(self, count: int) -> None:
        """Send so many and run until all of them ended; a bound on the steps stands for "never hangs"."""
        limit = self.num_steps + 60 * count
        left = count
        while left or self.engine.has_work:
            if left and len(self.open) < 24 and self.random.random() < 0.5:
                for _ in range(min(left, self.random.randint(1, 4))):
                    self._add()
                    left -= 1
            self._disturb()
            for event in self.engine.step():
                self._hear(event)
            self.num_steps += 1
            assert self.num_steps < limit, "the engine does not come to an end"

    def _add(self) -> None:
        name = f"request-{self.num_sent}"
        self.engine.add(name, *random_request(self.random), client=self.random.choice("abc"))
        self.open.add(name)
        self.num_sent += 1

    def _disturb(self) -> None:
        if self.open and self.random.random() < 0.04:
            assert self.engine.abort(self.random.choice(sorted(self.open)))
            for event in self.engine.step():
                self._hear(event)
        if self.random.random() < 0.02:
            self.engine.set_policy(self.random.choice(POLICIES))
        if self.random.random() < 0.1:
            self.engine.check()

    def _hear(self, event: Event) -> None:
        assert self.ends[str(event.request_id)] == 0, "an event behind the last one"
        if event.finish is not None:
            self.ends[str(event.request_id)] += 1
            self.finishes[event.finish] += 1
            self.open.discard(str(event.request_id))


@pytest.mark.parametrize(
    ("drafter", "order", "count"),
    [("block", "priority", 1000), ("chain", "shortest", 300), ("lookup", "fair", 300)],
)
def test_a_thousand_requests_leave_nothing_behind(world: World, drafter: str, order: str, count: int) -> None:
    engine = make_engine(world, drafter, "tree:6", order=order, **TIGHT)
    # The memory of noise rows fills up to a bound that this run would not reach: a small one does at once.
    engine.parts.noise = engine.sampler.noise = NoiseSource(VOCAB, dtype=torch.float64, capacity=256)
    crowd = Crowd(engine, seed=len(drafter))
    crowd.send(count // 2)
    gc.collect()
    tracemalloc.start()
    try:
        crowd.send(count - count // 2)
        gc.collect()
        growth, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    engine.check()
    assert is_clean(engine) and not crowd.open
    assert len(crowd.ends) == count and set(crowd.ends.values()) == {1}
    assert Finish.ERROR not in crowd.finishes
    assert min(crowd.finishes[kind] for kind in (Finish.STOP, Finish.LENGTH, Finish.ABORT)) > 10
    assert engine.scheduler.num_preemptions > 20
    assert engine.telemetry.accepted > 100 and engine.telemetry.drafter_failures == 0
    # Curves fitted anew in the second half count as growth; requests that stay would add half a megabyte.
    assert growth < 400_000
