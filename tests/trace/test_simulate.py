"""The comparison: which cells there are, what they say, and what is refused before any work is done."""

import pytest

from tests.trace.recorded import made_up
from wager.errors import ConfigError, InputError
from wager.policy import Experience
from wager.trace import BodRange, SimulateOptions, compare, load_costs, plan, replay, select, step_costs
from wager.trace.bod_range import policy_in_range
from wager.trace.simulate import as_json

CPU, MOE = load_costs("cpu"), load_costs("moe")
TRACES = [
    made_up(i, kind=kind, temperature=temperature)
    for i, (kind, temperature) in enumerate(
        [("code", "t0"), ("code", "t08"), ("prose", "t0"), ("math", "t08")]
    )
]
KEYS = {
    "kind",
    "temperature",
    "costs",
    "policy",
    "tokens",
    "time_ms",
    "tokens_per_s",
    "speedup",
    "steps",
    "drafted_steps",
    "mean_nodes",
    "ledger_min",
}


def places(*args: object, **kwargs: object) -> list[tuple[str, str]]:
    return [(content.kind, content.temperature) for content in select(TRACES, *args, **kwargs)]  # type: ignore[arg-type]


def test_every_trace_is_a_content_unless_filtered() -> None:
    assert places() == [("code", "t0"), ("code", "t08"), ("prose", "t0"), ("math", "t08")]
    assert places(["math", "code"]) == [("code", "t0"), ("code", "t08"), ("math", "t08")]
    assert places((), ["0.8"]) == places((), ["t08"]) == [("code", "t08"), ("math", "t08")]
    assert places((), ["0"]) == [("code", "t0"), ("prose", "t0")]


