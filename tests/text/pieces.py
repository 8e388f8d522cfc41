"""Cuts a text into pieces, for tests of readers that take text as it arrives."""

from itertools import pairwise

from hypothesis import strategies as st

CUTS = st.lists(st.integers(0, 10**6), max_size=12)


def cut(text: str, cuts: list[int]) -> list[str]:
    """`text` in pieces, some of them empty, that end at `cuts` (taken around its length)."""
    edges = [0, *sorted(place % (len(text) + 1) for place in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]
