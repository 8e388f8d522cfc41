"""Every drafter, policy, way of choosing and company: the tokens of plain decoding, one for one.

Strict in float64. By default every pair of values meets in some case; the whole grid is marked slow. Each
case also shows that it was not idle: guesses were verified where they should be, and pages really ran out
where the memory is tight.
"""

from functools import cache
from itertools import combinations, product

import pytest

from tests.equivalence.world import Job, Run, World, alone, drive, is_clean, make_engine, prompt
from wager.engine.engine import Engine
from wager.engine.sequence import Finish
from wager.records import SamplingParams

DRAFTERS = ("none", "lookup", "chain", "block")
POLICIES = ("ar", "fixed:4", "tree:12", "bod", "bod:tree", "auto", "ema+fixed:4")
CHOICES = {
    "greedy": {},
    "sampled": {"temperature": 0.8},
    "filtered": {"temperature": 1.0, "top_p": 0.85, "top_k": 20, "min_p": 0.01},
    "penalised": {
        "temperature": 0.7,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
        "logit_bias": {3: 1.5, 10: -4.0},
    },
}
PLACES = {
    "alone": {},
    "crowd": {"max_rows": 5, "prefill_chunk": 7, "max_step_tokens": 24},
    "tight": {"num_pages": 16, "page_size": 4, "prefill_chunk": 16},
}
GRID = tuple(product(DRAFTERS, POLICIES, CHOICES, PLACES))
Case = tuple[str, str, str, str]


def pairwise_cases() -> list[Case]:
    """A few cases in which every two values of different columns meet, found greedily."""
    missing = {pair for case in GRID for pair in pairs_of(case)}
    chosen: list[Case] = []
    while missing:
        best = max(GRID, key=lambda case: len(missing & pairs_of(case)))
        missing -= pairs_of(best)
        chosen.append(best)
    return chosen


@cache
def pairs_of(case: Case) -> frozenset[tuple[tuple[int, str], ...]]:
    return frozenset(combinations(enumerate(case), 2))


def jobs_of(choice: str) -> list[Job]:
    """Seven requests of different lengths; every second prompt repeats itself."""
    values = CHOICES[choice]
    return [
        Job(
            prompt(i, 9 + 3 * i, period=4 if i % 2 else 0),
            SamplingParams(max_tokens=18 + 2 * i, seed=100 + i, ignore_eos=True, **values),
        )
        for i in range(7)
    ]


@pytest.fixture(scope="module")
def plain(world: World) -> dict[str, list[list[int]]]:
    """What plain decoding writes, each request alone, without drafter or reuse."""
    engine = make_engine(world, prefix_reuse=False)
    return {choice: alone(engine, jobs_of(choice)) for choice in CHOICES}


def run_case(engine: Engine, jobs: list[Job], place: str) -> Run:
    """The jobs under ids 0..6; in company they come and go, and others among them are aborted."""
    numbered = list(enumerate(jobs))
    if place == "alone":
        whole = Run()
        for number, job in numbered:
            one = drive(engine, {0: [(number, job)]}, {})
            whole.events += one.events
            whole.reports += one.reports
        return whole
    others = [(f"other-{i}", Job(job.prompt[::-1], job.params)) for i, job in numbered[:3]]
    joins = {0: [*numbered[:2], others[0]], 2: [numbered[2], others[1]], 3: numbered[3:6], 6: [others[2]]}
    joins[9] = numbered[6:]
    aborts = {1: ["other-0"], 5: ["other-1"], 8: ["other-2"]}
    return drive(engine, joins, aborts)


def check_case(world: World, plain: dict[str, list[list[int]]], case: Case) -> None:
    drafter, policy, choice, place = case
    engine = make_engine(world, drafter, policy, **PLACES[place])
    run = run_case(engine, jobs_of(choice), place)
    for number, want in enumerate(plain[choice]):
        assert run.tokens(number) == want
        assert run.last(number).finish is Finish.LENGTH
    assert is_clean(engine) and engine.telemetry.drafter_failures == 0
    guesses = drafter != "none" and policy != "ar"
    assert (run.verified > 0) == guesses
    if drafter == "chain" and guesses:
        assert run.accepted > 20
    if drafter == "block" and policy in ("tree:12", "bod:tree", "auto"):
        assert run.accepted > 0
    if drafter == "lookup" and guesses and choice == "greedy":
        assert run.accepted > 10
    if place == "tight":
        assert engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("case", pairwise_cases(), ids="-".join)
def test_same_tokens_as_plain_decoding(world: World, plain: dict[str, list[list[int]]], case: Case) -> None:
    check_case(world, plain, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", GRID, ids="-".join)
def test_whole_grid(world: World, plain: dict[str, list[list[int]]], case: Case) -> None:
    check_case(world, plain, case)


def test_pairs_cover_the_grid() -> None:
    met = {pair for case in pairwise_cases() for pair in pairs_of(case)}
    assert met == {pair for case in GRID for pair in pairs_of(case)}
    assert len(pairwise_cases()) < len(GRID) / 8
