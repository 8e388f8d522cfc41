"""A report is the same after a file; its tables and notes say what the figures say; damage is named."""

import json
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.architecture.layout import ROOT
from tests.bench.made_up import measured, report
from wager.bench.records import Difference, Measured
from wager.bench.report import Report, make_report, read_report, write_report
from wager.bench.table import notes, show
from wager.errors import InputError

TIE = Difference("auto", 2, 11, 40, 41, 3e-6, True)
WRONG = Difference("fixed:2", 0, 5, 7, None, 0.25, False)


def shown(found: Report) -> str:
    console = Console(file=StringIO(), width=200)
    show(found, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_file_brings_everything_back(tmp_path: Path) -> None:
    found = measured(rounds=2)
    found.differences = [TIE, WRONG]
    written = report(found)
    write_report(written, tmp_path / "run.json")
    read = read_report(tmp_path / "run.json")
    assert read.config == written.config and read.origin == written.origin
    assert read.measured == found and read.summary == written.summary
    write_report(read, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "run.json").read_text()


def test_the_file_states_figures_for_others(tmp_path: Path) -> None:
    write_report(report(), tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    data = json.loads(text)["data"]
    cell = data["summary"]["by_kind"]["code"]["auto"]
    assert cell["speedup"]["mean"] == pytest.approx(2.0) and cell["steps"]["bets"]["2"] == 0.5
    assert data["summary"]["best_fixed"]["prose"]["contender"] == "fixed:4"
    assert data["summary"]["plain_against_plain"]["all kinds"]["mean"] == pytest.approx(1.0)
    runs = [line for line in text.splitlines() if line.startswith('   ["')]
    assert len(runs) >= len(data["runs"]), "a run stands on a line of its own"


def test_an_interrupted_run_is_written_too(tmp_path: Path) -> None:
    empty = report(Measured(["ar", "auto"], [("code", "code/0")]))
    write_report(empty, tmp_path / "run.json")
    assert not read_report(tmp_path / "run.json").measured.finished
    assert "no prompt was finished" in shown(empty)
    part = measured(num=1)
    part.finished = False
    assert "interrupted" in notes(report(part))[-1]


def test_a_new_report_knows_where_it_comes_from() -> None:
    made = make_report({"model": "tiny"}, measured(num=1))
    assert {"date", "commit", "command", "machine", "name"} == set(made.origin)
    assert made.config == {"model": "tiny"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"name": "decision"}',
        '{"name": "wager bench", "data": {"format": 99}}',
        '{"name": "wager bench", "config": {}, "data": {"format": 1, "contenders": [], "prompts": 3}}',
    ],
)
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"run\.json"):
        read_report(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json cannot be read"):
        read_report(tmp_path / "none.json")


def test_the_table_has_every_kind_and_contender() -> None:
    text = shown(report())
    for word in (
        "code",
        "prose",
        "auto",
        "fixed:8",
        "transformers",
        "best fixed",
        "geo. mean",
        "tokens/step",
    ):
        assert word in text
    assert "2.00 2.00-2.00" in text and "1.75  fixed:4" in text


def test_notes_of_the_texts() -> None:
    found = measured()
    assert any("identical" in line and "auto" in line for line in notes(report(found)))
    found.differences = [TIE, WRONG]
    lines = notes(report(found))
    (same,) = [line for line in lines if "identical" in line]
    assert "auto" not in same and "fixed:2" not in same and "fixed:4" in same
    (tie,) = [line for line in lines if line.startswith("auto left")]
    assert "near-tie" in tie and "NOT" not in tie and "3.0e-06" in tie and "code/2" in tie
    (wrong,) = [line for line in lines if line.startswith("fixed:2 left")]
    assert "NOT a near-tie" in wrong
    found.differences = [replace(TIE, gap=None, excused=False)]
    assert any("not looked up" in line for line in notes(report(found)))


def test_notes_of_the_figures() -> None:
    lines = notes(report(load_before=3.5, grown_from={"name": "small"}))
    text = "\n".join(lines)
    assert "plain against plain: 1.000" in text
    assert "auto / best fixed:K of each kind in hindsight: 1.234, least 1.143 (prose)" in text
    assert "fixed:8: 0.50 after the first token; slowest kind code, 0.50" in text
    assert "busy" in text and "enlarged" in text
    quiet = "\n".join(notes(report(load_before=0.1)))
    assert "busy" not in quiet and "enlarged" not in quiet


def test_a_finished_run_is_shown_without_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import wager.bench.html, wager.bench.plot, wager.bench.suites, wager.bench.table, wager.cli.bench\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
