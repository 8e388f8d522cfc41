"""The tables in the pages say what the result file says, and the result file names no place of its own."""

import re
from pathlib import Path

import pytest

from bench.pages import place_of
from bench.policy import CURVES, POLICIES, RESULT, conditions
from bench.policy_tables import PAGES, TABLES, read_entries, rewritten, summaries
from bench.results import ROOT

ENTRIES = read_entries(RESULT)
PLACES = [(page, name) for page, names in PAGES.items() for name in names]


def test_every_cell_is_there_once() -> None:
    keys = [(e["condition"], e["kind"], e["temperature"], e["costs"]) for e in ENTRIES]
    contents = {key[1:3] for key in keys}
    assert len(set(keys)) == len(keys) == len(conditions(0)) * len(contents) * len(CURVES)
    assert all(set(e["speedup"]) == {*POLICIES, "ar", "best-fixed", "oracle-chain"} for e in ENTRIES)


@pytest.mark.parametrize(("page", "name"), PLACES, ids=[f"{p.name}-{n}" for p, n in PLACES])
def test_a_table_equals_the_result_file(page: Path, name: str) -> None:
    found = place_of(name).search(page.read_text(encoding="utf-8"))
    assert found is not None
    assert found.group() == TABLES[name](ENTRIES), "run: python -m bench.policy --docs"


def test_every_table_has_a_page() -> None:
    assert {name for _, name in PLACES} == set(TABLES)


def test_summaries_find_the_extremes() -> None:
    entries = [
        {
            "condition": "quiet",
            "kind": kind,
            "temperature": "t08",
            "costs": "cpu",
            "speedup": speedup,
            "auto_step_by_step": speedup["auto"] + 0.05,
        }
        for kind, speedup in {
            "code": {"auto": 1.2, "best-fixed": 1.5},
            "prose": {"auto": 0.9, "best-fixed": 1.0},
        }.items()
    ]
    [one] = summaries(entries)
    assert (one["min_auto_over_plain"], one["min_auto_over_plain_at"]) == (0.9, "prose 0.8 cpu")
    assert (one["min_auto_over_best_fixed"], one["min_auto_over_best_fixed_at"]) == (0.8, "code 0.8 cpu")
    assert one["min_auto_step_by_step"] == pytest.approx(0.95)
    assert one["mean_auto_over_best_fixed"] == pytest.approx((0.8 * 0.9) ** 0.5, abs=1e-4)


def test_a_page_without_the_place_is_refused() -> None:
    with pytest.raises(ValueError, match="'policies' has 0 places"):
        rewritten("# A page\n", ["policies"], ENTRIES)


def test_the_result_names_its_trace_without_a_path() -> None:
    text = RESULT.read_text(encoding="utf-8")
    assert re.search(r'"traces": "[^"/\\]+\.npz"', text)
    assert re.search(r'"traces_sha256": "[0-9a-f]{64}"', text)
    assert str(ROOT.parent) + "/" not in text
