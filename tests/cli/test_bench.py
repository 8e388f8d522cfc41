"""`wager bench` on a tiny pair: tables, files, showing a stored run, and one-line errors."""

import json
from pathlib import Path

import pytest

from tests.bench.made_up import measured, report
from tests.engine.conftest import add_tokenizer
from tests.equivalence.world import World, make_world
from wager.bench.records import Difference
from wager.bench.report import write_report
from wager.cli import bench, main
from wager.cli.main import exit_status

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(tmp_path_factory.mktemp("pair"), seed=4, vocab_size=360)
    add_tokenizer(Path(made.target))
    return made


@pytest.fixture
def quick(pair: World, tmp_path: Path) -> list[str]:
    """A command line with two short prompts of two kinds, which runs quickly."""
    rows = [{"category": kind, "id": kind, "prompt": f"{kind} one two one two"} for kind in ("code", "prose")]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = f"bench {pair.target} --drafter {pair.block} --prompts {path} --max-tokens 6 --num-pages 64"
    return [*words.split(), *["--threads", "1", "--layout", "out_in", "--dtype", "float64"]]


def test_end_to_end(quick: list[str], tmp_path: Path, capsys: Capture) -> None:
    files = {ending: tmp_path / f"out.{ending}" for ending in ("json", "html", "png")}
    args = [*quick, "--policy", "auto", "--policy", "fixed:2", "--peers", "all", "--out", str(files["json"])]
    args += ["--html", str(files["html"]), "--plot", str(files["png"])]
    assert exit_status(args) == 0
    shown = capsys.readouterr()
    for word in (
        "auto",
        "fixed:2",
        "transformers",
        "assisted",
        "prompt-lookup",
        "geo. mean",
        "plain against plain",
    ):
        assert word in shown.out
    assert "identical to plain decoding's in every answer: auto, fixed:2" in shown.out
    assert "2 of 2 prompts" in shown.err
    found = json.loads(files["json"].read_text())
    assert found["config"]["model"] == "target" and found["config"]["prefix_reuse"] is False
    assert found["config"]["prompts"] == {"code": 1, "prose": 1} and found["data"]["finished"]
    assert found["config"]["peers"] == ["transformers", "assisted", "prompt-lookup"]
    assert str(tmp_path) not in files["json"].read_text(), "a result names no place of this machine"
    assert files["html"].read_text().startswith("<!DOCTYPE html>")
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_a_stored_run_is_shown(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "run.json"
    write_report(report(), path)
    assert exit_status(["bench", "--from", str(path), "--html", str(tmp_path / "again.html")]) == 0
    assert "2.00 2.00-2.00" in capsys.readouterr().out
    assert (tmp_path / "again.html").exists()


def test_json_prints_what_out_writes(tmp_path: Path, capsys: Capture) -> None:
    path, again = tmp_path / "run.json", tmp_path / "again.json"
    write_report(report(), path)
    assert exit_status(["bench", "--from", str(path), "--json", "--out", str(again)]) == 0
    out, err = capsys.readouterr()
    assert out == path.read_text() == again.read_text()
    assert f"wrote {again}" in err


def test_an_interrupt_writes_the_finished_prompts(
    quick: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wager.bench import runs

    answer_set, calls = runs._answer_set, []

    def interrupted(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answer_set(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "_answer_set", interrupted)
    path = tmp_path / "out.json"
    assert exit_status([*quick, "--out", str(path)]) == 130
    shown = capsys.readouterr()
    assert "interrupted: figures are of the prompts finished" in shown.out
    data = json.loads(path.read_text())["data"]
    assert not data["finished"] and {run[1] for run in data["runs"]} == {0}


def test_a_wrong_text_is_an_error_after_the_report(
    quick: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    found = measured(("ar", "auto", "transformers"))
    found.differences = [Difference("auto", 0, 3, 1, 2, 0.5, False)]
    monkeypatch.setattr(bench, "_run", lambda task: report(found))
    assert exit_status([*quick, "--out", str(path)]) == 2
    assert "1 texts of auto differ from plain decoding" in capsys.readouterr().err and path.exists()
    found.differences = [Difference("transformers", 0, 3, 1, 2, 0.5, False)]
    assert exit_status(quick) == 0, "different texts of other decoders are no error"
    found.differences = [Difference("auto", 0, 3, 1, 2, 1e-6, True)]
    assert exit_status(quick) == 0


def test_the_policies_of_a_sweep() -> None:
    from wager.config import EngineConfig

    names = bench._policies(EngineConfig(), ["ar", "auto", "fixed:04"], sweep=True)
    assert names[:2] == ["auto", "fixed:4"] and "ar" not in names
    assert sorted(names[1:]) == sorted(f"fixed:{length}" for length in bench.SWEEP)
    assert bench._policies(EngineConfig(), None, sweep=False) == ["auto"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--suite gsm8k", "suite gsm8k needs a file"),
        ("--suite nothing", "suite = 'nothing'"),
        ("--prompts none.jsonl", "no such file: none.jsonl"),
        ("--policy best", "policy = 'best'"),
        ("--peers vllm", "peers = 'vllm'"),
        ("--max-tokens 1", "max_tokens = 1"),
        ("--rounds 0", "rounds = 0"),
        ("--limit 0", "limit = 0"),
        ("--temperature -1", "temperature"),
        ("--prompt-order random", "prompt_order = 'random'"),
        ("--prompt-chars 0", "prompt_chars = 0"),
        ("--out no/such/folder/out.json", "out: there is no folder"),
        ("--plot out.gif", "must end in .png"),
        ("--from none.json", "none.json cannot be read"),
        ("--model no/such/folder/here", "no such model folder"),
    ],
)
def test_every_wrong_flag_is_a_one_line_error(
    flags: str, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_status(["bench", *flags.split()]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("wager: error: ")]
    assert len(errors) == 1 and said in errors[0]


def test_the_verb_is_registered() -> None:
    assert main.VERBS["bench"].address == "wager.cli.bench:bench"


def test_a_profile_shows_the_time_of_each_stage(quick: list[str], tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "out.json"
    assert exit_status([*quick, "--policy", "fixed:2", "--stages", "--out", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "host gap" in shown and "tokens per step" in shown and "device:" not in shown
    profiles = json.loads(path.read_text())["data"]["profiles"]
    assert set(profiles) == {"ar", "fixed:2"}
    assert profiles["ar"]["tokens_per_step"] == 1.0
    assert profiles["fixed:2"]["stage_ms"]["draft"] > profiles["ar"]["stage_ms"]["draft"]