def test_a_shift_stands_alone_unless_kinds_are_asked_for() -> None:
    assert places(shifts=["code+prose"]) == [("code+prose", "t0")]
    assert places(shifts=["code+math", "code+prose+code"]) == [
        ("code+math", "t08"),
        ("code+prose+code", "t0"),
    ]
    assert places(["math"], shifts=["code+prose"]) == [("code+prose", "t0"), ("math", "t08")]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"kinds": ["poems"]}, "kind"),
        ({"shifts": ["code+poems"]}, "shift"),
        ({"temperatures": ["0.7"]}, "temperature"),
        ({"kinds": ["math"], "temperatures": ["t0"]}, "temperature"),
    ],
)
def test_what_is_not_in_the_file_is_refused(given: dict[str, list[str]], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select(TRACES, **given)
    assert caught.value.field == field


def test_references_are_there_once() -> None:
    found = plan(select(TRACES), [CPU], ["ar", "auto", "best-fixed", "fixed:2", "auto", "oracle-chain"])
    assert sorted(found.policies) == ["ar", "auto", "best-fixed", "fixed:2", "oracle-chain"]


def test_cells_have_the_documented_keys_and_agree_with_replays() -> None:
    contents = select(TRACES, ["code"], ["t0"])
    runs = compare(plan(contents, [CPU, MOE], ["fixed:2"]))
    cells = as_json(runs)["cells"]
    assert isinstance(cells, list) and len(cells) == 8
    assert all(set(cell) - {"detail"} == KEYS for cell in cells)
    [fixed] = [cell for cell in cells if (cell["policy"], cell["costs"]) == ("fixed:2", "moe")]
    alone = replay(TRACES[0], MOE, "fixed:2")
    assert (fixed["tokens"], fixed["steps"]) == (alone.tokens, len(alone.steps))
    assert fixed["time_ms"] == pytest.approx(alone.time_ms)
    assert fixed["speedup"] == pytest.approx(alone.speedup)
    assert fixed["tokens_per_s"] == pytest.approx(1e3 * alone.tokens / alone.time_ms)
    assert fixed["ledger_min"] == pytest.approx(alone.ledger_min)
    by_policy = {cell["policy"]: cell for cell in cells if cell["costs"] == "cpu"}
    assert by_policy["ar"]["speedup"] == 1.0
    assert by_policy["oracle-chain"]["speedup"] >= by_policy["best-fixed"]["speedup"] >= 1.0
    assert by_policy["best-fixed"]["detail"].startswith("K=")


def test_a_shift_is_one_run_over_all_its_sequences() -> None:
    contents = select(TRACES, shifts=["code+prose"])
    [cell] = [run.cell for run in compare(plan(contents, [CPU], ["auto"])) if run.cell.policy == "auto"]
    together = replay([TRACES[0], TRACES[2]], CPU, "auto")
    assert (cell.kind, cell.tokens) == ("code+prose", 240)
    assert cell.time_ms == pytest.approx(together.time_ms)


def test_with_rows_speedup_is_against_plain_decoding_with_rows() -> None:
    comparison = plan(select(TRACES, ["prose"]), [CPU], ["fixed:1"], SimulateOptions(rows=2))
    cells = {run.cell.policy: run.cell for run in compare(comparison)}
    assert cells["ar"].speedup == 1.0
    assert cells["fixed:1"].speedup == pytest.approx(cells["ar"].time_ms / cells["fixed:1"].time_ms)
    assert cells["oracle-chain"].detail == "greedy foresight"


def test_progress_counts_every_cell_and_decisions_name_theirs() -> None:
    seen: list[tuple[int, int]] = []
    records: list[dict[str, object]] = []
    comparison = plan(select(TRACES, ["code"]), [CPU], ["auto"])
    runs = compare(comparison, lambda done, total, _label: seen.append((done, total)), records.append)
    assert seen == [(i, 8) for i in range(9)]
    steps = sum(run.cell.steps for run in runs if run.cell.policy == "auto")
    assert len(records) == steps
    assert {(r["kind"], r["temperature"], r["costs"], r["policy"]) for r in records} == {
        ("code", "t0", "cpu", "auto"),
        ("code", "t08", "cpu", "auto"),
    }


@pytest.mark.parametrize(
    ("policies", "options", "field"),
    [
        (["magic"], SimulateOptions(), "policy"),
        (["fixed:many"], SimulateOptions(), "policy"),
        (["entropy+auto"], SimulateOptions(), "policy"),
        (["auto"], SimulateOptions(rows=0), "rows"),
        (["auto"], SimulateOptions(floor=-1.0), "ledger_floor"),
        (["bod"], SimulateOptions(bod=BodRange(min_bet=9, max_bet=3)), "bod_min_bet"),
        (["ema+bod:tree"], SimulateOptions(bod=BodRange(max_bet=0)), "bod_max_bet"),
        (["auto"], SimulateOptions(bod=BodRange(min_bet=9, max_bet=3)), "bod_min_bet"),
        (["auto"], SimulateOptions(bod=BodRange(min_bet=2, max_bet=3)), "policy"),
        (["bod"], SimulateOptions(bod=BodRange(mode="bush")), "bod_mode"),
    ],
)
def test_a_bad_plan_is_refused(policies: list[str], options: SimulateOptions, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(select(TRACES), [CPU], policies, options)
    assert caught.value.field == field


def test_two_curves_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two curves are named 'cpu'"):
        plan(select(TRACES), [CPU, step_costs("cpu", 1.0, {1: 1.0})], ["auto"])


@pytest.mark.parametrize(
    ("name", "bod", "expected"),
    [
        ("bod", BodRange(min_bet=3, max_bet=3), "bod"),
        ("bod", BodRange("tree", 3, 3), "bod:tree"),
        ("bod:tree", BodRange("chain", 3, 3), "bod:tree"),
        ("ema+bod", BodRange("tree", 3, 3), "ema+bod:tree"),
    ],
)
def test_a_range_reaches_the_bod_inside(name: str, bod: BodRange, expected: str) -> None:
    assert policy_in_range(name, Experience(), bod).name == expected
    runs = compare(plan(select(TRACES, ["prose"]), [CPU], [name], SimulateOptions(bod=bod)))
    nodes = {step.num_nodes for run in runs if run.cell.policy == name for step in run.replay.steps}
    assert nodes - {0} == ({3} if "tree" in expected else {2})
