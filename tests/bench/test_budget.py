"""What a thinking budget costs: the sums, the variants, and one short run on the demo pair."""

import json
from pathlib import Path

import pytest

from bench.budget import (
    Asked,
    Options,
    Tally,
    Times,
    close_kind,
    main,
    question_of,
    variants,
    without_budget,
)
from wager.records import SamplingParams, ThinkingLimit


def test_the_variants_begin_with_the_free_one() -> None:
    found = variants(Options(efforts=("low",), budgets=(3, 5)))
    assert [one.name for one in found] == ["free", "effort low", "budget 3", "budget 5"]
    assert (found[0].budget, found[0].effort, found[2].budget) == (None, None, 3)


def test_a_question_is_taken_out_of_its_marks() -> None:
    assert question_of("<|user|>\nHow many?\nTell me.\n<|assistant|>\n") == "How many?\nTell me."
    assert question_of("How many?") == "How many?"


def test_a_speed_up_is_of_sums() -> None:
    free, own = Tally(plain_s=3.0, policy_s=1.0), Tally(2, 4.0, 2.0, 40, 10, 9)
    found = own.as_dict(free)
    assert found["speedup"] == 2.0 and found["against_free"] == pytest.approx(2 / 3)
    assert found["tokens_per_step"] == 4.0 and found["speculative_share"] == 0.9


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [((9, 9, 2, 3, 9), "hard"), ((9, 3, 9, 9, 9), "natural"), ((9, 9), "none"), ((9, 9, 2), "none")],
)
def test_how_a_text_was_closed_is_read_from_it(tokens: tuple[int, ...], kind: str) -> None:
    limit = ThinkingLimit(2, (1,), (2, 3), natural_ids=(3,))
    assert close_kind(Asked([1], SamplingParams(thinking=limit)), tokens) == kind
    assert close_kind(Asked([1], SamplingParams()), tokens) == "unlimited"


def test_the_same_text_without_a_budget() -> None:
    limit = ThinkingLimit(2, (1,), (2, 3), natural_ids=(3,))
    request = Asked([7, 1], SamplingParams(max_tokens=7, thinking=limit, seed=4))
    thinking, answer = without_budget(request, (9, 9, 2, 3, 8, 8, 8))
    assert thinking == Asked([7, 1], SamplingParams(max_tokens=2, seed=4))
    assert answer == Asked([7, 1, 9, 9, 2, 3], SamplingParams(max_tokens=3, seed=4))
    assert without_budget(request, (9, 3, 9, 9, 9)) == [], "closed by the model"
    own = Tally(forced=Times(6.0, 3.0), unforced=Times(5.0, 2.0))
    assert own.against_same_text == pytest.approx(0.8) and Tally().against_same_text is None


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "budget.json"
    flags = ["--limit", "1", "--max-tokens", "16", "--budgets", "4", "--efforts", "", "--bar", "0"]
    assert main([*flags, "--out", str(path)]) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found["data"]) == {"free", "budget 4"}
    limited = found["data"]["budget 4"]
    assert limited["requests"] == 1 and 0 < limited["tokens"] <= 32 and sum(limited["closes"].values()) == 1
    assert "speed-up" in capsys.readouterr().out
    assert main([*flags[:-1], "1000", "--out", str(path)]) == 1
