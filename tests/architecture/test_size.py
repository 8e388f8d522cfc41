"""Limits on the length of files and functions, and on `engine/step.py`."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.architecture.layout import PACKAGE, ROOT, package_files

FILE_LINES = 400
FUNCTION_LINES = 60
STEP_LINES = 150
KERNELS = PACKAGE / "nn" / "kernels"
"""Functions here may be longer: a Triton kernel is one function."""


class Size(NamedTuple):
    """The length of a file or a function, and its limit."""

    what: str
    lines: int
    limit: int


def sizes_in(source: str, label: str, file_limit: int = FILE_LINES) -> Iterator[Size]:
    yield Size(label, len(source.splitlines()), file_limit)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield Size(f"{label}:{node.name}", node.end_lineno - node.lineno + 1, FUNCTION_LINES)


def sizes_of(path: Path) -> Iterator[Size]:
    limit = STEP_LINES if path == PACKAGE / "engine" / "step.py" else FILE_LINES
    sizes = sizes_in(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)), limit)
    return (size for size in sizes if ":" not in size.what) if path.is_relative_to(KERNELS) else sizes


def test_no_file_and_no_function_is_too_long() -> None:
    sizes = [size for path in package_files() for size in sizes_of(path)]
    assert [size for size in sizes if size.lines > size.limit] == []


def test_lengths_are_counted_in_lines() -> None:
    source = "def outer():\n    def inner():\n        pass\n    return inner\n"
    assert [(size.what, size.lines) for size in sizes_in(source, "x.py")] == [
        ("x.py", 4),
        ("x.py:outer", 4),
        ("x.py:inner", 2),
    ]
