"""References that know the recorded outcome: the best fixed chain, and the oracle chain.

`best_fixed` replays K = 0..15 and returns the fastest. `oracle_chain` knows how many guesses of each chain
will be accepted; for one row it is exact, so no chain policy can be faster. Only comparisons call these
functions.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.trace.costs import StepCosts
from wager.trace.format import Trace
from wager.trace.replay import Replay, ReplayOptions, Step, check_rows, replay

LONGEST_FIXED = 15
ORACLE_NAME = "oracle-chain"
BEST_FIXED_NAME = "best-fixed"

_RATE_ROUNDS = 12  # largest number of iterations; the rate of the greedy oracle converges after three or four


class BestFixed(NamedTuple):
    """The best fixed length, where 0 is plain decoding, and its run."""

    length: int
    run: Replay


class _Spine(NamedTuple):
    """How many guesses of the rank-0 chain would be accepted at each position of one sequence."""

    acceptable: list[int]
    num_depths: int
    offered: list[int]
    """Number of depths that the draft offers at each position, at most up to the token limit; 0 without a
    draft.
    """

    @property
    def is_whole(self) -> bool:
        return min(self.offered) == self.num_depths


def _as_list(traces: Trace | Sequence[Trace]) -> list[Trace]:
    return [traces] if isinstance(traces, Trace) else list(traces)


def _spines(traces: Sequence[Trace]) -> list[_Spine]:
    found = []
    for trace in traces:
        missed = np.concatenate([trace.ranks != 0, np.ones((*trace.ranks.shape[:2], 1), np.bool_)], axis=2)
        acceptable = missed.argmax(axis=2)
        offered = (trace.logprobs[:, :, :, 0] > -np.inf).cumprod(axis=2).sum(axis=2)
        for i in range(trace.num_sequences):
            own = slice(trace.length(i))
            depths = offered[i, own]
            if trace.was_cut(i):
                depths = np.minimum(depths, np.arange(len(depths))[::-1])
            found.append(_Spine(acceptable[i, own].tolist(), trace.num_depths, depths.tolist()))
    return found


# -- the best fixed length


def best_fixed(traces: Trace | Sequence[Trace], costs: StepCosts, rows: int = 1) -> BestFixed:
    """Returns the fastest `fixed:K` for K = 0..15; on a tie the shorter one."""
    traces = _as_list(traces)
    check_rows(rows)
    times = fixed_times_ms(traces, costs, rows)
    length = min(range(len(times)), key=times.__getitem__)
    return BestFixed(length, replay(traces, costs, f"fixed:{length}", ReplayOptions(rows=rows)))


def fixed_times_ms(traces: Sequence[Trace], costs: StepCosts, rows: int = 1) -> list[float]:
    """Returns the time of `fixed:K` over the traces for K = 0..15, which equals the time of a replay."""
    spines = _spines(traces)
    lengths = range(LONGEST_FIXED + 1)
    if rows == 1:
        return [_alone_time_ms(spines, length, costs) for length in lengths]
    if all(spine.is_whole for spine in spines):
        return [_fixed_time_ms(spines, length, costs, rows) for length in lengths]
    options = ReplayOptions(rows=rows)
    return [replay(traces, costs, f"fixed:{length}", options).time_ms for length in lengths]


def _alone_time_ms(spines: list[_Spine], length: int, costs: StepCosts) -> float:
    """Returns the time of one row, in which every step verifies as many guesses as are offered."""
    price = [costs.verify(1)]
    price += [costs.verify(1 + nodes) + costs.draft_time_ms(length) for nodes in range(1, length + 1)]
    time_ms = 0.0
    for acceptable, _, offered in spines:
        position = 0
        while position < len(acceptable):
            nodes = min(length, offered[position])
            time_ms += price[nodes]
            position += min(acceptable[position], nodes) + 1
    return time_ms


def _fixed_time_ms(spines: list[_Spine], length: int, costs: StepCosts, rows: int) -> float:
    """Returns the time of several rows. The steps of a row do not depend on other rows, so counts determine
    the passes.
    """
    num_steps = [_count_steps(spine.acceptable, length) for spine in spines]
    tokens = [1 + min(length, spine.num_depths) for spine in spines]
    sizes = _pass_sizes(num_steps, tokens, rows)
    draft_ms = costs.draft_time_ms(length) if length else 0.0
    return float(costs.verify.table(sizes).sum() + draft_ms * len(sizes))


def _count_steps(acceptable: list[int], length: int) -> int:
    if length == 0:
        return len(acceptable)
    position, count = 0, 0
    while position < len(acceptable):
        position += min(acceptable[position], length) + 1
        count += 1
    return count


def _pass_sizes(num_steps: list[int], tokens: list[int], rows: int) -> npt.NDArray[np.float64]:
    """Returns the number of tokens in each pass if the sequences start in order as soon as a row is free."""
    free = [0] * rows
    changes = np.zeros(sum(num_steps) + 1)
    last = 0
    for steps, size in zip(num_steps, tokens, strict=True):
        start = heapq.heappop(free)
        heapq.heappush(free, start + steps)
        changes[start] += size
        changes[start + steps] -= size
        last = max(last, start + steps)
    return np.cumsum(changes[:last])


# -- the oracle


def oracle_chain(traces: Trace | Sequence[Trace], costs: StepCosts, rows: int = 1) -> Replay:
    """Returns the run of chains whose length is chosen with knowledge of the accepted guesses.

    For one row it is the least time in which chains can generate the sequences, by dynamic programming over
    positions. For several rows it is greedy: every step takes the number of acceptable guesses that gains
    most at the long-run rate of the run itself, which is found by iteration. This is a strong reference but
    not a bound.
    """
    traces = _as_list(traces)
    check_rows(rows)
    spines = _spines(traces)
    if rows > 1:
        return _best_greedy(spines, costs, rows)
    account = _StepSum(costs)
    for spine in spines:
        for move in _best_moves(spine, costs):
            account.add(move.num_nodes, move.num_nodes, move.emitted, 1)
    return account.replay()


class _Move(NamedTuple):
    """A step of one row: the number of verified guesses (0: plain) and the number of emitted tokens."""

    num_nodes: int
    emitted: int


def _best_moves(spine: _Spine, costs: StepCosts) -> Iterator[_Move]:
    """Returns the fastest steps through one sequence. Fewer guesses than acceptable can be better for later
    steps.
    """
    best = _backwards(spine, costs)
    position = 0
    while position < len(spine.acceptable):
        move = best[position]
        yield move
        position += move.emitted


def _backwards(spine: _Spine, costs: StepCosts) -> list[_Move]:
    """Computes the best move at every position from the end: time(p) = min over moves of cost + time(p +
    emitted).
    """
    length, depths = len(spine.acceptable), spine.num_depths
    verify = costs.verify.table(np.arange(1, depths + 2, dtype=np.float64)).tolist()
    price = [costs.draft_time_ms(k) + verify[k] for k in range(depths + 1)]
    # A longer chain also yields all acceptable guesses, and is cheaper if the curve falls somewhere.
    whole = [min(range(k, depths + 1), key=price.__getitem__) for k in range(depths + 1)]
    left = [0.0] * (length + 1)
    moves = [_Move(0, 1)] * length
    for p in range(length - 1, -1, -1):
        quickest, move = verify[0] + left[p + 1], _Move(0, 1)
        num_acceptable = spine.acceptable[p]
        for kept in range(num_acceptable + 1):
            nodes = whole[kept] if kept == num_acceptable else kept
            after = min(p + kept + 1, length)
            time_ms = price[nodes] + left[after]
            if nodes and time_ms < quickest:
                quickest, move = time_ms, _Move(nodes, after - p)
        left[p], moves[p] = quickest, move
    return moves


class _StepSum:
    """Adds up steps in the same way as a replay."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._steps: list[Step] = []
        self.tokens = 0
        self.time_ms = 0.0
        self._plain_ms = 0.0

    def add(self, depth: int, num_nodes: int, emitted: int, rows: int) -> None:
        """Adds a step of `rows` rows whose longest chain has `depth` guesses; 0 stands for a plain step."""
        draft_ms = self._costs.draft_time_ms(depth) if depth else 0.0
        time_ms = self._costs.verify(rows + num_nodes) + draft_ms
        self.time_ms += time_ms
        self._plain_ms += emitted * self._costs.plain_ms(rows) / rows
        balance_ms = self._plain_ms - self.time_ms
        self._steps.append(Step(self.tokens, depth > 0, num_nodes, emitted, time_ms, balance_ms))
        self.tokens += emitted

    def replay(self) -> Replay:
        return Replay(ORACLE_NAME, tuple(self._steps), self.tokens, self.time_ms, self._plain_ms)


