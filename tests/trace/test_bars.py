"""What `auto` promises, replayed: it does not lose to plain decoding, it notices changes, it learns costs.

Drafts are made here (a drafter whose confidence says nothing about its worth) or come from the trace that
ships. Every bar is a number of tokens, steps or milliseconds of the cost curve, never of this machine's time.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest

from wager.costs import CostModel
from wager.policy import Experience
from wager.policy.ledger import START_ALLOWANCE
from wager.trace import Noise, Replay, ReplayOptions, Step, Trace, best_fixed, demo_traces, load_costs, replay

CURVES = ("cpu", "h200", "moe")
LENGTH, CHANGE = 5000, 2500
FLOOR = 0.01
DEMO = {(trace.kind, trace.temperature): trace for trace in demo_traces().traces}
CELLS = [(*content, curve) for content, curve in product(DEMO, CURVES)]
DISTURBED = {"spread": 0.2, "stall_chance": 0.01, "stall_factor": 20.0}


def drafted_by(quality: np.ndarray, seed: int) -> Trace:
    """One sequence drafted by someone who is always confident and right with chance `quality[position]`.

    Where the best guess is wrong the right token is among the others by pure chance: 8 of 8,192 words.
    """
    random = np.random.default_rng(seed)
    shape = (1, len(quality), 15)
    best = random.uniform(0.75, 0.98, shape)[..., None]
    others = -np.sort(-random.dirichlet(np.ones(8), shape)[..., :7])
    logprobs = np.log(np.concatenate([best, (1.0 - best) * others], axis=3))
    by_chance = np.where(random.random(shape) < 8 / 8192, random.integers(0, 8, shape), -1)
    ranks = np.where(random.random(shape) < quality[None, :, None], 0, by_chance)
    return Trace("made-up", "t0", logprobs.astype(np.float32), ranks.astype(np.int16))


def turning(before: float, after: float) -> np.ndarray:
    return np.where(np.arange(LENGTH) < CHANGE, before, after)


@cache
def demo_run(kind: str, temperature: str, curve: str) -> Replay:
    return replay(DEMO[kind, temperature], load_costs(curve), "auto")


def lowest_above_floor(run: Replay) -> float:
    """How near the account came to its floor: the stated part of the time, and the last step that bet."""
    elapsed = last_bet = 0.0
    nearest = np.inf
    for step in run.steps:
        elapsed += step.time_ms
        last_bet = step.time_ms if step.drafted else last_bet
        nearest = min(nearest, step.balance_ms + FLOOR * elapsed + last_bet)
    return float(nearest)


# -- a worthless drafter


def assert_worthless_is_cheap(curve: str, seed: int) -> None:
    run = replay(drafted_by(np.zeros(LENGTH), seed), load_costs(curve), "auto")
    assert run.tokens == LENGTH
    assert run.drafted_steps > 20, "it must go on looking"
    assert run.speedup >= 0.99


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_worthless_drafter_costs_one_percent(curve: str, seed: int) -> None:
    assert_worthless_is_cheap(curve, seed)


@pytest.mark.slow
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_worthless_drafter_costs_one_percent_for_many_seeds(curve: str, seed: int) -> None:
    assert_worthless_is_cheap(curve, seed)


def test_the_same_drafter_is_dear_without_a_ledger() -> None:
    """So the bar above can fail: a policy that does not look pays far more than one percent."""
    run = replay(drafted_by(np.zeros(500), 0), load_costs("cpu"), "fixed:3")
    assert run.speedup < 0.7


# -- a drafter that changes


def used_after(run: Replay, at: int) -> int:
    """Tokens from `at` until bets are made in most of twenty steps in a row; the rest of the run if never."""
    steps = [step for step in run.steps if step.start >= at]
    for i in range(len(steps) - 20):
        if sum(step.num_nodes > 0 for step in steps[i : i + 20]) >= 14:
            return steps[i].start - at
    return run.tokens - at


# On the steep curve a drafter with 0.7 a depth gains so little that waiting for it costs next to nothing.
GOOD = [("cpu", 0.7), ("cpu", 0.9), ("h200", 0.7), ("h200", 0.9), ("moe", 0.9)]


def assert_returns(curve: str, quality: float, seed: int) -> None:
    run = replay(drafted_by(turning(0.0, quality), seed), load_costs(curve), "auto")
    assert used_after(run, CHANGE) <= 200


@pytest.mark.parametrize(("curve", "quality"), GOOD)
def test_a_drafter_that_turns_good_is_used_within_200_tokens(curve: str, quality: float) -> None:
    for seed in range(2):
        assert_returns(curve, quality, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("curve", "quality"), GOOD)
def test_a_drafter_that_turns_good_is_used_within_200_tokens_for_many_seeds(
    curve: str, quality: float
) -> None:
    for seed in range(2, 10):
        assert_returns(curve, quality, seed)


@pytest.mark.parametrize("curve", CURVES)
def test_a_drafter_that_turns_good_pays_in_the_end(curve: str) -> None:
    run = replay(drafted_by(turning(0.0, 0.9), 0), load_costs(curve), "auto")
    assert run.speedup > 1.2


def dropped_after(steps: list[Step]) -> int:
    """Steps until fewer than seven of twenty draft: what is left are probes."""
    for i in range(len(steps)):
        if sum(step.drafted for step in steps[i : i + 20]) < 7:
            return i
    return len(steps)


def assert_dropped(curve: str, quality: float, seed: int) -> None:
    run = replay(drafted_by(turning(quality, 0.0), seed), load_costs(curve), "auto")
    after = [step for step in run.steps if step.start >= CHANGE]
    assert dropped_after(after) <= 50
    assert sum(step.drafted for step in after) < len(after) / 10, "it stays dropped but for probes"


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("quality", [0.7, 0.9])
def test_a_drafter_that_turns_bad_is_dropped_within_50_steps(curve: str, quality: float) -> None:
    assert_dropped(curve, quality, 0)


@pytest.mark.slow
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("quality", [0.7, 0.9])
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_drafter_that_turns_bad_is_dropped_within_50_steps_for_many_seeds(
    curve: str, quality: float, seed: int
) -> None:
    assert_dropped(curve, quality, seed)


# -- the floor


@pytest.mark.parametrize("curve", CURVES)
def test_the_account_keeps_its_floor_at_every_step(curve: str) -> None:
    costs = load_costs(curve)
    runs = [demo_run(*content, curve) for content in DEMO]
    runs += [replay(drafted_by(quality, 0), costs, "auto") for quality in (np.zeros(2000), turning(0.8, 0.0))]
    # The steps of a start, and the one bet that failed last.
    assert min(lowest_above_floor(run) for run in runs) >= -(START_ALLOWANCE + 1.0) * costs.plain_ms()


def test_a_policy_without_the_ledger_breaks_the_floor() -> None:
    run = replay(drafted_by(np.zeros(200), 0), load_costs("cpu"), "fixed:3")
    assert lowest_above_floor(run) < -load_costs("cpu").plain_ms()


# -- costs that were told wrongly, and times that scatter


def late_rate(traces: list[Trace], curve: str, scale: float) -> float:
    """Tokens per millisecond after 500 tokens, started with all costs told `scale` times too high."""
    costs = load_costs(curve)
    told = CostModel(
        costs.verify.scaled(scale).by_size, draft_share=scale * costs.draft_ms / costs.plain_ms()
    )
    run = replay(traces, costs, "auto", ReplayOptions(experience=Experience(told)))
    late = [step for step in run.steps if step.start >= 500]
    return sum(step.emitted for step in late) / sum(step.time_ms for step in late)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("temperature", ["t0", "t08"])
def test_wrong_costs_are_forgotten_after_500_tokens(curve: str, temperature: str) -> None:
    traces = [DEMO[kind, temperature] for kind in ("code", "prose", "dialog")]
    right = late_rate(traces, curve, 1.0)
    assert late_rate(traces, curve, 0.1) >= 0.95 * right
    assert late_rate(traces, curve, 10.0) >= 0.97 * right


def assert_holds_disturbed(kind: str, temperature: str, curve: str, seeds: range) -> None:
    """Noise alone moves the speed-up of so short a run by a hundredth."""
    runs = [ReplayOptions(noise=Noise(**DISTURBED, seed=seed)) for seed in seeds]
    found = [replay(DEMO[kind, temperature], load_costs(curve), "auto", run).speedup for run in runs]
    assert np.mean(found) >= 0.97 and min(found) >= 0.96


@pytest.mark.parametrize(("kind", "temperature", "curve"), CELLS)
def test_noise_and_stalls_do_not_make_it_lose(kind: str, temperature: str, curve: str) -> None:
    assert_holds_disturbed(kind, temperature, curve, range(2))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "temperature", "curve"), CELLS)
def test_noise_and_stalls_do_not_make_it_lose_for_many_seeds(kind: str, temperature: str, curve: str) -> None:
    assert_holds_disturbed(kind, temperature, curve, range(2, 10))


# -- against the best fixed length in hindsight


@cache
def over_best_fixed(kind: str, temperature: str, curve: str) -> float:
    best = best_fixed(DEMO[kind, temperature], load_costs(curve))
    return best.run.time_ms / demo_run(kind, temperature, curve).time_ms


# A cell of the shipped trace is a few hundred tokens, of which learning takes the first ones; a fixed length
# chosen in hindsight has nothing to learn and may be lucky in one of them, but hardly in many.


@pytest.mark.parametrize(("kind", "temperature", "curve"), CELLS)
def test_no_cell_of_the_demo_is_far_below_hindsight(kind: str, temperature: str, curve: str) -> None:
    assert over_best_fixed(kind, temperature, curve) >= 0.88
    assert demo_run(kind, temperature, curve).speedup >= 0.98


def test_nearly_every_cell_of_the_demo_keeps_up_with_hindsight() -> None:
    behind = [cell for cell in CELLS if over_best_fixed(*cell) < 0.97]
    assert len(behind) <= len(CELLS) / 10, behind


def test_on_average_it_is_well_above_hindsight() -> None:
    ratios = [over_best_fixed(*cell) for cell in CELLS]
    assert float(np.exp(np.mean(np.log(ratios)))) >= 1.08
