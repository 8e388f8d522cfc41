"""What one decision of `auto` costs: plan, arrange and learn, on one core, against their bars.

Three cases: one row with a chain, one row with a tree, a batch that shares one forest. Drafts are random but
honest (ranks are drawn from the draft's own probabilities), costs nearly flat so that every place is used,
and measured times scatter as on a real machine. Run `python -m bench.decision`; it loads no model.
"""

from __future__ import annotations

import argparse
import gc
import os
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from bench.results import machine, write_result
from wager.costs import CostModel, DraftShape
from wager.policy import PLAIN, Controller, Draft, Evidence, Experience, Plan, Row, RowOutcome, StepOutcome
from wager.trace.costs import CostCurve
from wager.tree import Forest

DRAFTER = "draft"
FLAT = CostCurve({1: 5.0, 1024: 5.0001})
DRAFT_MS = 0.5
SPREAD = 0.02


@dataclass(frozen=True)
class Case:
    """One situation: rows, the shape of each draft, the nodes it is meant to use, and the bar."""

    name: str
    rows: int
    depths: int
    ranks: int
    nodes: int
    bar_us: float
    repeats: int


CASES = (
    Case("one row, chain", 1, 15, 1, 15, 50.0, 3000),
    Case("one row, tree", 1, 15, 8, 64, 200.0, 3000),
    Case("32 rows, one forest", 32, 15, 8, 512, 2000.0, 300),
)


class Turn(NamedTuple):
    """Times of one step in microseconds, and the nodes it verified."""

    plan_us: float
    arrange_us: float
    learn_us: float
    nodes: int


class Drafts(NamedTuple):
    """Drafts of one step, and the rank of the true token at each depth (-1: not among them)."""

    logprobs: np.ndarray
    ranks: np.ndarray


def honest_drafts(case: Case, random: np.random.Generator) -> Drafts:
    """Log-probabilities of a drafter that is sure at some depths and not at others, and what then came."""
    shape = (case.rows, case.depths, case.ranks)
    sharpness = random.uniform(1.0, 6.0, (case.rows, case.depths, 1))
    scores = -np.sort(-random.gumbel(size=(*shape[:2], case.ranks + 8)) * sharpness, axis=2)
    probs = np.exp(scores - scores.max(axis=2, keepdims=True))
    probs /= probs.sum(axis=2, keepdims=True)
    drawn = (random.random((*shape[:2], 1)) > probs.cumsum(axis=2)).sum(axis=2)
    return Drafts(
        np.log(np.maximum(probs[:, :, : case.ranks], 1e-9)).astype(np.float32),
        np.where(drawn < case.ranks, drawn, -1),
    )


def accepted_depths(forest: Forest, ranks: np.ndarray) -> list[int]:
    """How deep each row's true path runs inside the forest."""
    places = zip(forest.row.tolist(), forest.parent.tolist(), forest.rank.tolist(), strict=True)
    nodes = {place: node for node, place in enumerate(places)}
    depths = []
    for row, path in enumerate(ranks.tolist()):
        depth, node = 0, -1
        while depth < len(path) and (found := nodes.get((row, node, path[depth]))) is not None:
            depth, node = depth + 1, found
        depths.append(depth)
    return depths


