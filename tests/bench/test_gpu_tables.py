"""The page of GPU results holds the figures of its result files."""

import json
from pathlib import Path

import pytest

from bench import gpu_tables
from bench.gpu_tables import PAGE, TABLES, load_table
from bench.pages import place_of


@pytest.mark.parametrize("name", TABLES)
def test_the_page_holds_the_table_of_its_results(name: str) -> None:
    found = place_of(name).search(PAGE.read_text(encoding="utf-8"))
    assert found is not None and found.group() == TABLES[name]()


def test_the_table_of_the_closed_loop_has_a_line_per_number_of_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(places: int, temperature: float, driver: str = "direct") -> dict[str, object]:
        rates = {"tokens_per_s": {"ar": 100.4 * places}, "over_ar": {"auto": 1.5}, "control": 0.999}
        return {"places": places, "temperature": temperature, "driver": driver, **rates}

    cells = [cell(8, 0.0), cell(2, 0.0), cell(2, 0.8), cell(4, 0.0, "bridge")]
    data = {"data": {"figures": {"cells": cells}}}
    (tmp_path / "gpu_load.json").write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setattr(gpu_tables, "RESULTS", tmp_path)
    head, _, first, second = load_table().split("\n")
    assert head.count("|") == 8 and "`auto` over `ar`, 0.8" in head
    assert first == "| 2 | 201 | 1.500 | 0.999 | 201 | 1.500 | 0.999 |"
    assert second == "| 8 | 803 | 1.500 | 0.999 |  |  |  |"
