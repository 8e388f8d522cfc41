"""The assessment at the end of `wager train`: the best chain under known costs, and what is said about it."""

from pathlib import Path

import pytest

from tests.nn.tiny import save_drafter, save_target
from wager.cli.train_assessment import assess, best_chain, time_steps
from wager.errors import WagerError
from wager.trace.costs import StepCosts, step_costs
from wager.train.drafter_quality import Measured


def costs(draft_ms: float, per_token_ms: float) -> StepCosts:
    return step_costs("here", draft_ms, {1: 10.0, 11: 10.0 + 10 * per_token_ms})


def measured(temperature: float, *rates: float) -> Measured:
    return Measured(temperature, 2, 100, 1.0, list(rates))


def test_the_best_chain_is_where_another_guess_costs_more_than_it_gives() -> None:
    found = best_chain([0.8, 0.8, 0.1, 0.1], costs(1.0, 1.0))
    assert found.num_guesses == 2
    assert found.tokens_per_step == pytest.approx(1 + 0.8 + 0.64)
    assert found.speedup == pytest.approx((1 + 0.8 + 0.64) * 10 / (1.0 + 12.0))
    assert best_chain([0.8, 0.8, 0.8, 0.8], costs(1.0, 0.0)).num_guesses == 4


@pytest.mark.parametrize(
    ("draft_ms", "rates", "said"),
    [
        (1.0, ((0.9, 0.9), (0.7, 0.5)), "is worth using on this machine: "),
        (1.0, ((0.9, 0.9), (0.1, 0.1)), "is worth using on this machine for some texts: "),
        (1.0, ((0.15, 0.1), (0.1, 0.1)), "makes little difference on this machine: "),
        (20.0, ((0.5, 0.5), (0.1, 0.1)), "is not worth using on this machine: "),
    ],
)
def test_what_is_said(draft_ms: float, rates: tuple[tuple[float, ...], ...], said: str) -> None:
    found = assess([measured(0.0, *rates[0]), measured(0.8, *rates[1])], costs(draft_ms, 0.1))
    assert said in found.text and "greedy text" in found.text and "text at temperature 0.8" in found.text
    assert f"a draft {draft_ms:.2f} ms" in found.text and "a target pass takes 10.00 ms" in found.text
    assert bool(found.advice) == ("not worth" in said or "little" in said)


def test_nothing_is_said_without_texts() -> None:
    assert "nothing can be said" in assess([], costs(1.0, 1.0)).text


def test_steps_are_timed_as_the_engine_runs_them(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "qwen3", vocab_size=97)
    save_drafter(tmp_path / "drafter", vocab_size=97)
    found = time_steps(tmp_path / "target", tmp_path / "drafter", "cpu", lambda _: None)
    assert found.draft_time_ms() > 0 and found.verify(1) > 0 and found.verify(5) > 0


def test_a_drafter_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "qwen3", vocab_size=97)
    with pytest.raises(WagerError):
        time_steps(tmp_path / "target", tmp_path / "absent", "cpu", lambda _: None)
