"""Several steps in one native call: the texts, the accounts and the bets of steps taken one by one."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.conftest import add_tokenizer
from tests.equivalence.world import Job, World, drive, make_engine, make_world, prompt, steady
from wager.config import EngineConfig, with_values
from wager.engine.assemble import build_engine
from wager.engine.engine import Engine
from wager.engine.multi_step import MultiSteps
from wager.engine.sequence import Finish
from wager.nn.native.library import Library
from wager.nn.native.steps import Ending, NativeSteps, TakenSteps, Trust
from wager.policy import Draft
from wager.policy.base import limits_of, stack_scores
from wager.records import SamplingParams
from wager.tree import build_forest

SETTINGS: dict[str, Any] = {"dtype": "float32", "layout": "auto", "threads": 2, "native": "on"}
POLICIES = ["ar", "fixed:4", "tree:12", "auto"]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.1},
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(tmp_path_factory.mktemp("speaking"), seed=4, vocab_size=360)
    add_tokenizer(Path(made.target))
    return made


def engine_of(world: World, policy: str = "ar", drafter: str = "block", **settings: Any) -> Engine:
    return make_engine(world, drafter, policy, **(SETTINGS | settings))


def demo(policy: str, **settings: Any) -> Engine:
    """The pair that ships, whose guesses are often right."""
    values = {
        "model": "demo",
        "policy": policy,
        "max_context": 512,
        "calibrate": False,
        **SETTINGS,
        **settings,
    }
    engine = build_engine(with_values(EngineConfig(), **values))
    steady(engine)
    return engine


def one_by_one(engine: Engine) -> Engine:
    engine.multi_step.is_possible = lambda num_rows: False  # type: ignore[method-assign]
    return engine


def counted(engine: Engine) -> list[int]:
    """The numbers of steps of the engine's native calls, as they come."""
    found, take = list[int](), MultiSteps.take

    def spy(*asked: Any) -> Any:
        taken = take(engine.multi_step, *asked)
        found.append(sum(step.num_steps for step in taken))
        return taken

    engine.multi_step.take = spy  # type: ignore[method-assign]
    return found


def jobs(**params: Any) -> list[Job]:
    return [Job(prompt(seed, 6 + seed, 5), SamplingParams(seed=seed, **params)) for seed in range(3)]


def texts(engine: Engine, asked: list[Job]) -> list[list[int]]:
    run = drive(engine, {0: list(enumerate(asked))}, {})
    return [run.tokens(number) for number in range(len(asked))]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_text_of_steps_taken_one_by_one(
    ready: Library, world: World, policy: str, sampling: dict[str, Any]
) -> None:
    asked = jobs(max_tokens=40, **sampling)
    engine, reference = engine_of(world, policy), one_by_one(engine_of(world))
    for job in asked:
        taken = counted(engine)
        assert texts(engine, [job]) == texts(reference, [job])
        assert sum(taken) >= 15, "most steps are native"


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_together(ready: Library, world: World, policy: str) -> None:
    asked = [
        *jobs(max_tokens=30, temperature=0.0),
        *jobs(max_tokens=45, temperature=0.9),
    ]
    reference = one_by_one(engine_of(world))
    alone = [texts(reference, [job])[0] for job in asked]
    engine = engine_of(world, policy)
    taken = counted(engine)
    assert texts(engine, asked) == alone and sum(taken) > 10


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", ["fixed:5", "tree:10", "auto"])
def test_a_real_pair(ready: Library, policy: str, temperature: float) -> None:
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=3, ignore_eos=True)
    engine, reference = demo(policy), one_by_one(demo("ar"))
    tokenizer = engine.parts.tokenizer
    assert tokenizer is not None
    for words in ("def read(path):\n    with open(path) as file:\n", "Once upon a time there was a king who"):
        job, taken = Job(tokenizer.encode(words), params), counted(engine)
        run = drive(engine, {0: [("one", job)]}, {})
        assert run.tokens("one") == texts(reference, [job])[0]
        assert run.accepted > 5 and sum(taken) > 3
        sequence = run.last("one").sequence
        assert sequence is not None and sequence.stats.emitted == 60
        assert sequence.stats.accepted == run.accepted == sum(o.value == "guess" for o in sequence.origins)


def test_the_cache_goes_on_with_what_the_steps_left(ready: Library) -> None:
    """A second request starts from the pages of the first: keys, values and the drafter's context."""
    engine = demo("tree:12", page_size=16)
    tokenizer = engine.parts.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode("Once upon a time there was a king who")
    params = SamplingParams(max_tokens=50, temperature=0.0, ignore_eos=True)
    first = texts(engine, [Job(ids, params)])[0]
    longer = Job([*ids, *first, 7], params)
    run = drive(engine, {0: [("again", longer)]}, {})
    sequence = run.last("again").sequence
    assert sequence is not None and sequence.num_reused >= 32 and run.accepted > 0
    assert run.tokens("again") == texts(one_by_one(demo("ar")), [longer])[0]