def warm_controller(case: Case) -> Controller:
    """A controller that has measured passes of every size it may use."""
    experience = Experience(CostModel(FLAT.by_size, warm_up=0))
    for size in sorted({case.rows, case.rows + case.nodes // 2, case.rows + case.nodes}):
        for _ in range(3):
            experience.costs.observe_pass(size, case.rows, 0, FLAT(size))
    experience.costs.observe_drafts({DRAFTER: DraftShape(case.rows)}, DRAFT_MS)
    return Controller("auto", experience)


def one_turn(controller: Controller, case: Case, given: Drafts, scatter: float) -> Turn:
    """One step through the controller, as the engine takes it, each call timed."""
    rows = [Row(index) for index in range(case.rows)]
    drafts = [Draft(DRAFTER, case.depths, logprobs) for logprobs in given.logprobs]
    start = perf_counter_ns()
    plan = controller.plan(rows)
    planned = perf_counter_ns()
    if not plan.drafts:  # plain decoding is timed now and then
        controller.learn(plain_outcome(rows, plan, scatter))
        return one_turn(controller, case, given, scatter)
    assert all(offer.drafter for offer in plan.offers), "the case means every row to draft"
    begin = perf_counter_ns()
    forest = controller.arrange(plan, rows, drafts)
    arranged = perf_counter_ns()
    outcome = step_outcome(rows, plan, drafts, given.ranks, forest)
    outcome = outcome._replace(verify_ms=outcome.verify_ms * scatter, draft_ms=outcome.draft_ms * scatter)
    told = perf_counter_ns()
    controller.learn(outcome)
    learned = perf_counter_ns()
    return Turn((planned - start) / 1e3, (arranged - begin) / 1e3, (learned - told) / 1e3, forest.num_nodes)


def plain_outcome(rows: list[Row], plan: Plan, scatter: float) -> StepOutcome:
    """What the engine would report of a step without drafts."""
    shares = [RowOutcome(row, PLAIN, 0, 0, 1) for row in rows]
    return StepOutcome(shares, len(rows), FLAT(len(rows)) * scatter, plan=plan)


def step_outcome(
    rows: list[Row], plan: Plan, drafts: list[Draft], true_ranks: np.ndarray, forest: Forest
) -> StepOutcome:
    """What the engine would report: verdicts, times, and the evidence of each draft."""
    nodes = np.bincount(forest.row, minlength=len(rows)).tolist()
    shares, evidence = [], []
    for i, accepted in enumerate(accepted_depths(forest, true_ranks)):
        offer, draft, ranks = plan.offers[i], drafts[i], true_ranks[i]
        shares.append(RowOutcome(rows[i], offer, nodes[i], accepted, accepted + 1, draft=draft))
        outside = np.flatnonzero(ranks < 0)
        known = int(outside[0]) + 1 if len(outside) else len(ranks)
        assert draft.logprobs is not None
        known_logprobs = draft.logprobs[:known]
        evidence.append(Evidence(DRAFTER, "", known_logprobs, ranks[:known], request_id=rows[i].request_id))
    num_tokens = len(rows) + forest.num_nodes
    return StepOutcome(shares, num_tokens, FLAT(num_tokens), DRAFT_MS, evidence, plan=plan)


def run_case(case: Case, seed: int) -> list[Turn]:
    random = np.random.default_rng(seed)
    pool = [honest_drafts(case, random) for _ in range(64)]
    scatters = np.exp(SPREAD * random.standard_normal(case.repeats + 50))
    controller = warm_controller(case)
    gc.collect()
    turns = [one_turn(controller, case, pool[i % 64], float(s)) for i, s in enumerate(scatters)]
    return turns[50:]


@dataclass(frozen=True)
class Quantiles:
    """Microseconds of one call."""

    median: float
    p90: float

    @classmethod
    def of(cls, values: list[float]) -> Quantiles:
        return cls(round(float(np.median(values)), 2), round(float(np.quantile(values, 0.9)), 2))

    def __str__(self) -> str:
        return f"{self.median:.0f} / {self.p90:.0f}"


@dataclass(frozen=True)
class Result:
    """What a case cost. The bar is for `decide`: plan and arrange together, by the median."""

    case: str
    nodes: float
    plan_us: Quantiles
    arrange_us: Quantiles
    decide_us: Quantiles
    learn_us: Quantiles
    bar_us: float
    met: bool


def summary(case: Case, turns: list[Turn]) -> Result:
    decide = Quantiles.of([turn.plan_us + turn.arrange_us for turn in turns])
    return Result(
        case=case.name,
        nodes=float(np.mean([turn.nodes for turn in turns])),
        plan_us=Quantiles.of([turn.plan_us for turn in turns]),
        arrange_us=Quantiles.of([turn.arrange_us for turn in turns]),
        decide_us=decide,
        learn_us=Quantiles.of([turn.learn_us for turn in turns]),
        bar_us=case.bar_us,
        met=decide.median <= case.bar_us,
    )


LINE = "{:<20} {:>6} {:>13} {:>13} {:>13} {:>6} {:>4} {:>13}"


def show(results: list[Result]) -> None:
    of = machine()
    print(f"{of['cpu']}, Python {of['python']}, numpy {of['numpy']}, one thread; microseconds, median / p90")
    print(LINE.format("case", "nodes", "plan", "arrange", "both", "bar", "met", "learn"))
    for one in results:
        calls = [str(call) for call in (one.plan_us, one.arrange_us, one.decide_us)]
        met = "yes" if one.met else "NO"
        print(LINE.format(one.case, f"{one.nodes:.1f}", *calls, f"{one.bar_us:.0f}", met, str(one.learn_us)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decision", description=__doc__)
    parser.add_argument("--json", metavar="PATH", help="result file (default bench/results/decision.json)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = [summary(case, run_case(case, options.seed)) for case in CASES]
    show(results)
    config = {"policy": "auto", "seed": options.seed, "spread": SPREAD, "cases": [asdict(c) for c in CASES]}
    path = write_result("decision", config, [asdict(result) for result in results], options.json)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
