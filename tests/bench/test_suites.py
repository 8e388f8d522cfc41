"""Prompt files: what ships, what is known by name, what anybody brings, and every way they can be wrong."""

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from wager.bench.suites import (
    DEMO_KINDS,
    SHIPPED,
    SUITES,
    BenchPrompt,
    first_of_each_kind,
    kinds_of,
    load_suite,
    read_prompts,
)
from wager.errors import ConfigError, InputError


def write(path: Path, *rows: Any) -> Path:
    lines = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(lines.encode()))
    else:
        path.write_text(lines, encoding="utf-8")
    return path


def test_the_suite_that_ships() -> None:
    prompts = load_suite("demo")
    counts = Counter(prompt.kind for prompt in prompts)
    assert tuple(kinds_of(prompts)) == DEMO_KINDS
    assert all(8 <= count <= 12 for count in counts.values())
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    assert all(150 <= len(prompt.text) <= 500 and not prompt.as_chat for prompt in prompts)
    assert load_suite(None) == prompts


def test_the_questions_that_ship() -> None:
    prompts = load_suite("instruct")
    assert Counter(prompt.kind for prompt in prompts) == dict.fromkeys(DEMO_KINDS, 3)
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    assert all(prompt.as_chat and 20 <= len(prompt.text) <= 300 for prompt in prompts)


def test_marks_of_the_demo_suite() -> None:
    """Chat-like kinds wait for the assistant (or a tool); the others carry no marks at all."""
    for prompt in load_suite("demo"):
        if prompt.kind in ("code", "prose"):
            assert "<|" not in prompt.text
        elif prompt.kind == "dialog":
            assert prompt.text.endswith(("<|assistant|>\n", "<|tool|>\n")) and "<|user|>\n" in prompt.text
        else:
            assert prompt.text.startswith("<|user|>\n") and prompt.text.endswith("\n<|assistant|>\n")


PUBLISHED: dict[str, tuple[dict[str, Any], BenchPrompt]] = {
    "gsm8k": (
        {"question": "How many?", "answer": "#### 3"},
        BenchPrompt("gsm8k", "gsm8k/1", "How many?", True),
    ),
    "math500": (
        {"problem": "Find $x$.", "unique_id": "test/7", "subject": "Algebra"},
        BenchPrompt("math500", "test/7", "Find $x$.", True),
    ),
    "humaneval": (
        {"task_id": "HumanEval/0", "prompt": "def f(x):\n"},
        BenchPrompt("humaneval", "HumanEval/0", "def f(x):\n"),
    ),
    "mbpp": (
        {"task_id": 11, "text": "Write a function.", "test_list": ["assert f()"]},
        BenchPrompt("mbpp", "11", "Write a function.", True),
    ),
    "spec-bench": (
        {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Again."]},
        BenchPrompt("mt-bench", "81", "Compose a post.", True),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rows_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    row, expected = PUBLISHED[name]
    assert load_suite(name, write(tmp_path / "file.jsonl", row)) == [expected]


def test_a_suite_takes_its_own_rows_of_a_joined_file(tmp_path: Path) -> None:
    rows = [
        {"bench": "gsm8k_test", "id": "g/0", "prompt": "How many?"},
        {"bench": "spec_bench", "id": "s/0", "category": "qa", "prompt": "Who?"},
        {"bench": "spec_bench", "id": "s/1", "category": "coding", "prompt": "Write it."},
        {"bench": "mbpp_test", "id": "m/0", "prompt": "A function."},
    ]
    path = write(tmp_path / "all.jsonl.xz", *rows)
    assert [prompt.id for prompt in load_suite("gsm8k", path)] == ["g/0"]
    assert [prompt.kind for prompt in load_suite("spec-bench", path)] == ["qa", "mt-bench"]
    assert [prompt.kind for prompt in read_prompts(path)] == ["gsm8k", "qa", "mt-bench", "mbpp"]
    with pytest.raises(InputError, match=r"has gsm8k_test, mbpp_test, spec_bench.*HumanEval\.jsonl"):
        load_suite("humaneval", path)


def test_files_of_ones_own(tmp_path: Path) -> None:
    rows = [
        {"bench": "mine", "id": 1, "category": "letters", "prompt": "Dear all,"},
        {"prompt": "<|user|>\nHello\n<|assistant|>\n"},
        {"bench": "heldout", "category": "prose", "text": "x" * 900},
    ]
    letters, marked, heldout = load_suite(None, write(tmp_path / "own.jsonl", *rows, ""), 7)
    assert letters == BenchPrompt("letters", "1", "Dear all,", True)
    assert (marked.kind, marked.as_chat) == ("text", False)
    assert heldout == BenchPrompt("prose", "prose/3", "x" * 7, False)


@pytest.mark.parametrize("name", [name for name in SUITES if name not in SHIPPED])
def test_a_suite_without_its_file_says_what_it_wants(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load_suite(name)
    said = str(caught.value)
    assert "--prompts FILE" in said and SUITES[name].published in said
    assert all(f'"{bench}"' in said for bench in SUITES[name].benches)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (["not json"], "line 1: expected a JSON object"),
        (["[1, 2]"], "line 1: expected a JSON object"),
        ([{"prompt": "fine"}, {"id": "x"}], "line 2: expected a text"),
        ([{"prompt": "  "}], "line 1: expected a text"),
        ([{"prompt": 7}], "line 1: expected a text"),
        ([], "has no prompts"),
    ],
)
def test_bad_rows_are_named(content: list[Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        load_suite(None, write(tmp_path / "bad.jsonl", *content))


def test_bad_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl.xz"
    broken.write_bytes(b"not compressed")
    cut = tmp_path / "cut.jsonl.xz"
    cut.write_bytes(lzma.compress(b'{"prompt": "a"}\n' * 1000)[:60])
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (broken, cut, binary):
        with pytest.raises(InputError, match="cannot be read"):
            load_suite(None, path)
    with pytest.raises(InputError, match="no such file"):
        load_suite(None, tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"must end in \.jsonl"):
        load_suite(None, tmp_path / "prompts.txt")


def test_bad_values() -> None:
    with pytest.raises(ConfigError, match="spec-bench"):
        load_suite("specbench")
    with pytest.raises(ConfigError, match="prompt_chars"):
        load_suite("demo", None, 0)
    with pytest.raises(ConfigError, match="limit"):
        first_of_each_kind([], 0)


def test_a_limit_is_by_kind() -> None:
    prompts = [BenchPrompt(kind, str(i), "x") for i in range(4) for kind in "ab"]
    assert [(prompt.kind, prompt.id) for prompt in first_of_each_kind(prompts, 2)] == [
        ("a", "0"),
        ("b", "0"),
        ("a", "1"),
        ("b", "1"),
    ]
    assert first_of_each_kind(prompts, None) == prompts
