"""Prompts that are scored between the steps of others, while passes are in flight: the same texts."""

from dataclasses import replace

import pytest

from tests.equivalence.kernel_engines import MARKS, engine_of, jobs
from tests.equivalence.world import Job, World, alone, drive, is_clean, prompt
from tests.nn.kernels import interpreter

pytestmark = MARKS
assert interpreter


@pytest.mark.parametrize("policy", ["ar", "tree:6"])
def test_a_pass_in_flight_is_dropped(world: World, on_kernels: None, policy: str) -> None:
    engine, plain = engine_of(world, policy), engine_of(world, "ar", kernels="off")
    asked = jobs(0.0)
    scored = Job(prompt(9, 30), replace(asked[0].params, prompt_logprobs=2, max_tokens=2))
    joins = {0: enumerate(asked), **{step: [(f"scored-{step}", scored)] for step in (2, 4)}}
    run = drive(engine, joins, {})
    assert [run.tokens(index) for index in range(3)] == alone(plain, asked)
    want = drive(plain, {0: [("scored", scored)]}, {}).last("scored").sequence
    assert want is not None and len(want.prompt_logprobs) == 30
    for step in (2, 4):
        found = run.last(f"scored-{step}").sequence
        assert found is not None and found.output_ids == want.output_ids
        for one, other in zip(found.prompt_logprobs[1:], want.prompt_logprobs[1:], strict=True):
            assert one is not None and other is not None
            assert one.chosen == pytest.approx(other.chosen, abs=1e-3)
            assert one.token_ids[0] == other.token_ids[0]
    assert is_clean(engine)
