"""Every command and snippet of README.md and docs/*.md runs as written; pages.py explains the exceptions."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.packaging.block_runner import (
    QUICK_LIMIT_S,
    SLOW_LIMIT_S,
    environment,
    run_block,
    run_shell,
    serving,
    talks_to_a_server,
)
from tests.packaging.pages import (
    Block,
    Marker,
    MarkerError,
    all_blocks,
    blocks_of,
    commands_of,
    program_of,
    read_marker,
    words_of,
)
from wager.cli import main
from wager.fetched import is_fetched

BLOCKS = all_blocks()
RUN = [block for block in BLOCKS if block.is_run]
COMMANDS = [
    (block.place, words_of(command)[1:])
    for block in BLOCKS
    for command in block.commands
    if program_of(command) == "wager"
]


def as_param(blocks: list[Block]) -> Any:
    is_slow = any(block.is_slow for block in blocks)
    return pytest.param(blocks, id=blocks[-1].place, marks=[pytest.mark.slow] if is_slow else [])


def python_runs() -> list[list[Block]]:
    """For each page its quick Python blocks, and also all of them if some are slow."""
    runs = []
    for page in dict.fromkeys(block.page for block in RUN if block.language == "python"):
        blocks = [block for block in RUN if block.page == page and block.language == "python"]
        quick = [block for block in blocks if not block.is_slow]
        runs += [run for run in (quick, blocks if len(quick) < len(blocks) else []) if run]
    return runs


RUNS = [*([block] for block in RUN if block.language != "python"), *python_runs()]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def server(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the demo pair, for the blocks that talk to one."""
    folder = tmp_path_factory.mktemp("server")
    with serving("wager serve", folder, environment(cache), SLOW_LIMIT_S) as address:
        yield address


def test_there_are_pages_with_blocks_of_every_kind() -> None:
    assert {"sh", "python", "toml", "json"} <= {block.language for block in RUN}
    assert any(block.page == "README.md" for block in RUN)
    assert any(talks_to_a_server(block) for block in RUN)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.language or block.marker.reason, (
        f"{block.place} is neither sh, python, toml nor json: put <!-- run: not, REASON --> in front of it"
    )
    assert not block.marker.reason or len(block.marker.reason.split()) >= 2


@pytest.mark.parametrize(
    ("place", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_line_is_understood(place: str, words: list[str]) -> None:
    """Also those that are run in the slow tests only, or not at all."""
    group = typer.main.get_command(main.app)
    if words[0].startswith("-"):
        pytest.skip("no verb")
    command = group.get_command(typer.Context(group), words[0])  # type: ignore[attr-defined,arg-type]
    assert command is not None, f"{place}: no command {words[0]!r}"
    command.make_context(words[0], words[1:])


@pytest.mark.parametrize("blocks", [as_param(blocks) for blocks in RUNS])
def test_blocks_run_as_written(
    blocks: list[Block],
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    with_models = any(block.names_smollm2 for block in blocks)
    if with_models and not is_fetched("smollm2"):
        pytest.skip("SmolLM2 is not on this machine: wager fetch smollm2")
    address = request.getfixturevalue("server") if any(map(talks_to_a_server, blocks)) else None
    for name, value in environment(cache, with_models=with_models).items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)  # one thread is enough
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        run_block(block, tmp_path, cache, address, names)


def test_a_failing_command_in_the_middle_of_a_block_is_seen(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(AssertionError, match="status 3"):
        run_shell("echo one\n(exit 3)\necho two\n", tmp_path, environment(cache), QUICK_LIMIT_S)


def test_a_server_that_ends_at_once_is_seen(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(AssertionError, match="no-such-folder"):
        run_shell("wager serve ./no-such-folder\n", tmp_path, environment(cache), QUICK_LIMIT_S)


def test_a_snippet_that_raises_is_seen(tmp_path: Path, cache: Path) -> None:
    [block] = blocks_of("```python\nimport wager\nwager.no_such_name\n```\n", "page.md")
    with pytest.raises(AttributeError, match="no_such_name"):
        run_block(block, tmp_path, cache, None, {})


def test_a_snippet_continues_the_ones_before_it(tmp_path: Path, cache: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks_of("```python\nx = 1\n```\n```python\nassert x == 1\ny = 2\n```\n", "page.md"):
        run_block(block, tmp_path, cache, None, names)
    assert names["y"] == 2


def test_a_session_is_not_run_but_its_commands_are_known() -> None:
    [block] = blocks_of("```\n$ wager chat demo\n> Hello.\n$ wager models\n```\n", "page.md")
    assert not block.is_run
    assert block.commands == ["wager chat demo", "wager models"]


def test_a_marker_changes_the_block_behind_it() -> None:
    page = "Text.\n\n<!-- run: slow\nwith MODEL -> demo\nfirst echo hello -->\n```\nwager doctor MODEL\n```\n"
    [block] = blocks_of(page, "page.md")
    assert (block.language, block.line, block.is_slow) == ("sh", 6, True)
    assert block.text == "echo hello\nwager doctor demo\n"
    assert block.marker == Marker("", True, (("MODEL", "demo"),), ("echo hello",))


def test_a_marker_applies_to_the_next_block_only() -> None:
    page = "<!-- run: not, needs a GPU -->\n```\nwager models\n```\n\n```\nwager models\n```\n"
    assert [block.marker.reason for block in blocks_of(page, "page.md")] == ["needs a GPU", ""]


@pytest.mark.parametrize("text", ["not", "sometimes", "slow please", "with this", "first"])
def test_a_marker_without_meaning_is_refused(text: str) -> None:
    with pytest.raises(MarkerError):
        read_marker(text)


def test_a_replacement_without_effect_is_refused() -> None:
    with pytest.raises(MarkerError, match=r"page.md:2: 'MODEL'"):
        list(blocks_of("<!-- run: with MODEL -> demo -->\n```\nwager models\n```\n", "page.md"))


def test_blocks_are_split_into_commands() -> None:
    text = "# a comment\nwager a \\\n  b\n\nKEY=x wager 'c\nd'  # more\ncurl -d '{\n}'\n"
    assert [words_of(command) for command in commands_of(text)] == [
        ["wager", "a", "b"],
        ["wager", "c\nd"],
        ["curl", "-d", "{\n}"],
    ]


def test_a_block_without_a_language_is_a_shell_block_if_all_its_commands_are_known() -> None:
    page = "```\nKEY=x .venv/bin/wager models\n```\n```\nwager/\n  llm.py\n```\n"
    assert [block.language for block in blocks_of(page, "page.md")] == ["sh", ""]
