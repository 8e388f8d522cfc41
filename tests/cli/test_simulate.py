"""`wager simulate`: its table and files, and a one-line error with status 2 for each wrong flag."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.trace.recorded import made_up
from wager.cli.main import exit_status
from wager.cli.simulate_table import display_temperature
from wager.trace import save_traces

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with valid and damaged traces and cost files."""
    traces = [made_up(0), made_up(1, kind="prose"), made_up(2, temperature="t08")]
    save_traces(tmp_path / "good.npz", traces, {"noised": False})
    trace = made_up()
    nan = trace.logprobs.copy()
    nan[0, 3, 0, 0] = np.nan
    np.savez(tmp_path / "nan.npz", code_t0_logprobs=nan, code_t0_rank=trace.ranks)
    np.savez(tmp_path / "shape.npz", code_t0_logprobs=trace.logprobs, code_t0_rank=trace.ranks[:, :9])
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "mine.json").write_text('{"name": "mine", "draft_ms": 1, "verify_ms": {"1": 4, "8": 5}}')
    (tmp_path / "negative.json").write_text('{"draft_ms": 1, "verify_ms": {"1": 4, "8": -5}}')
    (tmp_path / "backwards.json").write_text('{"draft_ms": -1, "verify_ms": {"1": 4}}')
    (tmp_path / "broken.json").write_text('{"draft_ms": 1,')
    return tmp_path


def test_a_run_prints_a_table_and_writes_its_files(folder: Path, capsys: Capture) -> None:
    out = {name: folder / f"out{name}" for name in (".json", ".png", ".jsonl")}
    args = f"simulate --traces {folder}/good.npz --costs cpu --costs {folder}/mine.json"
    args += " --policy auto --policy fixed:5"
    args += f" --out {out['.json']} --plot {out['.png']} --decisions {out['.jsonl']}"
    assert exit_status(args.split()) == 0
    shown = capsys.readouterr()
    for word in ("auto", "fixed:5", "best-fixed", "oracle-chain", "geo. mean", "mine", "prose", "0.8"):
        assert word in shown.out
    assert "30 of 30 cells" in shown.err
    cells = json.loads(out[".json"].read_text())["cells"]
    assert len(cells) == 3 * 2 * 5
    assert out[".png"].read_bytes().startswith(b"\x89PNG")
    assert all(json.loads(line)["policy"] in ("auto", "fixed:5") for line in out[".jsonl"].open())


def test_json_prints_what_out_writes(folder: Path, capsys: Capture) -> None:
    out = folder / "written.json"
    args = f"simulate --traces {folder}/good.npz --kind prose --costs cpu --json --out {out}"
    assert exit_status(args.split()) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == json.loads(out.read_text())
    assert f"wrote {out}" in shown.err


def test_quiet_prints_only_the_table(folder: Path, capsys: Capture) -> None:
    assert exit_status(["simulate", "--traces", f"{folder}/good.npz", "--kind", "prose", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert "prose" in shown.out and "code" not in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 110


def test_the_included_trace_is_the_default_and_hints_follow(capsys: Capture) -> None:
    assert exit_status(["simulate", "--kind", "prose", "--costs", "cpu"]) == 0
    assert "docs/policy.md" in capsys.readouterr().out


def test_noise_stalls_rows_and_shifts_are_accepted(folder: Path, capsys: Capture) -> None:
    args = f"simulate --traces {folder}/good.npz --shift code+prose --rows 2"
    args += " --noise 0.1 --stalls 0.01x20 --seed 3"
    assert exit_status([*args.split(), "--out", str(folder / "o.json")]) == 0
    cells = json.loads((folder / "o.json").read_text())["cells"]
    assert {(cell["kind"], cell["temperature"]) for cell in cells} == {("code+prose", "t0")}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--traces {0}/nan.npz", "code_t0_logprobs"),
        ("--traces {0}/shape.npz", "code_t0_rank"),
        ("--traces {0}/missing.npz", "traces: cannot read"),
        ("--traces {0}/text.npz", "traces: cannot read"),
        ("--traces {0}", "traces: cannot read"),
        ("--costs gpu", "costs: unknown curve 'gpu'"),
        ("--costs {0}/none.json", "costs: cannot read"),
        ("--costs {0}/broken.json", "costs: "),
        ("--costs {0}/negative.json", "negative.verify_ms"),
        ("--costs {0}/backwards.json", "backwards.draft_ms"),
        ("--policy magic", "policy = 'magic'"),
        ("--policy fixed:", "policy = 'fixed:'"),
        ("--traces {0}/good.npz --policy entropy+auto", "target_p1"),
        ("--policy bod --bod-min-bet 9 --bod-max-bet 3", "bod_min_bet = 9"),
        ("--bod-min-bet 9 --bod-max-bet 3", "bod_min_bet = 9"),
        ("--policy bod --bod-mode bush", "bod_mode = 'bush'"),
        ("--rows 0", "rows = 0"),
        ("--rows two", "--rows"),
        ("--noise -1", "noise = -1.0"),
        ("--noise nan", "noise = nan"),
        ("--stalls often", "stalls = 'often'"),
        ("--stalls 1.2.3x4", "stalls = '1.2.3x4'"),
        ("--stalls 2x20", "stalls = 2.0"),
        ("--stalls 0.1x0.5", "stalls = 0.5"),
        ("--seed -1", "seed = -1"),
        ("--floor 2", "ledger_floor = 2.0"),
        ("--kind poems", "kind = 'poems'"),
        ("--shift code+poems", "shift = 'poems'"),
        ("--temperature 3", "temperature = '3'"),
        ("--out {0}/no/such/folder.json", "out: there is no folder"),
        ("--out {0}", "out: cannot write"),
        ("--plot {0}/no/plot.png", "plot: there is no folder"),
        ("--plot {0}/plot.txt", "plot: "),
        ("--decisions {0}/no/d.jsonl", "decisions: there is no folder"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(args: str, said: str, folder: Path, capsys: Capture) -> None:
    assert exit_status(["simulate", *args.format(folder).split()]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    [line] = shown.err.splitlines()
    assert line.startswith("wager: error: ")
    assert said in line


@pytest.mark.parametrize(("label", "shown"), [("t0", "0"), ("t08", "0.8"), ("t1", "1"), ("t125", "1.25")])
def test_temperatures_are_shown_as_numbers(label: str, shown: str) -> None:
    assert display_temperature(label) == shown
