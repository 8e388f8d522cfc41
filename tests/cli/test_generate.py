"""`wager generate`: flags, streaming, the terminal screen and exit statuses; one test loads a real model."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from rich.console import Console
from tokenizers import models

from wager.cli import generate, main
from wager.cli.generate_screen import LiveScreen, OriginPainter, describe_ledger
from wager.config import EngineConfig
from wager.llm import Output, Stats, StreamEvent
from wager.policy.ledger import Account
from wager.records import SamplingParams
from wager.text.detokenize import Detokenizer
from wager.text.tokenizer import Tokenizer

WORDS = ["one ", "two ", "three\n", "four", "é", "\x1b[2J"]


def word_tokenizer() -> Tokenizer:
    backend = tokenizers.Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="four")
    )
    backend.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(backend)


def event(index: int, tokens: tuple[int, ...], origins: str, bet: int = 0, **last: Any) -> StreamEvent:
    names = {"t": "target", "g": "guess", "f": "forced"}
    text = "".join(WORDS[token] for token in tokens)
    return StreamEvent(index, tokens, text, tuple(names[one] for one in origins), bet, **last)


def output(index: int, text: str, error: str | None = None) -> Output:
    stats = Stats(2, 1.5, 1, 2, 0.5, [1, 1], 1.2, 30.0, 0.5, 0)
    reason = "error" if error else "stop"
    return Output(index, [1], [0, 1, 2], text, reason, ["target", "guess", "target"], stats, error=error)


class FakeLLM:
    """Streams the given events; an exception among them is raised."""

    def __init__(self, events: list[StreamEvent | BaseException], template: object = None) -> None:
        self.events = events
        self.chat_template = template
        self.notes = {"policy": "auto"}
        self.requests: list[tuple[Any, SamplingParams]] = []
        self.recorded: tuple[Any, ...] | None = None
        self.closed = False
        ledger = SimpleNamespace(total=Account(1500.0, 0.0, 1000.0, 2500.0, 10))
        controller = SimpleNamespace(experience=SimpleNamespace(ledger=ledger))
        decoder = SimpleNamespace(native_loader=SimpleNamespace(reason=""))
        self.engine = SimpleNamespace(
            parts=SimpleNamespace(tokenizer=word_tokenizer()),
            controller=controller,
            runner=SimpleNamespace(decoder=decoder),
        )

    def stream(self, prompts: Any, params: SamplingParams) -> Iterator[StreamEvent]:
        self.requests.append((prompts, params))
        try:
            for one in self.events:
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            self.closed = True

    def encode(self, prompt: Any) -> list[int]:
        return [0]

    def record_trace(self, *asked: Any) -> None:
        self.recorded = asked


LAST = output(0, "one two three\n")
EVENTS: list[StreamEvent | BaseException] = [
    event(0, (0,), "t"),
    event(0, (1, 2), "gt", 2, finished=True, finish_reason="stop", output=LAST),
]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeLLM]:
    def install(events: list[StreamEvent | BaseException] = EVENTS, template: object = None) -> FakeLLM:
        llm = FakeLLM(events, template)

        def load(config: EngineConfig) -> FakeLLM:
            llm.config = config  # type: ignore[attr-defined]
            return llm

        monkeypatch.setattr(generate, "load_llm", load)
        return llm

    return install


def run(*args: str) -> int:
    return main.exit_status(["generate", "model", *args])


def test_text_is_written_to_stdout(fake: Callable[..., FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    llm = fake()
    assert run("-p", "hello", "--max-tokens", "7", "--stop", "x", "--page-size", "8", "--policy", "bod") == 0
    assert capsys.readouterr().out == "one two three\n"
    assert llm.requests == [(["hello"], SamplingParams(max_tokens=7, stop=("x",)))]
    assert llm.config.cache.page_size == 8  # type: ignore[attr-defined]
    assert llm.config.policy.policy == "bod"  # type: ignore[attr-defined]
    assert llm.config.model.model == "model"  # type: ignore[attr-defined]


def test_a_missing_line_end_is_added(
    fake: Callable[..., FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    fake([event(0, (3,), "t", finished=True, output=output(0, "four"))])
    assert run("-p", "hello") == 0
    assert capsys.readouterr().out == "four\n"


def test_the_chat_template_is_applied_unless_raw(fake: Callable[..., FakeLLM]) -> None:
    llm = fake(template=object())
    run("-p", "hello")
    run("-p", "hello", "--raw")
    assert [prompts for prompts, _ in llm.requests] == [[[{"role": "user", "content": "hello"}]], ["hello"]]


def test_prompts_come_from_files_and_stdin(
    fake: Callable[..., FakeLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fake()
    file = tmp_path / "prompt.txt"
    file.write_text("two\nlines\n\n", encoding="utf-8")
    assert run("--prompt-file", str(file)) == 0
    for args in ([], ["--prompt-file", "-"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\n"))
        assert run(*args) == 0
    assert [prompts for prompts, _ in llm.requests] == [["two\nlines\n"], ["from stdin"], ["from stdin"]]


@pytest.mark.parametrize(
    ("args", "stdin", "said"),
    [
        (["-p", ""], "", "prompt: is empty"),
        ([], "\n", "prompt: is empty"),
        (["-p", "a", "--prompt-file", "b"], "", "not both"),
        (
            ["--prompt-file", "no-such-file"],
            "",
            "prompt_file: no-such-file cannot be read: No such file or directory",
        ),
        (["-p", "a", "--temperature", "-1"], "", "temperature: -1.0"),
        (["-p", "a", "--page-size", "many"], "", "page_size = 'many'"),
        (["-p", "a", "--policy", "best"], "", "policy = 'best'"),
        (["-p", "a", "--bod-enabled"], "", "it was replaced by --policy bod"),
        (["-p", "a", "--bod-mode", "tree"], "", "--policy bod:tree"),
        (["-p", "a", "--gate", "entropy"], "", "--policy ema+NAME or --policy entropy+NAME"),
        (["-p", "a", "--policy", "bod", "--bod-min-bet", "20"], "", "bod_min_bet = 20"),
        (["-p", "a", "--profile", "fast"], "", "profile = 'fast'"),
        (["-p", "a", "--model", "another"], "", "model = 'another'"),
        (["-p", "a", "--record-trace", "x.txt"], "", "record_trace: x.txt"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error_before_anything_is_loaded(
    args: list[str],
    stdin: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(generate, "load_llm", lambda _: pytest.fail("loaded"))
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    assert run(*args) == 2
    out, err = capsys.readouterr()
    assert not out and said in err and len(err.splitlines()) == 1


def test_without_a_model_the_demo_pair_is_used_and_announced(
    fake: Callable[..., FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    llm = fake()
    assert main.exit_status(["generate", "-p", "hello"]) == 0
    out, err = capsys.readouterr()
    assert llm.config.model.model == "demo"  # type: ignore[attr-defined]
    assert out == "one two three\n" and "no model was named: using demo" in err
    assert len(err.splitlines()) == 1
    assert main.exit_status(["generate", "demo", "-p", "hello"]) == 0
    assert "no model was named" not in capsys.readouterr().err


def test_an_empty_model_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["generate", "--model", "", "-p", "hello"]) == 2
    assert "model = ''" in capsys.readouterr().err


def test_without_a_prompt_a_terminal_is_not_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.StringIO("")
    stdin.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    assert run() == 2
    assert "prompt: is missing" in capsys.readouterr().err


def test_json_has_outputs_settings_and_engine(
    fake: Callable[..., FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    fake()
    assert run("-p", "hello", "--json", "--policy", "fixed:2") == 0
    found = json.loads(capsys.readouterr().out)
    [one] = found["outputs"]
    assert (one["prompt"], one["text"], one["finish_reason"]) == ("hello", "one two three\n", "stop")
    assert one["stats"]["tokens_per_step"] == 1.5
    assert found["settings"]["policy.policy"] == {"value": "fixed:2", "source": "flag --policy"}
    assert found["engine"] == {"policy": "auto"}


def test_several_prompts_are_answered_in_order(
    fake: Callable[..., FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    llm = fake([event(1, (1,), "t"), event(0, (0,), "t"), event(1, (3,), "g")])
    assert run("-p", "a", "-p", "b") == 0
    assert capsys.readouterr().out == "one \n\ntwo four\n"
    assert llm.requests[0][0] == ["a", "b"]


@pytest.mark.parametrize("flags", [[], ["--json"], ["-p", "again"]])
def test_an_interrupt_prints_the_text_so_far(
    flags: list[str], fake: Callable[..., FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    llm = fake([event(0, (0, 3), "tt"), KeyboardInterrupt()])
    assert run("-p", "hello", *flags) == 130
    out, err = capsys.readouterr()
    assert "one four" in out
    assert err == "wager: interrupted\n"
    assert llm.closed
    if "--json" in flags:
        assert json.loads(out)["outputs"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_failed_request_is_an_error(
    flags: list[str], fake: Callable[..., FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    fake([event(0, (3,), "t", finished=True, output=output(0, "four", "the step failed"))])
    assert run("-p", "hello", *flags) == 2
    out, err = capsys.readouterr()
    assert "four" in out and "the step failed" in err


def test_recording_a_trace_prints_no_text(
    fake: Callable[..., FakeLLM], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = fake()
    path = tmp_path / "out.npz"
    assert run("-p", "hello", "--record-trace", str(path), "--trace-kind", "code") == 0
    assert llm.recorded == (["hello"], SamplingParams(), path, "code")
    assert not llm.requests and str(path) in capsys.readouterr().out


# -- the terminal


def painter() -> OriginPainter:
    return OriginPainter(Detokenizer(word_tokenizer()))


def test_each_character_has_the_colour_of_its_token() -> None:
    painted = painter().paint("one two four", (0, 1, 3), ("target", "guess", "forced"))
    assert painted.plain == "one two four"
    assert [(span.start, span.end, span.style) for span in painted.spans] == [
        (4, 8, "green"),
        (8, 12, "yellow"),
    ]


def test_text_that_arrives_later_keeps_its_colour() -> None:
    brush = painter()
    assert brush.paint("on", (0, 1), ("target", "guess")).plain == "on"
    late = brush.paint("e two four", (3,), ("target",))
    assert late.plain == "e two four"
    assert [(span.start, span.end, span.style) for span in late.spans] == [(2, 6, "green")]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in painter().paint(WORDS[5], (5,), ("target",)).plain


def screen(width: int = 20) -> tuple[LiveScreen, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False)
    return LiveScreen(painter(), lambda: Account(1500.0, 0.0, 1000.0, 2500.0, 10), console), file


def test_the_screen_keeps_all_text_in_order() -> None:
    live, file = screen()
    for one in (event(0, (0,), "t"), event(0, (1, 2), "gt", 2), event(0, (3,), "t")):
        live.show(one)
    live.close()
    assert file.getvalue() == "one two three\nfour\n"


def test_a_long_line_scrolls_by_rows() -> None:
    live, file = screen(width=10)
    for _ in range(9):
        live.show(event(0, (0, 1), "tg"))
    live.close()
    assert file.getvalue().split() == ["one", "two"] * 9
    assert max(map(len, file.getvalue().splitlines())) <= 10


def test_the_status_line_has_bet_tokens_per_step_and_ledger() -> None:
    live, _ = screen()
    live.show(event(0, (0, 1, 3), "ggt", 5))
    live.show(event(0, (0,), "t", 4))
    live.close()
    assert live.status().plain == "bet 4 · 2.00 tokens per step · ledger +1.50 s (2.50x plain)"
    assert describe_ledger(Account()) == "ledger +0.00 s"


def test_on_a_terminal_accepted_draft_tokens_are_coloured(
    fake: Callable[..., FakeLLM], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run("-p", "hello") == 0
    out, err = capsys.readouterr()
    assert "\x1b[32mtwo " in out
    assert err == "3 tokens, 1.50 per step, 6.0 tokens/s, ledger +1.50 s (2.50x plain), ended by stop\n"


# -- the real engine


def test_a_real_model_generates_the_same_text_under_two_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.nn.tiny import save_target

    save_target(tmp_path, "llama", vocab_size=len(WORDS))
    word_tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    asked = ["--raw", "-p", "four", "--max-tokens", "12", "--json", "--temperature", "0.8", "--seed", "3"]
    texts = []
    for policy in ("ar", "fixed:3"):
        status = main.exit_status(
            ["generate", str(tmp_path), *asked, "--policy", policy, "--drafter", "lookup"]
        )
        assert status == 0
        [one] = json.loads(capsys.readouterr().out)["outputs"]
        assert len(one["token_ids"]) == 12
        texts.append(one["text"])
    assert texts[0] == texts[1]
