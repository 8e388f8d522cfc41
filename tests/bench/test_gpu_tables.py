"""The page on CUDA devices says what their result files say."""

import pytest

from bench.gpu_tables import PAGE, PLACES
from bench.pages import place_of


@pytest.mark.parametrize("name", PLACES)
def test_the_page_holds_the_table_of_its_results(name: str) -> None:
    found = place_of(name).search(PAGE.read_text(encoding="utf-8"))
    assert found is not None and found.group() == PLACES[name]()
