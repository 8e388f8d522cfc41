"""The drafter contract in an engine: the core is enough, and what a drafter does wrong costs bets only."""

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.equivalence.world import VOCAB, Job, World, alone, drive, is_clean, make_engine, prompt
from wager.draft import DRAFTERS
from wager.draft.base import Drafter, DraftRow, KeptTokens, Proposal
from wager.draft.kind import DrafterKind
from wager.engine.engine import Engine
from wager.nn.noise import NoiseSource
from wager.records import SamplingParams

POLICIES = (
    "ar",
    "fixed:4",
    "tree:8",
    "bod",
    "bod:chain",
    "bod:tree",
    "auto",
    "ema+fixed:4",
    "ema+auto",
    "entropy+tree:6",
    "entropy+bod",
)
PAGE = Path(__file__).parents[2] / "docs/drafters.md"


def documented_drafter() -> type[Drafter]:
    """The example of docs/drafters.md, as a reader would copy it."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    found: type[Drafter] = names["PairsDrafter"]
    return found


def jobs(temperature: float = 0.0) -> list[Job]:
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=11, ignore_eos=True)
    return [Job(prompt(index, 10 + 3 * index, period=4), params) for index in range(4)]


def engine_with(
    world: World, monkeypatch: pytest.MonkeyPatch, drafter: Drafter, policy: str, **settings: Any
) -> Engine:
    """An engine that finds this drafter in the registry, under its name."""
    monkeypatch.setitem(DRAFTERS, drafter.name, DrafterKind(lambda target, shape, source: drafter))
    engine = make_engine(world, drafter.name, policy, **settings)
    assert engine.drafters[drafter.name] is drafter
    engine.drafters.pop("lookup")
    return engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_documented_example_keeps_texts_under_every_policy(
    world: World, monkeypatch: pytest.MonkeyPatch, policy: str, temperature: float
) -> None:
    asked = jobs(temperature)
    tight = {"num_pages": 16, "page_size": 4, "prefill_chunk": 7, "max_rows": 3}
    engine = engine_with(world, monkeypatch, documented_drafter()(), policy, **tight)
    run = drive(engine, {0: list(enumerate(asked))}, {})
    assert [run.tokens(index) for index in range(4)] == alone(make_engine(world), asked)
    assert (run.verified > 0) == (policy != "ar")
    assert is_clean(engine) and engine.telemetry.drafter_failures == 0
    assert not vars(engine.drafters["pairs"])["_followers"]


class Guessing(Drafter):
    """Guesses a few tokens for every row, and does as a test says for the request named "bad"."""

    name = "guessing"

    def __init__(self) -> None:
        self.asked: list[Hashable] = []

    def propose(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        self.asked += [row.request_id for row in rows]
        return [self.bad() if row.request_id == "bad" else guess() for row in rows]

    def bad(self) -> Any:
        return guess()


def guess(depths: int = 3, ranks: int = 2) -> Proposal:
    ids = np.arange(depths * ranks, dtype=np.int64).reshape(depths, ranks)
    return Proposal(ids, np.full((depths, ranks), -1.0, np.float32))


def company(bad: str = "bad") -> dict[int, list[tuple[str, Job]]]:
    first, second, third, _ = jobs()
    return {0: [("good", first), (bad, second), ("fine", third)]}


def check(world: World, engine: Engine, names: Sequence[str], failures: int) -> None:
    """Runs three requests; their texts are exact, and only `names` drafted after the failure."""
    drafter = engine.drafters["guessing"]
    assert isinstance(drafter, Guessing)
    run = drive(engine, company(), {})
    want = alone(make_engine(world), [job for _, job in company()[0]])
    assert [run.tokens(name) for name, _ in company()[0]] == want
    assert engine.telemetry.drafter_failures == failures and engine.telemetry.failed_requests == 0
    assert set(drafter.asked[-4:]) == set(names)
    assert is_clean(engine)


FAULTY = {
    "token outside the vocabulary": guess()._replace(token_ids=np.full((3, 2), VOCAB, np.int64)),
    "negative token": guess()._replace(token_ids=np.full((3, 2), -1, np.int64)),
    "no depth": guess(depths=0),
    "wrong shape": guess()._replace(logprobs=np.zeros((2, 2), np.float32)),
    "one dimension": Proposal(np.ones(3, np.int64), None),
    "not a number": guess()._replace(logprobs=np.full((3, 2), np.nan, np.float32)),
    "not a proposal": "tokens",
}


@pytest.mark.parametrize("policy", ["fixed:2", "tree:6", "auto"])
@pytest.mark.parametrize("fault", FAULTY)
def test_a_faulty_proposal_costs_its_row_its_bets(
    world: World, monkeypatch: pytest.MonkeyPatch, policy: str, fault: str
) -> None:
    drafter = Guessing()
    drafter.bad = lambda: FAULTY[fault]  # type: ignore[method-assign]
    engine = engine_with(world, monkeypatch, drafter, policy)
    run = drive(engine, company(), {})
    want = alone(make_engine(world), [job for _, job in company()[0]])
    assert [run.tokens(name) for name, _ in company()[0]] == want
    assert drafter.asked.count("bad") == 1 and drafter.asked.count("good") >= 1
    assert engine.telemetry.drafter_failures == 1 and engine.telemetry.failed_requests == 0
    assert run.verified > 0 and is_clean(engine)


@pytest.mark.parametrize("answer", [[], [guess()], None], ids=["empty", "short", "none"])
def test_a_list_of_the_wrong_length_costs_all_rows_their_bets(
    world: World, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    drafter = Guessing()
    drafter.propose = lambda rows, noise: answer  # type: ignore[method-assign]
    engine = engine_with(world, monkeypatch, drafter, "fixed:2")
    run = drive(engine, company(), {})
    assert [run.tokens(name) for name, _ in company()[0]] == alone(
        make_engine(world), [job for _, job in company()[0]]
    )
    assert engine.telemetry.drafter_failures == 1 and not run.verified
    assert engine.telemetry.failed_requests == 0 and is_clean(engine)


def test_more_and_deeper_candidates_than_anybody_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Guessing()
    drafter.bad = lambda: Proposal(np.zeros((900, 2), np.int64), None)  # type: ignore[method-assign]
    engine = engine_with(world, monkeypatch, drafter, "tree:6")
    check(world, engine, ["good", "bad", "fine"], failures=0)


@pytest.mark.parametrize("method", ["keep", "forget", "adopt", "can_propose", "grade", "prepare_sharing"])
def test_an_exception_in_any_method_costs_bets_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    drafter = Guessing()

    def fail(*_: object) -> None:
        raise ValueError("injected")

    setattr(drafter, method, fail)
    engine = engine_with(world, monkeypatch, drafter, "fixed:2")
    run = drive(engine, company(), {})
    want = alone(make_engine(world), [job for _, job in company()[0]])
    assert [run.tokens(name) for name, _ in company()[0]] == want
    assert engine.telemetry.drafter_failures > 0 and engine.telemetry.failed_requests == 0
    assert is_clean(engine)
    delattr(drafter, method)
    assert drive(engine, {0: [("later", jobs()[3])]}, {}).verified > 0


@pytest.mark.parametrize("ending", ["end", "abort"])
def test_a_request_that_cannot_be_forgotten_still_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    drafter = Guessing()

    def forget(request_id: Hashable) -> None:
        if request_id == "bad":
            raise ValueError("injected")

    drafter.forget = forget  # type: ignore[method-assign]
    engine = engine_with(world, monkeypatch, drafter, "fixed:2")
    run = drive(engine, company(), {4: ["bad"]} if ending == "abort" else {})
    first, _, third = alone(make_engine(world), [job for _, job in company()[0]])
    assert [run.tokens("good"), run.tokens("fine")] == [first, third]
    assert run.last("bad").error is None
    assert engine.telemetry.drafter_failures > 0 and is_clean(engine)


def test_pages_that_cannot_be_copied_cost_bets_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, copies = Guessing(), list[int]()

    def fail(source: Any, target: Any) -> None:
        copies.append(len(source))
        raise ValueError("injected")

    drafter.copy_pages = fail  # type: ignore[method-assign]
    engine = engine_with(world, monkeypatch, drafter, "fixed:2", num_pages=64, page_size=2)
    run = drive(engine, company(), {})
    want = alone(make_engine(world), [job for _, job in company()[0]])
    assert [run.tokens(name) for name, _ in company()[0]] == want
    assert copies and engine.telemetry.drafter_failures == len(copies) and is_clean(engine)


class Reading(Guessing):
    """Notes which tokens of each request it was given features of."""

    name = "reading"
    feature_layers = (0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Hashable, int] = {}

    def can_propose(self, row: DraftRow) -> bool:
        assert self.known.get(row.request_id, 0) == len(row.tokens) - row.num_pending, "a gap"
        return True

    def keep(self, kept: Sequence[KeptTokens]) -> None:
        for item in kept:
            assert item.features is not None
            count = len(item.features if item.lines is None else item.lines)
            assert item.start == self.known.get(item.request_id, 0), "a gap"
            self.known[item.request_id] = item.start + count

    def forget(self, request_id: Hashable) -> None:
        self.known.pop(request_id, None)


def test_a_drafter_of_features_sees_every_token_whatever_is_shared_or_preempted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default its context is not shared, so no request starts behind tokens that it has not seen."""
    drafter = Reading()
    tight = {"num_pages": 14, "page_size": 4, "prefill_chunk": 7, "max_rows": 4}
    engine = engine_with(world, monkeypatch, drafter, "tree:4", **tight)
    same = [Job(jobs()[3].prompt, job.params) for job in jobs()]
    run = drive(engine, {0: list(enumerate(same[:3])), 12: [(3, same[3])]}, {})
    want = alone(make_engine(world), same)
    assert [run.tokens(index) for index in range(4)] == want and run.verified > 0
    assert engine.scheduler.num_preemptions > 0
    assert engine.telemetry.drafter_failures == 0 and is_clean(engine) and not drafter.known
