"""Passes that read prompts by captured sizes: scores of judged tokens and features as of plain torch."""

from typing import Any

import pytest
import torch

from tests.equivalence.kernel_engines import MARKS, engine_of
from tests.equivalence.world import World, prompt
from tests.nn.kernels import interpreter
from wager.target import RunResult, RunRow
from wager.tree import Tree

pytestmark = MARKS
assert interpreter

ROWS = [
    RunRow(prompt(1, 1), Tree.empty(), 0, [0]),
    RunRow(prompt(2, 140), Tree.empty(), 0, list(range(1, 19))),
    RunRow(prompt(3, 30), Tree.empty(), 0, list(range(19, 23)), judged=False),
]


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    assert one is not None and other is not None
    return one.shape == other.shape and torch.allclose(one.cpu(), other.cpu(), atol=1e-4)


def run(world: World, rows: list[RunRow], **settings: Any) -> tuple[Any, RunResult]:
    runner = engine_of(world, "ar", max_step_tokens=400, **settings).runner
    return runner, runner.run(rows)


@pytest.mark.parametrize("num_rows", [2, 3])
def test_judged_tokens_are_scored_and_all_features_are_kept(
    world: World, on_kernels: None, num_rows: int
) -> None:
    rows = ROWS[:num_rows]
    runner, found = run(world, rows)
    plain_runner, plain = run(world, rows, kernels="off")
    size = runner._sizes.prefill_of(found.inputs.num_tokens, num_rows, 0, 2)
    assert size is not None and size.num_judged == 4
    assert same(found.logits, plain.logits) and same(found.features, plain.features)
    assert found.logits is not None and len(found.logits) == 2
    kept = [range(len(row.pending)) for row in rows]
    wanted = [features for features, _ in plain_runner.kept_features(plain, kept)]
    for (features, lines), own in zip(runner.kept_features(found, kept), wanted, strict=True):
        assert same(features[lines.start : lines.stop], own)


def test_some_rows_of_a_pass_have_their_share_of_it(world: World, on_kernels: None) -> None:
    runner, found = run(world, ROWS)
    share = runner.only(found, [1, 2])
    assert found.logits is not None and same(share.logits, found.logits[1:])
    assert share.inputs.starts[:2] == found.inputs.starts[1:3]
    none = runner.only(found, [2])
    assert none.logits is None and runner.only(found, [0, 1, 2]) is found


def test_a_single_prompt_has_a_size_of_its_own(world: World, on_kernels: None) -> None:
    rows = [RunRow(prompt(2, 140), Tree.empty(), 0, list(range(18)))]
    runner, found = run(world, rows)
    _, plain = run(world, rows, kernels="off")
    assert runner._sizes.prefill_of(140, 1, 0, 1).rows == 1
    assert same(found.logits, plain.logits) and same(found.features, plain.features)
