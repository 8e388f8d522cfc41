"""Thinking budgets inside speculation: the tokens of plain decoding with the same hook, one for one.

Columns: budget, length of the close, drafter, chain or tree, greedy or sampled, alone or eight at a time, and
marks that the model never writes, writes itself, or opens by itself. By default every pair of values meets,
for some of the budgets; all of 0 to 80 are marked slow. hook.py says what must be written.
"""

from collections.abc import Sequence
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

import pytest

from tests.equivalence.hook import Asked, Plain, Wanted, check, foreign, hooked, with_block
from tests.equivalence.world import World, drive, is_clean, make_engine, make_world, prompt
from wager.engine.engine import Engine
from wager.engine.sequence import Finish
from wager.records import ThinkingLimit

BUDGETS = range(81)
SOME = (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 40)
LENGTHS = (1, 2, 3, 4, 5, 6)
DRAFTERS = ("block-4", "block-8", "block-16", "chain", "lookup")
SHAPES = {"chain": "fixed:5", "tree": "tree:12"}
CHOICES: dict[str, tuple[tuple[str, float], ...]] = {"greedy": (), "sampled": (("temperature", 0.8),)}
BATCHES = (1, 8)
MARKS = ("foreign", "own", "opened")
AFTER = 12
"""Tokens behind the budget and the close."""
PLACE = 9
"""Where the model's own marks stand in its text."""


class Case(NamedTuple):
    """One request's budget and the engine it runs in."""

    budget: int
    num_close: int
    drafter: str
    shape: str
    choice: str
    batch: int
    marks: str


def grid(budgets: Sequence[int]) -> list[Case]:
    return [Case(*one) for one in product(budgets, LENGTHS, DRAFTERS, SHAPES, CHOICES, BATCHES, MARKS)]


@cache
def pairwise_cases() -> list[Case]:
    """A few cases in which every two values of different columns meet.

    Walked with a stride that is prime to the grid, so that neighbours differ in every column; until half way
    only those are taken that bring several new pairs.
    """
    cases = grid(SOME)
    missing = {pair for case in cases for pair in pairs_of(case)}
    chosen = []
    for step in range(len(cases)):
        case = cases[step * 4999 % len(cases)]
        fresh = missing & pairs_of(case)
        if len(fresh) > 3 or (fresh and step > len(cases) // 2):
            missing -= fresh
            chosen.append(case)
    return chosen


@cache
def pairs_of(case: Case) -> frozenset[tuple[tuple[int, object], ...]]:
    return frozenset(combinations(enumerate(case), 2))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("budget"))


@pytest.fixture(scope="module")
def plain(base: World) -> Plain:
    return Plain(base)


@pytest.fixture(scope="module")
def engines(base: World) -> dict[tuple[str, str], Engine]:
    worlds = {f"block-{size}": with_block(base, size) for size in (4, 8, 16)}
    return {
        (drafter, shape): make_engine(worlds.get(drafter, base), drafter.partition("-")[0], SHAPES[shape])
        for drafter, shape in product(DRAFTERS, SHAPES)
    }


def wanted(plain: Plain, case: Case, seed: int) -> Wanted:
    ids = prompt(seed % 5, 11 + seed % 3, period=4 if case.drafter == "lookup" else 0)
    asked = Asked(ids, seed, CHOICES[case.choice])
    total = case.budget + case.num_close + AFTER
    text = plain.text(asked, max(total, 70))
    opening, *closing = foreign(text[:total], case.num_close + 1)
    limit = ThinkingLimit(case.budget, (opening,), tuple(closing), True, stop_repeats=False)
    if case.marks == "own":
        own = tuple(text[PLACE : PLACE + case.num_close])
        limit = ThinkingLimit(case.budget, (opening,), own, True, stop_repeats=False)
    if case.marks == "opened":
        limit = ThinkingLimit(case.budget, tuple(text[PLACE : PLACE + 2]), tuple(closing), stop_repeats=False)
    return hooked(plain, asked, limit, total)


def run_together(engine: Engine, plain: Plain, cases: Sequence[Case]) -> None:
    """One request per case, all at once, every one judged."""
    jobs = [wanted(plain, case, 7 + i) for i, case in enumerate(cases)]
    run = drive(engine, {0: [(i, want.job) for i, want in enumerate(jobs)]}, {})
    for number, want in enumerate(jobs):
        check(run, number, want)
        assert run.last(number).finish is Finish.LENGTH
    assert is_clean(engine) and engine.telemetry.drafter_failures == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_some_budgets_in_all_pairs(
    engines: dict[tuple[str, str], Engine], plain: Plain, drafter: str
) -> None:
    for case in pairwise_cases():
        if case.drafter == drafter:
            place = SOME.index(case.budget)
            company = [case._replace(budget=SOME[(place + i) % len(SOME)]) for i in range(case.batch)]
            run_together(engines[case.drafter, case.shape], plain, company)


def test_pairs_cover_the_grid() -> None:
    met = {pair for case in pairwise_cases() for pair in pairs_of(case)}
    assert met == {pair for case in grid(SOME) for pair in pairs_of(case)}
    assert len(pairwise_cases()) < len(grid(SOME)) / 25


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("num_close", LENGTHS)
@pytest.mark.parametrize("marks", MARKS)
def test_every_budget(
    engines: dict[tuple[str, str], Engine], plain: Plain, drafter: str, num_close: int, marks: str
) -> None:
    """Every one with foreign marks; with the model's own, every fifth."""
    for batch, shape, choice in product(BATCHES, SHAPES, CHOICES):
        budgets = BUDGETS if marks == "foreign" else BUDGETS[::5]
        cases = [Case(n, num_close, drafter, shape, choice, batch, marks) for n in budgets]
        for start in range(0, len(cases), batch):
            run_together(engines[drafter, shape], plain, cases[start : start + batch])
