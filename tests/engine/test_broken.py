"""Broken things: files, weights, prompts, drafters and interrupts. A clear line each, and nothing hangs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.conftest import add_tokenizer
from tests.equivalence.world import STRICT, Job, World, alone, drive, is_clean, make_engine, prompt
from tests.nn.tiny import save_drafter
from wager.draft.block import BlockDrafter
from wager.engine.engine import Engine
from wager.engine.sequence import Finish
from wager.errors import CapacityError, ModelError, RequestError, WagerError
from wager.llm import LLM
from wager.records import SamplingParams

PARAMS = SamplingParams(max_tokens=16)


def load(folder: Path | str, drafter: str = "none", **settings: Any) -> LLM:
    return LLM(str(folder), drafter, "fixed:4", **{**STRICT, "num_pages": 64, "page_size": 8, **settings})


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Path:
    """A copy of the target's folder, to be damaged."""
    return Path(shutil.copytree(world.target, tmp_path / "copy"))


def one_line(error: pytest.ExceptionInfo[WagerError]) -> str:
    text = str(error.value)
    assert text and "\n" not in text and "Traceback" not in text
    return text


def test_truncated_weights(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ModelError) as error:
        load(copy)
    assert "model.safetensors" in one_line(error)


def test_tokenizer_that_is_no_json(copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{ not json")
    with pytest.raises(ModelError) as error:
        load(copy)
    assert "tokenizer.json" in one_line(error)


def test_tokenizer_larger_than_the_model(copy: Path) -> None:
    add_tokenizer(copy)
    with pytest.raises(ModelError) as error:
        load(copy)
    assert "wrong tokenizer" in one_line(error)


@pytest.mark.parametrize(
    "changes",
    [{"hidden_size": 32}, {"num_target_layers": 9}, {"mask_token_id": 70}],
    ids=lambda c: next(iter(c)),
)
def test_drafter_of_another_target(world: World, tmp_path: Path, changes: dict[str, int]) -> None:
    own = {"mask_token_id": changes.get("mask_token_id", 5), "target_layer_ids": [0, 2]}
    sizes = {name: value for name, value in changes.items() if name != "mask_token_id"}
    save_drafter(tmp_path / "block", **{"vocab_size": 99, "dflash_config": own, **sizes})
    with pytest.raises(ModelError) as error:
        load(world.target, str(tmp_path / "block"))
    assert next(iter(changes)).split("_")[0] in one_line(error)


def spoil(folder: Path, name: str, value: float = float("nan")) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[0] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_are_not_numbers(copy: Path) -> None:
    spoil(copy, "model.norm.weight")
    with pytest.raises(ModelError) as error:
        load(copy)
    assert "model.norm.weight" in one_line(error) and "NaN" in one_line(error)


@pytest.mark.parametrize("policy", ["fixed:4", "tree:8", "auto"])
def test_drafter_whose_scores_are_not_numbers_is_left_out(world: World, policy: str) -> None:
    jobs = [Job(prompt(i, 10 + i), PARAMS) for i in range(3)]
    engine = make_engine(world, "block", policy)
    drafter = engine.drafters["block"]
    assert isinstance(drafter, BlockDrafter)
    drafter.target = Spoiled(drafter.target)
    run = drive(engine, {0: list(enumerate(jobs))}, {})
    assert [run.tokens(i) for i in range(3)] == alone(make_engine(world), jobs)
    assert engine.telemetry.drafter_failures > 0 and engine.telemetry.failed_requests == 0
    assert is_clean(engine)


class Spoiled:
    """A target's face whose head gives a drafter no numbers."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._target.logits(hidden) * float("nan")

    rough_logits = logits


@pytest.mark.parametrize("ids", [[], [64], [-1], [1] * 512, [1] * 600], ids=str)
def test_prompts_that_cannot_be_run_are_refused_at_once(world: World, ids: list[int]) -> None:
    llm = load(world.target)
    with pytest.raises(RequestError) as error:
        llm.generate([ids, [1, 2]], PARAMS)
    assert one_line(error).startswith("prompt")
    assert is_clean(llm.engine)
    assert llm.generate([1, 2], PARAMS)[0].finish_reason == "length"


@pytest.mark.parametrize(
    "params", [{"logit_bias": {64: 1.0}}, {"stop_token_ids": [900], "min_tokens": 2}], ids=str
)
def test_ids_outside_the_vocabulary_are_refused(world: World, params: dict[str, Any]) -> None:
    llm = load(world.target)
    with pytest.raises(RequestError) as error:
        llm.generate([[1, 2], [3]], [PARAMS, SamplingParams(max_tokens=4, **params)])
    assert next(iter(params)) in one_line(error)
    assert is_clean(llm.engine)


def test_an_end_id_the_model_has_no_score_for_is_harmless(copy: Path) -> None:
    (copy / "generation_config.json").write_text('{"eos_token_id": [5000, 2]}')
    llm = load(copy)
    (output,) = llm.generate([1, 2, 3], SamplingParams(max_tokens=9, min_tokens=9))
    assert output.finish_reason == "length" and len(output.token_ids) == 9


def test_a_request_that_never_fits_is_refused(world: World) -> None:
    llm = load(world.target, num_pages=4)
    with pytest.raises(CapacityError):
        llm.generate([1] * 20, SamplingParams(max_tokens=100))
    assert is_clean(llm.engine)


def test_text_for_a_model_without_tokenizer(world: World) -> None:
    with pytest.raises(RequestError) as error:
        load(world.target).generate("hello")
    assert "no tokenizer" in one_line(error)


def test_empty_text(speaking: World) -> None:
    with pytest.raises(RequestError) as error:
        load(speaking.target).generate("")
    assert "empty" in one_line(error)


class Interrupt:
    """Calls through, and raises on the n-th call."""

    def __init__(self, inner: Callable[..., Any], calls: int, error: type[BaseException]) -> None:
        self.inner, self.left, self.error = inner, calls, error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise self.error("injected")
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize("place", ["run", "commit"])
@pytest.mark.parametrize("calls", [1, 4])
def test_interrupt_leaves_a_usable_engine(world: World, place: str, calls: int) -> None:
    llm = load(world.target, world.chain)
    (want,) = llm.generate([3, 4, 5], PARAMS)
    original = getattr(llm.engine.runner, place)
    setattr(llm.engine.runner, place, Interrupt(original, calls, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[3, 4, 5], [6, 7], prompt(1, 40)], PARAMS)
    setattr(llm.engine.runner, place, original)
    assert is_clean(llm.engine)
    llm.engine.check()
    assert llm.generate([3, 4, 5], PARAMS)[0].token_ids == want.token_ids


def test_a_failing_target_fails_its_requests_not_the_engine(world: World) -> None:
    llm = load(world.target, world.chain)
    (want,) = llm.generate([3, 4, 5], PARAMS)
    run = llm.engine.runner.run
    llm.engine.runner.run = Interrupt(run, 3, RuntimeError)  # type: ignore[method-assign]
    outputs = llm.generate([[3, 4, 5], [6, 7]], PARAMS)
    assert [output.finish_reason for output in outputs] == ["error", "error"]
    assert all("injected" in (output.error or "") for output in outputs)
    assert is_clean(llm.engine)
    assert llm.generate([3, 4, 5], PARAMS)[0].token_ids == want.token_ids


@pytest.mark.parametrize("method", ["propose", "can_propose", "keep", "prepare_sharing"])
@pytest.mark.parametrize("drafter", ["chain", "block"])
def test_a_failing_drafter_costs_its_rows_their_bets(world: World, drafter: str, method: str) -> None:
    jobs = [Job(prompt(i, 12 + i), PARAMS) for i in range(4)]
    want = alone(make_engine(world), jobs)
    engine = make_engine(world, drafter, "fixed:4")
    broken = engine.drafters[drafter]
    setattr(broken, method, Interrupt(getattr(broken, method), 3, ValueError))
    run = drive(engine, {0: list(enumerate(jobs[:3]))}, {})
    assert [run.tokens(i) for i in range(3)] == want[:3]
    assert engine.telemetry.drafter_failures == 1 and engine.telemetry.failed_requests == 0
    after = drive(engine, {0: [("later", jobs[3])]}, {})
    assert after.tokens("later") == want[3] and after.verified > 0
    assert is_clean(engine)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("drafter", ["none", "block"])
def test_scores_that_are_not_numbers_fail_their_request_alone(
    world: World, drafter: str, value: float
) -> None:
    jobs = [Job(prompt(i, 10), SamplingParams(max_tokens=16, temperature=0.5 * i, seed=i)) for i in range(3)]
    want = alone(make_engine(world), jobs)
    engine = make_engine(world, drafter, "tree:4")
    spoil_row(engine, row=1, step=4, value=value)
    run = drive(engine, {0: list(enumerate(jobs))}, {})
    assert run.last(1).finish is Finish.ERROR and "not finite" in (run.last(1).error or "")
    assert run.tokens(1) == want[1][: len(run.tokens(1))]
    assert [run.tokens(0), run.tokens(2)] == [want[0], want[2]]
    assert engine.telemetry.failed_requests == 1 and is_clean(engine)


def spoil_row(engine: Engine, row: int, step: int, value: float) -> None:
    """From some step on, once, the last score of one row's judged positions is `value`."""
    run, left = engine.runner.run, [step]

    def spoiled(rows: Any) -> Any:
        result = run(rows)
        left[0] -= 1
        if left[0] == 0:
            first = sum(1 + one.tree.num_nodes for one in rows[:row] if one.judged)
            with torch.inference_mode():
                result.logits[first + rows[row].tree.num_nodes, -1] = value
        return result

    engine.runner.run = spoiled  # type: ignore[method-assign]
