"""Tables in Markdown pages: how they look, and where they stand.

A table stands between two comment lines, the first of which names it, so that a benchmark can rewrite it from
its result file and a test can compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table whose first `words` columns are words and the rest numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *lines])


def place_of(name: str) -> re.Pattern[str]:
    """Where a table stands: between its two comment lines."""
    return re.compile(rf"(?<=<!-- table: {name} -->\n).*?(?=\n?<!-- end -->)", re.DOTALL)


def with_table(text: str, name: str, table: str) -> str:
    """The page with this table anew. Raises ValueError where it has no place."""
    count, place = text.count(f"<!-- table: {name} -->\n"), place_of(name).search(text)
    if count != 1 or place is None:
        raise ValueError(f"the table {name!r} has {count} places in the page, not 1")
    start, end = place.span()
    return text[:start] + table + ("" if text[end:].startswith("\n") else "\n") + text[end:]
