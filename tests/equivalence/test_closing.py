"""Closing a thinking span in company: soft closes, tight memory, endings, details, and guessing around it.

Judged by hook.py, or for soft closes by transformers' own probabilities. Every engine here emits several
tokens a step.
"""

from itertools import pairwise
from typing import Any

import pytest

from tests.equivalence.hook import (
    KNOWN_TOKENS,
    Asked,
    Plain,
    Wanted,
    check,
    closed_at,
    first,
    foreign,
    hooked,
    with_block,
)
from tests.equivalence.world import Job, Run, World, drive, is_clean, make_engine, make_world, prompt
from tests.target.reference import choices, softmax
from wager.engine.engine import Engine
from wager.engine.sequence import Finish, Origin
from wager.errors import RequestError
from wager.records import CloseKind, SamplingParams, ThinkingLimit

ENGINES = [("chain", "fixed:5"), ("chain", "tree:10"), ("block", "tree:12"), ("block", "auto")]
SAMPLED = (("temperature", 0.8),)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = with_block(make_world(tmp_path_factory.mktemp("closing")), 16)
    made.reference.double()
    return made


@pytest.fixture(scope="module")
def plain(base: World) -> Plain:
    return Plain(base)


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def engine(base: World, request: pytest.FixtureRequest) -> Engine:
    return make_engine(base, *request.param)


def asked(seed: int, length: int = 12, choice: tuple[tuple[str, float], ...] = SAMPLED) -> Asked:
    return Asked(prompt(seed, length), seed, choice)


def limit_for(plain: Plain, one: Asked, budget: int, num_close: int = 3, **more: Any) -> ThinkingLimit:
    """With marks that the text does not use."""
    opening, *closing = foreign(plain.text(one, 100)[: budget + 30], num_close + 1)
    return ThinkingLimit(budget, (opening,), tuple(closing), True, stop_repeats=False, **more)


def run_alone(engine: Engine, job: Job) -> Run:
    run = drive(engine, {0: [("one", job)]}, {})
    assert is_clean(engine)
    return run


# -- soft closes


def soft_wanted(base: World, plain: Plain, one: Asked, ratio: float, after: int) -> Wanted:
    """Where transformers' own probabilities say that the close is likely enough."""
    (mark,) = foreign(plain.text(one, 40), 1)
    limit = ThinkingLimit(None, (), (mark, 12, 13), True, (), ratio, after, stop_repeats=False)
    job = one.job(40, thinking=limit)
    for place, (token, raw) in enumerate(choices(base.reference, one.prompt, one.job(40).params)):
        probs = softmax(raw)
        if place >= after and probs[mark] >= ratio * probs[token]:
            return closed_at(plain, one, job, place, 0, CloseKind.SOFT)
    return Wanted(job, plain.text(one, 40), range(0), CloseKind.NONE, 40)


@pytest.mark.parametrize(("ratio", "after"), [(1.0, 0), (0.5, 3), (0.3, 9), (1e-9, 0), (1e-9, 17), (1e5, 0)])
def test_soft_closes(base: World, plain: Plain, engine: Engine, ratio: float, after: int) -> None:
    jobs = [soft_wanted(base, plain, asked(seed), ratio, after) for seed in (1, 2, 3)]
    run = drive(engine, {0: [(i, want.job) for i, want in enumerate(jobs)]}, {})
    for number, want in enumerate(jobs):
        check(run, number, want)
    assert is_clean(engine)
    if ratio == 1e-9:
        assert [want.num_thinking for want in jobs] == [after] * 3
    if ratio == 1e5:
        assert {want.kind for want in jobs} == {CloseKind.NONE}


def test_soft_closes_come_in_the_middle_too(base: World, plain: Plain) -> None:
    """Or the test above would say nothing of a close inside an accepted path."""
    found = [soft_wanted(base, plain, asked(seed), 1.0, 0).num_thinking for seed in (1, 2, 3)]
    assert all(0 < count < 40 for count in found)


# -- company, memory, reuse


