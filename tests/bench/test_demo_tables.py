"""The demo's table in the pages: made from a result file, and equal to the one that is committed."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import demo_tables
from bench.demo_tables import PAGES, RESULT, TABLE, demo_table, pages_with_place, read_result
from bench.pages import place_of
from wager.bench.results import ROOT

KIND = {
    "kind": "code",
    "plain_tokens_per_s": 101.4,
    "wager_tokens_per_s": 160.6,
    "speedup": 1.584,
    "lowest": 1.2,
    "highest": 2.0,
    "tokens_per_step": 1.9,
    "verdict": "faster",
}
RESULT_FILE: dict[str, Any] = {
    "config": {
        "model": "smollm2",
        "num_weights": 134_500_000,
        "drafter": {"value": ["block", "lookup"], "source": "auto"},
        "temperature": 0.0,
        "max_tokens": 128,
        "threads": 2,
        "passes": {"value": "native", "source": "auto"},
    },
    "machine": {"cpu": "A processor", "cores": 2},
    "data": {
        "kinds": [KIND, {**KIND, "kind": "prose", "speedup": 0.98, "verdict": "no difference"}],
        "overall": {"speedup": 1.246, "low": 1.1, "high": 1.4, "verdict": "faster"},
        "scatter": {"difference": 0.012},
        "repeated_8grams": 0.034,
        "trials": [{}] * 15,
    },
}


def test_the_table_has_every_kind_and_the_mean_with_its_range() -> None:
    lines = demo_table(RESULT_FILE).splitlines()
    assert lines[2] == "| code | 101 | 161 | 1.58 | 1.20 to 2.00 | 1.90 | faster |"
    assert lines[3].endswith("| no difference |")
    assert lines[4] == "| mean, 95 % range |  |  | 1.25 | 1.10 to 1.40 |  | faster |"
    caption = lines[-1]
    for said in (
        "smollm2",
        "134 million",
        "block and lookup, greedy, 15 answers",
        "native passes",
        "1.2%",
        "3%",
    ):
        assert said in caption
    sampled = {**RESULT_FILE, "config": {**RESULT_FILE["config"], "temperature": 0.8}}
    assert "temperature 0.8" in demo_table(sampled)


def test_the_script_rewrites_the_pages_that_have_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    page, other = tmp_path / "README.md", tmp_path / "docs" / "demo.md"
    page.write_text(f"a\n<!-- table: {TABLE} -->\nold\n<!-- end -->\nb\n")
    other.write_text("no place\n")
    monkeypatch.setattr(demo_tables, "ROOT", tmp_path)
    monkeypatch.setattr(demo_tables, "read_result", lambda: RESULT_FILE)
    demo_tables.main()
    assert page.read_text() == f"a\n<!-- table: {TABLE} -->\n{demo_table(RESULT_FILE)}\n<!-- end -->\nb\n"
    assert other.read_text() == "no place\n" and "README.md" in capsys.readouterr().out
    page.write_text("a\n")
    demo_tables.main()
    assert "no page has a place" in capsys.readouterr().out


def test_the_pages_show_the_committed_result() -> None:
    pages = pages_with_place()
    assert {str(page.relative_to(ROOT)) for page in pages} <= set(PAGES)
    assert not pages or RESULT.is_file(), "a page has a place for the table of a missing file"
    for page in pages:
        found = place_of(TABLE).search(page.read_text(encoding="utf-8"))
        assert found is not None and found.group() == demo_table(read_result())


def test_the_result_of_the_demo_is_what_the_table_reads(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(RESULT_FILE))
    assert demo_table(read_result(path)) == demo_table(RESULT_FILE)
