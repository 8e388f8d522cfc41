"""The pages say what the result files of the demo pair say."""

import pytest

from bench.pages import place_of, with_table
from bench.pair_tables import PLACES
from bench.results import ROOT


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, own in PLACES.items() for name in own])
def test_a_page_holds_the_table_of_its_results(page: str, name: str) -> None:
    found = place_of(name).search((ROOT / page).read_text(encoding="utf-8"))
    assert found is not None and found.group() == PLACES[page][name]()


def test_a_table_is_put_between_its_lines() -> None:
    page = "a\n<!-- table: x -->\n<!-- end -->\nb\n"
    once = with_table(page, "x", "| 1 |")
    assert once == "a\n<!-- table: x -->\n| 1 |\n<!-- end -->\nb\n"
    assert with_table(once, "x", "| 2 |") == once.replace("1", "2")
    with pytest.raises(ValueError, match="0 places"):
        with_table(page, "y", "")