@pytest.mark.parametrize("choice", [(), SAMPLED], ids=["greedy", "sampled"])
def test_in_tight_memory_and_beside_rows_without_limits(
    base: World, plain: Plain, choice: tuple[tuple[str, float], ...]
) -> None:
    engine = make_engine(base, "chain", "fixed:5", num_pages=16, page_size=4, prefill_chunk=16)
    jobs = []
    for seed in range(6):
        one = asked(seed, 9 + 2 * seed, choice)
        jobs.append(hooked(plain, one, limit_for(plain, one, 5 * seed, 1 + seed % 4), 34))
    free = [asked(seed, 10, choice) for seed in (11, 12)]
    joins = {
        0: [*enumerate(jobs[:3])],
        4: [(f"free-{i}", one.job(20)) for i, one in enumerate(free)],
        6: [(i, jobs[i]) for i in (3, 4, 5)],
    }
    run = drive(
        engine,
        {step: [(i, j.job if isinstance(j, Wanted) else j) for i, j in who] for step, who in joins.items()},
        {},
    )
    for number, want in enumerate(jobs):
        check(run, number, want)
    for i, one in enumerate(free):
        assert run.tokens(f"free-{i}") == plain.text(one, 20)
        assert run.last(f"free-{i}").close is None
    assert engine.scheduler.num_preemptions > 0 and is_clean(engine)


def test_from_shared_pages(base: World, plain: Plain) -> None:
    """The same prompt again, its close read with it: the cache of one budget does not leak into another."""
    engine = make_engine(base, "block", "tree:12", page_size=4)
    one = asked(4, 21)
    for budget in (0, 6, 0, 25, 6):
        want = hooked(plain, one, limit_for(plain, one, budget), 40)
        run = run_alone(engine, want.job)
        check(run, "one", want)
    last = run.last("one").sequence
    assert last is not None and last.num_reused > 0


# -- endings


@pytest.mark.parametrize("total", [1, 2, 7, 8, 9, 10, 11, 14])
def test_the_length_wins(plain: Plain, engine: Engine, total: int) -> None:
    one = asked(5)
    want = hooked(plain, one, limit_for(plain, one, 8), total)
    run = run_alone(engine, want.job)
    check(run, "one", want)
    assert run.last("one").finish is Finish.LENGTH and len(run.tokens("one")) == total


def test_nothing_but_a_close_that_does_not_fit(plain: Plain, engine: Engine) -> None:
    one = asked(5)
    run = run_alone(engine, hooked(plain, one, limit_for(plain, one, 0, 4), 2).job)
    (event,) = run.events
    assert event.finish is Finish.LENGTH and event.origins == (Origin.FORCED,) * 2
    assert event.close == (CloseKind.HARD, 0, 0) and not run.reports


def test_a_stop_token_before_the_close_and_behind_it(plain: Plain, engine: Engine) -> None:
    one = asked(6)
    limit = limit_for(plain, one, 10)
    whole = hooked(plain, one, limit, 40).tokens
    for place in (4, 20, 30):
        params = one.job(40, thinking=limit, stop_token_ids=[whole[place]]).params
        run = run_alone(engine, Job(one.prompt, params))
        stop = whole.index(whole[place])
        assert run.tokens("one") == whole[: stop + 1] and run.last("one").finish is Finish.STOP
        close = run.last("one").close
        assert close is not None and close.kind is (CloseKind.NONE if stop < 10 else CloseKind.HARD)


def test_min_tokens_are_counted_over_the_close(base: World, engine: Engine) -> None:
    """A forced token counts as written: the same text, whoever guesses."""
    one = asked(8)
    limit = ThinkingLimit(5, (), (61, 62, 63), True)
    ends = tuple(range(0, 60, 3))
    job = one.job(30, thinking=limit, stop_token_ids=ends, min_tokens=12)
    want = run_alone(make_engine(base), job).tokens("one")
    assert run_alone(engine, job).tokens("one") == want
    assert want[5:8] == [61, 62, 63] and not set(want[:5] + want[8:12]) & set(ends)


