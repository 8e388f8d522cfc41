"""Thinking budgets on the pair that ships: exact, plain decoding's text, and guessing around the close.

In float64, so that no near-tie of whatever weights lie there can part the texts; with steady costs, so that
`auto` decides the same on every machine.
"""

from typing import Any

import pytest

from tests.equivalence.world import steady
from wager.llm import LLM, Output, StreamEvent
from wager.records import CloseKind, SamplingParams

QUICK: dict[str, Any] = {
    "threads": 1,
    "layout": "out_in",
    "num_pages": 96,
    "max_rows": 4,
    "dtype": "float64",
}
QUESTIONS = [
    "Tom has 3 apples and buys 4 more. How many has he?",
    "Ann runs 5 miles a day. How far in a week?",
]
BUDGETS = [40, 0]
TOTAL = 100


def load(drafter: str | None, policy: str) -> LLM:
    llm = LLM("demo", drafter, policy, **QUICK)
    steady(llm.engine)
    return llm


def run(llm: LLM) -> tuple[list[Output], list[StreamEvent]]:
    """Each question under its budget, all at once, the second sampled."""
    prompts, params = [], []
    for i, (question, budget) in enumerate(zip(QUESTIONS, BUDGETS, strict=True)):
        ids = llm.encode([{"role": "user", "content": question}], {"enable_thinking": True})
        asked = SamplingParams(max_tokens=TOTAL, ignore_eos=True, temperature=0.7 * i, seed=3)
        prompts.append(ids)
        params.append(llm.limit_thinking(ids, asked, budget, card=llm.card("\nso\n</think>\n")))
    events = list(llm.stream(prompts, params))
    outputs = sorted((e.output for e in events if e.output is not None), key=lambda output: output.index)
    return outputs, events


@pytest.fixture(scope="module")
def plain() -> list[Output]:
    outputs, _ = run(load(None, "ar"))
    for output, budget in zip(outputs, BUDGETS, strict=True):
        close = output.close
        assert close is not None
        if close.kind is CloseKind.HARD:
            assert close.thinking_tokens == budget == output.origins.index("forced")
        else:
            assert close.thinking_tokens < budget and "forced" not in output.origins
    assert outputs[1].close is not None and outputs[1].close.kind is CloseKind.HARD
    return outputs


@pytest.mark.parametrize(
    ("drafter", "policy"), [("auto", "auto"), ("auto", "fixed:6"), ("demo/chain", "tree:6")]
)
def test_plains_text_with_guessing_all_around(plain: list[Output], drafter: str, policy: str) -> None:
    llm = load(drafter, policy)
    llm.generate(llm.encode("One two three"), SamplingParams(max_tokens=30, ignore_eos=True))  # costs known
    outputs, events = run(llm)
    for want, got in zip(plain, outputs, strict=True):
        assert got.token_ids == want.token_ids and got.close == want.close
        assert got.text == want.text
    for index in range(len(QUESTIONS)):
        steps = [event for event in events if event.index == index]
        # Behind the prompt's step, and before the last, which may have no place left for a guess.
        assert sum(event.bet > 0 for event in steps[2:-1]) >= 0.9 * len(steps[2:-1])
        closing = [i for i, event in enumerate(steps[:-1]) if "forced" in event.origins]
        assert all(steps[i + 1].bet > 0 for i in closing if i > 0)
