"""Features that wait: those of a tensor of their own and lines of one that rows share come out alike."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.draft.context import FeatureContext


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=8), st.data())
def test_lines_are_as_good_as_copies(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Each step adds tokens, of which the first few may be known already, and takes some out."""
    shared, owned = FeatureContext(0), FeatureContext(0)
    for count, again in steps:
        start = max(owned.num_known - again, 0)
        features = torch.arange(float(start), float(start + count + 5))[:, None]
        owned.add(start, features[:count])
        whole = torch.cat((features.new_full((3, 1), -1.0), features))
        shared.add_lines(start, whole, range(3, 3 + count))
        assert shared.num_known == owned.num_known
        stop = data.draw(st.integers(owned.watermark, owned.num_known))
        wanted = list(range(owned.watermark, stop))
        for context in (shared, owned):
            found = [int(value) for chunk in context.before(stop) for value in chunk[:, 0]]
            assert found == wanted
            context.advance(stop)
            assert context.watermark == stop


def test_nothing_is_stored_behind_a_gap() -> None:
    context = FeatureContext(4)
    context.add_lines(5, torch.zeros(9, 1), range(2, 4))
    assert context.num_known == 4
