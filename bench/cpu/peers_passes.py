"""One pass by its number of tokens, llama.cpp's beside Wager's, and whether both compute the same scores.

A pass begins behind a context that is already read, and scores all its tokens, as a verification does; what
it wrote is taken back, untimed. Contenders take turns there and back at every size, a few passes in a row of
which the first, which comes behind another's, is not counted. Called by peers.py.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
import torch

from bench.cpu.peers_llama import LlamaContext, ScoredBatch, Scores
from wager.bench.plan import BASELINE
from wager.llm import LLM
from wager.target.runner import RunRow
from wager.tree import Tree

__all__ = ["Agreement", "LlamaPasses", "PassMs", "Passes", "WagerPasses", "agreement", "time_passes"]

PassMs = dict[str, dict[int, list[float]]]
"""Milliseconds by contender and tokens in the pass."""


class Passes(Protocol):
    """Somebody whose passes are timed."""

    name: str

    def read(self, context_ids: Sequence[int]) -> None:
        """Lay the context down that all further passes stand behind."""

    def times(self, token_ids: Sequence[int], num: int) -> list[float]:
        """Milliseconds of `num` passes over these tokens, one after the other."""


class WagerPasses:
    """Wager's target pass as its engine runs it; hidden features are handed out where the policy drafts."""

    def __init__(self, name: str, llm: LLM, policy: str) -> None:
        self.name, self._runner = name, llm.engine.runner
        self._layers = () if policy == BASELINE else self._runner.feature_layers
        self._pages = list(range(self._runner.pool.spec.num_pages))
        self._num_context = 0

    def read(self, context_ids: Sequence[int]) -> None:
        self._runner.run([RunRow(list(context_ids), Tree.empty(), 0, self._pages, judged=False)])
        self._num_context = len(context_ids)

    def times(self, token_ids: Sequence[int], num: int) -> list[float]:
        root, *guesses = token_ids
        row = RunRow([root], Tree.chain(guesses), self._num_context, self._pages)
        found = []
        with self._tapped():
            for _ in range(num):
                start = time.perf_counter()
                self._runner.run([row])
                found.append((time.perf_counter() - start) * 1e3)
        return found

    def scores(self, token_ids: Sequence[int]) -> Scores:
        """Scores behind every token of a text, read in one pass."""
        root, *rest = token_ids
        logits = self._runner.run([RunRow([root], Tree.chain(rest), 0, self._pages)]).logits
        assert logits is not None
        found: Scores = logits.float().numpy().copy()
        return found

    @contextmanager
    def _tapped(self) -> Iterator[None]:
        own = self._runner.feature_layers
        self._runner.feature_layers = self._layers
        try:
            yield
        finally:
            self._runner.feature_layers = own


class LlamaPasses:
    """llama.cpp's pass: decode, and wait for the scores."""

    def __init__(self, name: str, context: LlamaContext) -> None:
        self.name, self._context, self._num_context = name, context, 0

    def read(self, context_ids: Sequence[int]) -> None:
        self._context.keep(0)
        self._context.read(context_ids)
        self._num_context = len(context_ids)

    def times(self, token_ids: Sequence[int], num: int) -> list[float]:
        found, run = [], self.run(token_ids)
        for _ in range(num):
            self._context.keep(self._num_context)
            start = time.perf_counter()
            run()
            found.append((time.perf_counter() - start) * 1e3)
        return found

    def run(self, token_ids: Sequence[int]) -> Callable[[], None]:
        """Returns a pass over these tokens behind the context."""
        context, batch = self._context, ScoredBatch(token_ids, self._num_context)

        def once() -> None:
            context.keep(self._num_context)
            context.decode(batch.batch)
            context.wait()

        weakref.finalize(once, batch.close)
        return once


class Plan(NamedTuple):
    """What is timed: sizes, the context in front of them, rounds there and back, and passes in a row."""

    sizes: tuple[int, ...] = (1, 4, 8, 16, 32)
    num_context: int = 256
    rounds: int = 6
    in_a_row: int = 6


def time_passes(contenders: Sequence[Passes], token_ids: Sequence[int], plan: Plan) -> PassMs:
    """Time all sizes; `token_ids` are context and passes, repeated where they are too few."""
    tokens = _repeated(token_ids, plan.num_context + max(plan.sizes))
    context, rest = tokens[: plan.num_context], tokens[plan.num_context :]
    found: PassMs = {one.name: {size: [] for size in plan.sizes} for one in contenders}
    for one in contenders:
        one.read(context)
    for number in range(plan.rounds):
        cut = number % len(contenders)
        order = [*contenders[cut:], *contenders[:cut]]
        for size in plan.sizes:
            for one in [*order, *reversed(order)]:
                found[one.name][size] += one.times(rest[:size], plan.in_a_row)[1:]
    return found


def _repeated(token_ids: Sequence[int], length: int) -> list[int]:
    return (list(token_ids) * (length // len(token_ids) + 1))[:length]


class Agreement(NamedTuple):
    """How near two runtimes' scores lie over some texts."""

    max_difference: float
    """Of one score, the largest."""
    same_best: float
    """Share of the positions where both prefer the same token."""
    positions: int
    nats_per_token: float = 0.0
    """Lost on average where the second's probabilities stand for the first's (Kullback-Leibler)."""

    def __str__(self) -> str:
        return (
            f"scores differ by at most {self.max_difference:.1e}, same best token {self.same_best:.2%}, "
            f"{self.nats_per_token:.1e} nats lost per token"
        )


def agreement(ours: Iterable[Scores], theirs: Iterable[Scores]) -> Agreement:
    """Compare scores, text by text."""
    most, same, positions, nats = 0.0, 0, 0, 0.0
    for one, other in zip(ours, theirs, strict=True):
        logs, others = _log_softmax(one), _log_softmax(other)
        nats += float((np.exp(logs) * (logs - others)).sum())
        most = max(most, float(np.abs(one - other).max()))
        same += int((one.argmax(-1) == other.argmax(-1)).sum())
        positions += len(one)
    return Agreement(most, same / positions, positions, nats / positions)


def _log_softmax(scores: Scores) -> Scores:
    return torch.from_numpy(scores).double().log_softmax(-1).numpy()
