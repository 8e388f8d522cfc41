"""Cost curves: the three by name, any from a file, and one line for each mistake."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trace.recorded import made_up
from wager.errors import InputError
from wager.trace import load_costs, replay, step_costs
from wager.trace.costs import NAMES
from wager.trace.replay import ReplayOptions

GOOD = {"name": "mine", "draft_ms": 0.5, "verify_ms": {"1": 2.0, "4": 5.0, "8": 6.0}}


def in_file(tmp_path: Path, data: object) -> str:
    path = tmp_path / "curve.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return str(path)


def test_linear_between_points_and_the_last_slope_beyond(tmp_path: Path) -> None:
    costs = load_costs(in_file(tmp_path, GOOD))
    assert (costs.name, costs.draft_ms) == ("mine", 0.5)
    assert [costs.verify(n) for n in (1, 2, 4, 6, 8, 16)] == pytest.approx([2.0, 3.0, 5.0, 5.5, 6.0, 8.0])


def test_drafts_may_cost_by_the_guesses_asked_for(tmp_path: Path) -> None:
    costs = load_costs(in_file(tmp_path, GOOD | {"draft_ms": {"3": 1.0, "15": 4.0}}))
    assert costs.draft_ms == 4.0, "the whole draft"
    assert [costs.draft_time_ms(n) for n in (0, 1, 3, 6, 15, 40)] == [4.0, 1.0, 1.0, 1.75, 4.0, 4.0]
    assert load_costs(in_file(tmp_path, GOOD)).draft_time_ms(1) == 0.5, "one time holds for every draft"


def test_a_file_without_a_name_is_named_after_itself(tmp_path: Path) -> None:
    assert load_costs(in_file(tmp_path, {k: v for k, v in GOOD.items() if k != "name"})).name == "curve"


def test_the_measured_curves() -> None:
    assert NAMES == ("cpu", "h200", "moe")
    assert [load_costs(name).plain_ms() for name in NAMES] == [4.455, 5.06, 5.0]
    assert load_costs("moe").verify(256) == pytest.approx(48.0)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (GOOD | {"draft_ms": -1}, "mine.draft_ms"),
        (GOOD | {"draft_ms": "fast"}, "mine.draft_ms"),
        (GOOD | {"draft_ms": float("nan")}, "mine.draft_ms"),
        ({"name": "mine", "verify_ms": {"1": 2.0}}, "mine.draft_ms"),
        (GOOD | {"draft_ms": {}}, "mine.draft_ms"),
        (GOOD | {"draft_ms": {"0": 1.0}}, "mine.draft_ms"),
        (GOOD | {"draft_ms": {"2": -1.0}}, "mine.draft_ms[2]"),
        (GOOD | {"draft_ms": {"2": "quick"}}, "mine.draft_ms[2]"),
        (GOOD | {"verify_ms": {"1": -2.0}}, "mine.verify_ms"),
        (GOOD | {"verify_ms": {"1": float("nan")}}, "mine.verify_ms"),
        (GOOD | {"verify_ms": {"1": None}}, "mine.verify_ms[1]"),
        (GOOD | {"verify_ms": {"one": 2.0}}, "mine.verify_ms"),
        (GOOD | {"verify_ms": {"0": 2.0}}, "mine.verify_ms"),
        (GOOD | {"verify_ms": {}}, "mine.verify_ms"),
        (GOOD | {"verify_ms": [1, 2]}, "mine.verify_ms"),
        (GOOD | {"name": 3}, "costs.name"),
        (GOOD | {"verfy_ms": {}}, "costs"),
        ([1], "costs"),
        ("{", "costs"),
    ],
)
def test_a_bad_file_is_refused_by_field(tmp_path: Path, data: object, field: str) -> None:
    with pytest.raises(InputError) as caught:
        load_costs(in_file(tmp_path, data))
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["gpu", "missing.json"])
def test_an_unknown_curve_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="costs: "):
        load_costs(name)


def test_deciding_costs_those_who_decide(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"draft_ms": 1.0, "verify_ms": {"1": 4.0, "9": 5.0}, "decide_ms": 0.5}))
    slow, trace = load_costs(str(path)), made_up(3, (2, 40, 5, 3))
    fast = replace(slow, decide_ms=0.0)
    for policy, pays in (("ar", False), ("fixed:3", False), ("tree:6", False), ("bod", True), ("auto", True)):
        runs = [replay(trace, costs, policy) for costs in (slow, fast)]
        extra = runs[0].time_ms - runs[1].time_ms
        assert extra == pytest.approx(0.5 * runs[0].drafted_steps * pays), policy
    with pytest.raises(InputError, match="decide_ms"):
        step_costs("bad", 1.0, {1: 4.0}, decide_ms=-1.0)


def test_rows_and_beginnings_make_drafts_dearer(tmp_path: Path) -> None:
    path, trace = tmp_path / "mine.json", made_up(3, (4, 40, 5, 3))
    plain = {"draft_ms": 1.0, "verify_ms": {"1": 4.0, "9": 5.0}}
    path.write_text(json.dumps(plain | {"row_ms": 0.25, "begin_ms": 3.0}))
    dear, cheap = load_costs(str(path)), step_costs("cheap", 1.0, {1: 4.0, 9: 5.0})
    for rows in (1, 4):
        runs = [replay(trace, costs, "fixed:2", ReplayOptions(rows)) for costs in (dear, cheap)]
        steps = runs[1].drafted_steps
        extra = runs[0].time_ms - runs[1].time_ms
        # All rows draft in every step, fewer of them as sequences end; the first step alone begins.
        assert extra >= 3.0 and (rows > 1 or extra == pytest.approx(3.0))
        assert extra <= 3.0 + 0.25 * (rows - 1) * steps + 1e-9
        assert rows == 1 or extra > 3.0 + 0.25
    for key in ("row_ms", "begin_ms", "ask_ms"):
        path.write_text(json.dumps(plain | {key: -1.0}))
        with pytest.raises(InputError, match=key):
            load_costs(str(path))


def test_asking_in_vain_makes_plain_steps_longer() -> None:
    """Drafts so dear that none is worth it: steps behind one that drafted are longer by what asking takes."""
    trace = made_up(3, (1, 200, 5, 3))
    asking, silent = (step_costs("dear", 90.0, {1: 4.0, 9: 5.0}, ask_ms=ask_ms) for ask_ms in (0.5, 0.0))
    run = replay(trace, asking, "auto")
    plain = [step.time_ms for step in run.steps if not step.drafted]
    assert set(plain) <= {4.0, 4.5}
    assert plain.count(4.5) < len(plain) / 4, "while no draft is affordable, nobody is asked"
    assert {step.time_ms for step in replay(trace, silent, "auto").steps if not step.drafted} == {4.0}
    assert {step.time_ms for step in replay(trace, asking, "ar").steps} == {4.0}
