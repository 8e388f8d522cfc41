"""The engine against transformers and against a second decoder written from the definition."""

import pytest
import torch

from tests.equivalence.test_grid import CHOICES
from tests.equivalence.world import Job, World, drive, make_engine, prompt
from tests.target.reference import choices
from wager.engine.engine import Engine
from wager.records import SamplingParams

ENGINES = [("none", "ar"), ("chain", "fixed:5"), ("block", "tree:10")]
LENGTHS = (1, 8, 21)


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def engine(world: World, request: pytest.FixtureRequest) -> Engine:
    world.reference.double()
    return make_engine(world, *request.param)


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_is_what_transformers_generates(world: World, engine: Engine, length: int) -> None:
    ids = prompt(length, length)
    with torch.inference_mode():
        want = world.reference.generate(
            torch.tensor([ids]), max_new_tokens=40, do_sample=False, pad_token_id=0, eos_token_id=None
        )
    run = drive(engine, {0: [("g", Job(ids, SamplingParams(max_tokens=40)))]}, {})
    assert run.tokens("g") == want[0, length:].tolist()


@pytest.mark.parametrize("choice", CHOICES)
def test_choices_follow_the_definition(world: World, engine: Engine, choice: str) -> None:
    params = SamplingParams(max_tokens=25, seed=-7, **CHOICES[choice])
    ids = prompt(3, 14, period=5)
    want = [token for token, _ in choices(world.reference, ids, params)]
    run = drive(engine, {0: [("c", Job(ids, params))]}, {})
    assert run.tokens("c") == want


@pytest.mark.parametrize("choice", ["greedy", "penalised"])
def test_logprobs_are_the_raw_scores(world: World, engine: Engine, choice: str) -> None:
    params = SamplingParams(max_tokens=20, seed=4, logprobs=3, **CHOICES[choice])
    ids = prompt(5, 12, period=3)
    run = drive(engine, {0: [("l", Job(ids, params))]}, {})
    found = run.last("l").sequence.logprobs
    assert len(found) == 20
    for (token, raw), one in zip(choices(world.reference, ids, params), found, strict=True):
        table = torch.from_numpy(raw).log_softmax(-1)
        top = table.topk(3)
        assert one.chosen == pytest.approx(float(table[token]), abs=1e-4)
        assert one.token_ids == top.indices.tolist()
        assert one.logprobs == pytest.approx(top.values.tolist(), abs=1e-4)


def test_bias_can_force_and_forbid(engine: Engine) -> None:
    forced = SamplingParams(max_tokens=6, logit_bias={9: 100.0})
    run = drive(engine, {0: [("f", Job(prompt(1, 5), forced))]}, {})
    assert run.tokens("f") == [9] * 6
    never = SamplingParams(
        max_tokens=30, temperature=1.0, seed=1, logit_bias=dict.fromkeys(range(60), -100.0)
    )
    run = drive(engine, {0: [("n", Job(prompt(1, 5), never))]}, {})
    assert set(run.tokens("n")) <= {60, 61, 62, 63}


def test_same_seed_same_text_and_other_seeds_differ(engine: Engine) -> None:
    def text(name: str, seed: int | None) -> list[int]:
        job = Job(prompt(2, 10), SamplingParams(max_tokens=20, temperature=1.0, seed=seed))
        return drive(engine, {0: [(name, job)]}, {}).tokens(name)

    assert text("a", 1) == text("b", 1)
    assert len({tuple(text(str(seed), seed)) for seed in range(6)}) == 6
    assert text("c", None) != text("d", None)
