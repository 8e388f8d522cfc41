"""What a look is worth: the table in the page is the result file's, and a replay bets in both ways."""

import pytest

from bench.blind import PAGE, RESULT, measured, summary, table
from bench.pages import place_of
from wager.trace import demo_traces, load_costs, select


def test_the_table_equals_the_result_file() -> None:
    found = place_of("blind").search(PAGE.read_text(encoding="utf-8"))
    assert found is not None and found.group() == table(RESULT), "run: python -m bench.blind --docs"


def test_a_content_is_replayed_both_ways() -> None:
    content = select(demo_traces().traces)[0]
    found = measured(content, load_costs("h200"), 1)
    assert found["bets_unseen"] > 0.5
    assert found["blind"] == pytest.approx(found["looked"], rel=0.1)
    (mean,) = summary([found])
    assert mean["blind"] == pytest.approx(found["blind"]) and mean["worth_ms"] == found["worth_ms"]