def test_ids_outside_the_vocabulary_are_refused(engine: Engine) -> None:
    bad = SamplingParams(thinking=ThinkingLimit(3, (1,), (2, 640)))
    with pytest.raises(RequestError, match="thinking"):
        engine.add("bad", [1, 2, 3], bad)


# -- what is told of each token


def test_details_and_log_probabilities_fit_the_tokens(base: World, plain: Plain, engine: Engine) -> None:
    one = asked(9)
    limit = limit_for(plain, one, 9)
    run = run_alone(engine, one.job(40, thinking=limit, logprobs=1, token_details=True))
    last = run.last("one").sequence
    assert last is not None
    details = [detail for event in run.events for detail in event.details]
    assert [detail.origin for detail in details] == [origin.value for origin in last.origins]
    assert len(last.logprobs) == len(details) == 40
    for detail, logprobs in zip(details, last.logprobs, strict=True):
        assert (logprobs is None) == (detail.origin == "forced")
        assert (detail.depth > 0) == (detail.origin == "guess")
        assert (detail.confidence is not None) == (detail.origin == "guess")
        assert detail.confidence is None or 0.0 < detail.confidence <= 1.0
    for event in run.events:
        guesses = [detail.depth for detail in event.details if detail.origin == "guess"]
        assert guesses == list(range(1, len(guesses) + 1))
        assert {detail.bet for detail in event.details} <= {event.bet}
    silent = run_alone(engine, one.job(40, thinking=limit))
    assert silent.tokens("one") == run.tokens("one") and not any(event.details for event in silent.events)


# -- guessing goes on


def steps_of(run: Run) -> list[tuple[int, bool]]:
    """Of every step after the prompt's, the position of its first token and whether it guessed."""
    found, position = [], 0
    for event in run.events:
        found.append((position, event.bet > 0))
        position += len(event.token_ids)
    return found[1:]


@pytest.mark.parametrize(
    ("drafter", "policy", "num_close"),
    [("chain", "fixed:5", 1), ("block", "tree:12", KNOWN_TOKENS - 1), ("block", "auto", 3)],
)
def test_guessing_goes_on_around_the_close(
    base: World, plain: Plain, drafter: str, policy: str, num_close: int
) -> None:
    engine = make_engine(base, drafter, policy)
    near, far = [], []
    for seed, budget in enumerate((120, 131, 140)):
        one = asked(seed + 20)
        marks = tuple(range(50, 50 + num_close))
        limit = ThinkingLimit(budget, (), marks, True, (63,) * 9, stop_repeats=False)
        run = run_alone(engine, one.job(budget + num_close + 110, thinking=limit))
        close = run.last("one").close
        assert close is not None and close.kind is CloseKind.HARD and close.thinking_tokens == budget
        for position, guessed in steps_of(run):
            (near if abs(position - budget) <= 48 else far).append(guessed)
    assert sum(near) / len(near) >= 0.9 * sum(far) / len(far)
    assert sum(near) > 20


def test_the_first_step_behind_the_close_guesses(base: World, plain: Plain, engine: Engine) -> None:
    """Mostly: `auto` goes by the machine's own times, and may decode plainly in a step of its choice."""
    bets = []
    for seed in range(30, 35):
        one = asked(seed)
        run = run_alone(engine, one.job(60, thinking=limit_for(plain, one, 20, 5)))
        (behind,) = [
            after for before, after in pairwise(run.events) if before.origins[-1:] == (Origin.FORCED,)
        ]
        bets.append(behind.bet)
    assert sum(bet > 0 for bet in bets) >= 3


def test_no_tree_reaches_over_the_trigger(plain: Plain, base: World) -> None:
    engine = make_engine(base, "chain", "fixed:5")
    one = asked(31)
    run = run_alone(engine, one.job(50, thinking=limit_for(plain, one, 17)))
    written = 0
    for event in run.events:
        if written < 17:
            assert event.bet < 17 - written
        written += len(event.token_ids)
    assert first((Origin.FORCED,), run.last("one").sequence.origins) == 17  # type: ignore[arg-type,union-attr]