def _best_greedy(spines: list[_Spine], costs: StepCosts, rows: int) -> Replay:
    """Sets the rate to the achieved rate until the run no longer improves, and returns the best run."""
    best: Replay | None = None
    rate = min(rows, len(spines)) / costs.plain_ms(min(rows, len(spines)))
    for _ in range(_RATE_ROUNDS):
        run = _greedy(spines, costs, rows, rate)
        if best is not None and run.time_ms >= best.time_ms:
            break
        best, rate = run, run.tokens / run.time_ms
    assert best is not None
    return best


class _Running:
    """A row of the greedy run."""

    def __init__(self, spine: _Spine) -> None:
        self._acceptable = spine.acceptable
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._acceptable) - self._position

    @property
    def num_useful(self) -> int:
        """Number of acceptable guesses that are still needed; the last token of a sequence comes from the
        target.
        """
        return min(self._acceptable[self._position], self.remaining - 1)

    def advance(self, num_nodes: int) -> None:
        self._position += num_nodes + 1


def _greedy(spines: list[_Spine], costs: StepCosts, rows: int, rate: float) -> Replay:
    account = _StepSum(costs)
    waiting = iter(spines)
    running: list[_Running] = []
    most = rows * (1 + max(spine.num_depths for spine in spines))
    verify = costs.verify.table(np.arange(most + 1, dtype=np.float64).clip(1))
    while True:
        while len(running) < rows and (spine := next(waiting, None)) is not None:
            running.append(_Running(spine))
        if not running:
            return account.replay()
        num_nodes = _greedy_nodes(running, verify, costs.draft_ms, rate)
        shares = _shares(running, num_nodes)
        account.add(max(shares), num_nodes, len(running) + num_nodes, len(running))
        for row, share in zip(running, shares, strict=True):
            row.advance(share)
        running = [row for row in running if row.remaining]


def _shares(running: list[_Running], num_nodes: int) -> list[int]:
    """Distributes guesses over rows, longest remaining rows first, so that the rows end together."""
    shares = [0] * len(running)
    for i in sorted(range(len(running)), key=lambda i: -running[i].remaining):
        shares[i] = min(num_nodes, running[i].num_useful)
        num_nodes -= shares[i]
    return shares


def _greedy_nodes(
    running: list[_Running], verify: npt.NDArray[np.float64], draft_ms: float, rate: float
) -> int:
    """Returns the number of acceptable guesses that gains most at this rate; 0 if they do not repay the
    draft.
    """
    rows, num_useful = len(running), sum(row.num_useful for row in running)
    if not num_useful:
        return 0
    extra_ms = verify[rows + 1 : rows + num_useful + 1] - verify[rows] + draft_ms
    values = np.arange(1, num_useful + 1) - rate * extra_ms
    best = int(values.argmax())
    return best + 1 if values[best] > 0.0 else 0
