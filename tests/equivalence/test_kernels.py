"""The whole engine on kernels, in Triton's interpreter or on a CUDA device: the same texts as plain torch's.

Rows of every kind go through: prompt chunks, plain rows, chains and trees, greedy and drawn, alone and
together, with drafts that are begun before they are asked for.
"""

from typing import Any

import pytest
import torch

from tests.equivalence.world import Job, World, alone, drive, is_clean, make_engine, make_world, prompt
from tests.nn.kernels import ways
from wager.draft.block import BlockDrafter
from wager.engine.engine import Engine
from wager.nn import kernels
from wager.records import SamplingParams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
assert ways


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)


def engine_of(world: World, policy: str, **settings: Any) -> Engine:
    values = {"dtype": "float32", "device": DEVICE, "max_rows": 4, "max_step_tokens": 64, "calibrate": False}
    return make_engine(world, "block", policy, **values | settings)


def jobs(temperature: float, **params: Any) -> list[Job]:
    sampling = SamplingParams(temperature=temperature, max_tokens=10, seed=3, ignore_eos=True, **params)
    return [Job(prompt(index, length, period=4), sampling) for index, length in enumerate((5, 23, 9))]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "top_k": 20, "top_p": 0.9}])
@pytest.mark.parametrize("policy", ["ar", "fixed:4", "tree:9"])
def test_texts_are_plain_torchs(world: World, on_kernels: None, policy: str, params: dict[str, Any]) -> None:
    asked = jobs(**params)
    engine = engine_of(world, policy)
    assert engine.runner.has_kernels
    plain = engine_of(world, "ar", kernels="off")
    assert not plain.runner.has_kernels
    named = list(enumerate(asked))
    run = drive(engine, {0: named[:2], 3: named[2:]}, {})
    assert [run.tokens(index) for index in range(len(asked))] == alone(plain, asked)
    assert is_clean(engine)


def test_drafts_follow_their_pass_on_the_device(world: World, on_kernels: None) -> None:
    engine = engine_of(world, "fixed:4")
    drafter = engine.drafters["block"]
    assert isinstance(drafter, BlockDrafter) and drafter.device is not None
    begun: list[str] = []
    for name in ("launch", "follow"):
        call = getattr(drafter.device, name)
        setattr(drafter.device, name, lambda asked, name=name, call=call: begun.append(name) or call(asked))
    reports = drive(engine, {0: [("one", jobs(0.0)[0])]}, {}).reports
    drafted = sum(report.num_drafting for report in reports)
    # The first is asked for, every other one was begun behind the pass before; the last nobody asks for.
    assert drafted > 1 and begun == ["launch"] + ["follow"] * drafted