@pytest.mark.parametrize("policy", ["ar", "fixed:4"])
def test_ends_inside_several_steps(ready: Library, world: World, policy: str) -> None:
    """A length, an end token and every later one; pages and counts stay right."""
    reference = one_by_one(engine_of(world))
    (whole,) = texts(reference, jobs(max_tokens=40, temperature=0.9)[1:2])
    engine = engine_of(world, policy)
    for place in (1, 2, 7, 19):
        params = {"temperature": 0.9, "seed": 1}
        (cut,) = texts(engine, [Job(prompt(1, 7, 5), SamplingParams(max_tokens=place, **params))])
        assert cut == whole[:place]
        if whole.index(whole[place]) < place:
            continue
        ends = SamplingParams(max_tokens=40, stop_token_ids=(whole[place],), **params)
        (cut,) = texts(engine, [Job(prompt(1, 7, 5), ends)])
        assert cut == whole[: place + 1]


@pytest.mark.parametrize("policy", ["ar", "fixed:4", "tree:8"])
def test_stop_strings(ready: Library, speaking: World, policy: str) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.9, seed=2)
    job = Job(prompt(2, 9, 5), params)
    run = drive(one_by_one(engine_of(speaking)), {0: [("one", job)]}, {})
    sequence = run.last("one").sequence
    assert sequence is not None
    stop = sequence.text[10:12]
    cut = Job(job.prompt, dataclasses.replace(params, stop=(stop,)))
    wanted = drive(one_by_one(engine_of(speaking)), {0: [("one", cut)]}, {}).last("one").sequence
    engine = engine_of(speaking, policy)
    taken = counted(engine)
    found = drive(engine, {0: [("one", cut)]}, {}).last("one").sequence
    assert found is not None and wanted is not None and sum(taken) > 0
    assert (found.text, found.output_ids, found.matched_stop) == (wanted.text, wanted.output_ids, stop)
    assert found.stats.emitted == len(found.output_ids)


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.2},
        {"logit_bias": {3: 2.0}},
        {"logprobs": 2},
        {"speculation": "fixed:3"},
        {"min_tokens": 15},
    ],
)
def test_rows_that_the_host_has_a_part_in(ready: Library, world: World, params: dict[str, Any]) -> None:
    """They have steps of their own, and what can run natively goes on when they have left."""
    engine, reference = engine_of(world, "fixed:4"), one_by_one(engine_of(world))
    own = Job(prompt(5, 8, 5), SamplingParams(max_tokens=20, temperature=0.8, seed=4, **params))
    other = jobs(max_tokens=60, temperature=0.8)[0]
    taken = counted(engine)
    assert texts(engine, [own, other]) == [texts(reference, [job])[0] for job in (own, other)]
    assert sum(taken) > 0


def test_short_of_pages(ready: Library, world: World) -> None:
    """Requests give up their pages and come back; nobody's text changes and nothing leaks."""
    asked = [
        Job(prompt(seed, 10, 5), SamplingParams(max_tokens=50, temperature=0.8, seed=seed))
        for seed in range(4)
    ]
    reference = one_by_one(engine_of(world))
    wanted = [texts(reference, [job])[0] for job in asked]
    engine = engine_of(world, "tree:8", num_pages=20, prefix_reuse=False)
    assert texts(engine, asked) == wanted
    assert engine.scheduler.num_preemptions > 0 and engine.scheduler.memory.allocator.num_used == 0


def test_who_arrives_or_leaves_ends_the_call(ready: Library, world: World) -> None:
    engine = engine_of(world, "ar")
    taken = counted(engine)
    engine.add("one", prompt(1, 7, 5), SamplingParams(max_tokens=200, temperature=0.8, seed=1))
    engine.step()
    engine.interrupt()
    engine.step()
    assert taken[-1] == 0, "an ordinary step"
    engine.resume()
    engine.step()
    assert taken[-1] > 1
    steps = engine.multi_step._native
    assert steps is not None
    steps.stop.value = 1  # as another thread would, behind the look at the beginning
    before = len(engine.scheduler.running[0].tokens)
    engine.step()
    assert taken[-1] == 0 and len(engine.scheduler.running[0].tokens) == before + 1
    steps.stop.value = 0
    assert engine.abort("one")
    engine.step()
    engine.check()


def test_scores_that_are_no_numbers_fail_their_request_only(ready: Library, world: World) -> None:
    engine, reference = engine_of(world, "fixed:4"), one_by_one(engine_of(world))
    asked = jobs(max_tokens=60, temperature=0.8)
    engine.add("bad", asked[0].prompt, asked[0].params)
    for _ in range(3):
        engine.step()
    (sequence,) = engine.scheduler.running
    first = sequence.pages[0] * engine.scheduler.memory.allocator.page_size
    engine.runner.pool.store[:, :, :, first : first + 2] = torch.nan
    run = drive(engine, {0: [("good", asked[1])]}, {})
    assert run.last("bad").finish is Finish.ERROR and "not finite" in str(run.last("bad").error)
    assert run.tokens("good") == texts(reference, [asked[1]])[0]


