"""Prompt files: the suites that ship, the well-known suites, and files of one's own.

A row is a JSON object per line, plain or .xz: {"bench", "id", "category", "prompt"}, with "text" instead of
"prompt" if the prompt is the beginning of a text. Rows of the published files (question, problem, turns) are
accepted. This module knows no models: it notes whether a prompt is a chat, and runs.py applies the template.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from wager.errors import ConfigError, InputError

__all__ = [
    "DEMO_KINDS",
    "SUITES",
    "BenchPrompt",
    "Suite",
    "first_of_each_kind",
    "kinds_of",
    "load_suite",
    "read_prompts",
]

DEMO_KINDS = ("code", "math", "prose", "chat", "dialog")
SHIPPED = ("demo", "instruct")
"""Suites that ship: beginnings of texts for the demo pair, and questions for any model that chats."""
PROMPT_CHARS = 400
_MARK = "<|"
_SUFFIXES = (".jsonl", ".xz", ".json")


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt; `as_chat` says that it is a question for the chat template, if the model has one."""

    kind: str
    id: str
    text: str
    as_chat: bool = False


class Suite(NamedTuple):
    """A named suite: the rows of a prompt file that belong to it, and their form."""

    name: str
    benches: tuple[str, ...]
    """Values of "bench" that mark its rows."""
    published: str
    """The name of its published file."""
    as_chat: bool = True
    kinds: Mapping[str, str] | None = None
    """Maps categories to kinds if their names differ; None: the whole suite is one kind."""


# Spec-Bench reports the categories of MT-Bench as one.
_SPEC_KINDS = dict.fromkeys(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "mt-bench"
)
SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("demo", ("demo",), "prompts that ship with Wager", False, {}),
        Suite("instruct", ("instruct",), "questions that ship with Wager", True, {}),
        Suite("spec-bench", ("spec_bench", "spec-bench"), "Spec-Bench's question.jsonl", True, _SPEC_KINDS),
        Suite("gsm8k", ("gsm8k", "gsm8k_test"), "GSM8K's test.jsonl"),
        Suite("math500", ("math500", "math-500"), "MATH-500's test.jsonl"),
        Suite("humaneval", ("humaneval",), "HumanEval.jsonl", False),
        Suite("mbpp", ("mbpp", "mbpp_test"), "mbpp.jsonl"),
    )
}


def load_suite(
    name: str | None, file: Path | None = None, prompt_chars: int = PROMPT_CHARS
) -> list[BenchPrompt]:
    """Returns the prompts of a suite, of a file, or of a suite's rows in a file.

    Raises ConfigError on an unknown name, InputError if the file is missing, damaged or has no such rows.
    """
    if name is not None and name not in SUITES:
        raise ConfigError("suite", name, f"one of {', '.join(SUITES)}")
    if prompt_chars < 1:
        raise ConfigError("prompt_chars", prompt_chars, "a whole number from 1")
    if file is not None:
        return read_prompts(file, SUITES[name] if name else None, prompt_chars)
    suite = SUITES[name or "demo"]
    if suite.name not in SHIPPED:
        raise InputError(_expected(suite), field="prompts")
    file_name = f"{suite.name}.jsonl"
    with resources.files("wager.bench").joinpath("prompts", file_name).open(encoding="utf-8") as lines:
        return [_prompt(row, suite, prompt_chars, file_name) for row in _rows(lines, file_name)]


def read_prompts(
    path: Path, suite: Suite | None = None, prompt_chars: int = PROMPT_CHARS
) -> list[BenchPrompt]:
    """Returns the prompts of a file, or those of its rows that belong to the suite."""
    with _opened(path) as lines:
        try:
            rows = list(_rows(lines, path.name))
        except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read: {error}", field="prompts") from error
    if suite is not None:
        rows = _own_rows(rows, suite, path)
    if not rows:
        raise InputError(f"{path} has no prompts", field="prompts")
    return [_prompt(row, suite or _suite_of(row), prompt_chars, path.name) for row in rows]


def first_of_each_kind(prompts: Sequence[BenchPrompt], limit: int | None) -> list[BenchPrompt]:
    """Returns the first `limit` prompts of every kind; all without a limit."""
    if limit is None:
        return list(prompts)
    if limit < 1:
        raise ConfigError("limit", limit, "a whole number from 1")
    seen: dict[str, int] = {}
    kept = []
    for prompt in prompts:
        seen[prompt.kind] = seen.get(prompt.kind, 0) + 1
        if seen[prompt.kind] <= limit:
            kept.append(prompt)
    return kept


def kinds_of(prompts: Iterable[BenchPrompt]) -> list[str]:
    """Returns the kinds in the order of their first prompt."""
    return list(dict.fromkeys(prompt.kind for prompt in prompts))


def _expected(suite: Suite) -> str:
    benches = " or ".join(json.dumps(bench) for bench in suite.benches)
    return (
        f"suite {suite.name} needs a file: give --prompts FILE, either {suite.published} as published, or "
        f'.jsonl[.xz] rows {{"bench": {benches}, "id", "prompt"}}'
    )


def _opened(path: Path) -> Any:
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path} must end in .jsonl or .jsonl.xz", field="prompts")
    if not path.is_file():
        raise InputError(f"no such file: {path}", field="prompts")
    opener = lzma.open if path.suffix == ".xz" else open
    return opener(path, "rt", encoding="utf-8")


def _rows(lines: Iterable[str], name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{name}, line {number}: expected a JSON object", field="prompts")
        row["line"] = number
        yield row


def _own_rows(rows: list[dict[str, Any]], suite: Suite, path: Path) -> list[dict[str, Any]]:
    """Returns the suite's rows; if no row of a file names a bench, all rows belong to the suite."""
    found = [row for row in rows if row.get("bench", suite.benches[0]) in suite.benches]
    if rows and not found:
        others = ", ".join(sorted({str(row["bench"]) for row in rows}))
        raise InputError(f"{path} has {others}. {_expected(suite)}", field="prompts")
    return found


def _suite_of(row: Mapping[str, Any]) -> Suite:
    """Returns the suite of a row in a file without a suite: by its bench, else by its category."""
    bench = row.get("bench")
    known = next((suite for suite in SUITES.values() if bench in suite.benches), None)
    return known or Suite(str(bench or "text"), (), "", True, {})


def _prompt(row: Mapping[str, Any], suite: Suite, prompt_chars: int, name: str) -> BenchPrompt:
    text, is_beginning = _text_of(row, prompt_chars)
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f'{name}, line {row["line"]}: expected a text under "prompt" or "text"', field="prompts"
        )
    category = row.get("category")
    kind = (
        suite.name if suite.kinds is None or not category else suite.kinds.get(str(category), str(category))
    )
    own_id = row.get("id", row.get("task_id", row.get("question_id", row.get("unique_id"))))
    id = f"{kind}/{row['line']}" if own_id is None else str(own_id)
    # Text that already has chat marks is already in the form of a chat.
    as_chat = suite.as_chat and not is_beginning and _MARK not in text
    return BenchPrompt(kind, id, text, as_chat)


def _text_of(row: Mapping[str, Any], prompt_chars: int) -> tuple[object, bool]:
    """Returns the prompt, and whether it is the beginning of a longer text."""
    for field in ("prompt", "question", "problem"):
        if field in row:
            return row[field], False
    turns = row.get("turns")
    if isinstance(turns, list) and turns:
        return turns[0], False
    text = row.get("text")
    if "test_list" in row:  # MBPP's own file calls the question text
        return text, False
    return (text[:prompt_chars] if isinstance(text, str) else text), True
