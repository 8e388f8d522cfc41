"""Soft ceilings on files and functions: over the ceiling is a warning, over twice the ceiling a failure."""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.architecture.layout import PACKAGE, ROOT, package_files

FILE_LINES = 400
FUNCTION_LINES = 60
STEP_LINES = 150


class Size(NamedTuple):
    """Something measured, and the length it should keep to."""

    what: str
    lines: int
    ceiling: int


def sizes_in(source: str, label: str, file_ceiling: int = FILE_LINES) -> Iterator[Size]:
    yield Size(label, len(source.splitlines()), file_ceiling)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield Size(f"{label}:{node.name}", node.end_lineno - node.lineno + 1, FUNCTION_LINES)


def sizes_of(path: Path) -> Iterator[Size]:
    ceiling = STEP_LINES if path == PACKAGE / "engine" / "step.py" else FILE_LINES
    return sizes_in(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)), ceiling)


def test_nothing_grows_past_twice_its_ceiling() -> None:
    sizes = [size for path in package_files() for size in sizes_of(path)]
    for size in sizes:
        if size.ceiling < size.lines <= 2 * size.ceiling:
            warnings.warn(f"{size.what} has {size.lines} lines, ceiling {size.ceiling}", stacklevel=1)
    assert [size for size in sizes if size.lines > 2 * size.ceiling] == []


def test_lengths_are_counted_in_lines() -> None:
    source = "def outer():\n    def inner():\n        pass\n    return inner\n"
    assert [(size.what, size.lines) for size in sizes_in(source, "x.py")] == [
        ("x.py", 4),
        ("x.py:outer", 4),
        ("x.py:inner", 2),
    ]