class Recorded:
    """What native code was asked for, and what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        take: Callable[..., TakenSteps] = NativeSteps.take

        def record(steps: NativeSteps, texts: Any, most_steps: int, drafter: Any, rule: Any) -> TakenSteps:
            lengths = [len(text.tokens) for text in texts]
            taken = take(steps, texts, most_steps, drafter, rule)
            self.calls.append((texts, lengths, rule, taken))
            return taken

        monkeypatch.setattr(NativeSteps, "take", record)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("policy", ["auto", "tree:9", "fixed:6"])
def test_the_nodes_are_those_of_the_policy(
    ready: Library, policy: str, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of nodes of every native step is what the policy's own rule gives for its draft."""
    recorded, engine = Recorded(monkeypatch), demo(policy)
    tokenizer = engine.parts.tokenizer
    assert tokenizer is not None
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    words = ["def read(path):\n    with open(path) as file:\n", "Once upon a time", "Question: 3 + 4 * 5 ="]
    texts(engine, [Job(tokenizer.encode(one), params) for one in words[:num_rows]])
    compared = 0
    for asked, lengths, rule, taken in recorded.calls:
        if rule is None:
            continue
        counts = list(lengths)
        for step in range(taken.num_steps):
            left = [text.limit - count - 1 for text, count in zip(asked, counts, strict=True)]
            if min(left) < taken.draft_logprobs.shape[2]:
                break  # the end of a text cuts its draft
            found = taken.counts[step, :, 0].sum()
            assert found == nodes_of(rule, asked, taken.draft_logprobs[step])
            counts = [
                count + accepted + 1 for count, accepted in zip(counts, taken.counts[step, :, 1], strict=True)
            ]
            compared += 1
    assert compared > 5


def nodes_of(rule: Any, asked: Any, logprobs: np.ndarray) -> int:
    """The number of nodes by numpy, from the same numbers."""
    scores = np.minimum(logprobs.astype(np.float64), 0.0)
    if rule.trust is Trust.CALIBRATED:
        bounded = np.clip(scores, *rule.bounds)
        odds = bounded - np.log(-np.expm1(bounded))
        scores = -np.logaddexp(0.0, -(rule.slope * odds + rule.offsets[: scores.shape[1], None]))
    if rule.is_chain:
        scores = np.zeros_like(scores[:, :, :1])
    drafts = [Draft("block", scores.shape[1], own) for own in scores]
    stacked = stack_scores(drafts, lambda i, draft: np.asarray(draft.logprobs))
    stacked[:, 0] += np.array([text.weight for text in asked])[:, None]
    assert limits_of([], []) is not None
    forest = build_forest(
        np.minimum(stacked, 0.0),
        len(rule.prices) - 1,
        row_caps=[text.most_nodes for text in asked],
        chain_only=rule.is_chain,
    )
    values = forest.path_probs.cumsum() - rule.prices[1 : 1 + forest.num_nodes]
    return int(values.argmax()) + 1 if len(values) and values.max() > 0 else 0


def test_a_repeated_tail_ends_the_call(ready: Library, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a drafter that copies may have something better, the policy is asked again."""
    recorded, engine = Recorded(monkeypatch), engine_of(world, "ar", "lookup")
    engine.controller.policy.inquire = lambda coming: type(
        "Asks", (), {"asks": True, "first_suffices": False}
    )()  # type: ignore[method-assign]
    asked = Job([*prompt(1, 12, 5), *prompt(1, 12, 5)[:4]], SamplingParams(max_tokens=80, temperature=0.0))
    texts(engine, [asked])
    endings = [taken.ending for *_, taken in recorded.calls]
    assert Ending.MATCHED in endings or Ending.FULL in endings
    for own, lengths, _, taken in recorded.calls:
        length = own[0].match_length
        tokens = [*own[0].tokens[: lengths[0]], *taken.tokens[0]]
        if taken.ending is Ending.MATCHED:
            tail = tokens[-length:]
            assert any(tokens[at : at + length] == tail for at in range(len(tokens) - length))


def test_observers_change_nothing(ready: Library) -> None:
    def run(listens: bool) -> tuple[list[Any], list[int]]:
        engine = demo("auto")
        bets = list[int]()
        if listens:
            engine.controller.on_step = lambda outcome, expected: None
        tokenizer = engine.parts.tokenizer
        assert tokenizer is not None
        params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
        engine.add("one", tokenizer.encode("def read(path):\n"), params)
        events = list[Any]()
        while engine.has_work:
            events += [(event.token_ids, event.bet) for event in engine.step()]
        bets += engine.controller.experience.stats.acceptance_histogram
        return events, bets

    assert run(False) == run(True)
