"""Crowds in a replay: the page says what the result file says, and minima are found where they are."""

import json

import pytest

from bench.crowd import HOSTS, PAGE, POLICIES, RESULT, ROWS, calibrated, costs_of, crowd_table, summary
from bench.pages import place_of
from wager.costs import DraftShape

RESULTS = json.loads(RESULT.read_text(encoding="utf-8"))


def test_the_page_holds_the_table_of_its_results() -> None:
    found = place_of("crowd").search(PAGE.read_text(encoding="utf-8"))
    assert found is not None and found.group() == crowd_table(RESULTS["data"]["cells"])


def test_the_result_has_its_own_summary_and_names_no_place() -> None:
    assert RESULTS["data"]["summary"] == summary(RESULTS["data"]["cells"])
    assert "/" not in RESULTS["config"]["traces"]


def test_a_slower_host_makes_drafts_dearer_and_calibration_knows_of_none() -> None:
    times = [costs_of(host).row_ms for host in HOSTS]
    assert times == sorted(times) and times[0] > 0.06
    costs = calibrated().costs
    assert costs.draft_ms("draft", DraftShape(16)) == pytest.approx(0.9 + 0.06 * 15, rel=0.05)
    assert costs.plain_ms(16, 0) == pytest.approx(4.6, rel=1e-3)


def test_the_summary_finds_the_least_of_the_best() -> None:
    speeds = {
        ("code", "auto"): 1.1,
        ("code", "fixed:2"): 2.2,
        ("prose", "auto"): 0.9,
        ("prose", "fixed:2"): 0.5,
    }
    cells = [
        {"content": content, "host": "quick", "rows": rows, "policy": policy, "speedup": speed}
        for (content, policy), speed in speeds.items()
        for rows in ROWS
    ]
    cells += [
        {"content": content, "host": "quick", "rows": rows, "policy": POLICIES[2], "speedup": 0.1}
        for content in ("code", "prose")
        for rows in ROWS
    ]
    for one in summary(cells).values():
        assert one == {"slowest": 0.9, "least_of_best": 0.5, "least_of_best_at": "code, quick"}
