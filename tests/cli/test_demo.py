"""`wager demo`: the order of runs, the figures, the screens and the exit statuses; one test loads a model."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from tests.cli.test_generate import WORDS, word_tokenizer
from wager.bench import ties
from wager.cli import demo, main
from wager.cli.demo_runs import (
    LEAST_TOKENS,
    MAX_TOKENS,
    DemoPrompt,
    Frame,
    Run,
    Trial,
    encode,
    figures_by_kind,
    fitting_tokens,
    order_of,
    plain_noise,
    read_prompts,
    rounds_within,
)
from wager.cli.demo_screen import LineScreen, SideBySideScreen, verdict
from wager.cli.demo_table import show_summary
from wager.config import EngineConfig
from wager.llm import Output, Stats, StreamEvent
from wager.pairs import DEMO_FOLDER
from wager.records import SamplingParams
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer

KINDS = ["code", "math", "prose", "chat", "dialog"]


def run_of(policy: str, steps: Sequence[tuple[float, tuple[int, ...], int]], error: str | None = None) -> Run:
    """Makes a run of (seconds, tokens, bet) steps; the last token of each step is the bonus token."""
    frames = []
    token_ids = [token for _, tokens, _ in steps for token in tokens]
    stats = Stats(len(steps), len(token_ids) / len(steps), 0, 0, 0.0, [], 1.5, 20.0, steps[-1][0], 0)
    text = "".join(WORDS[token] for token in token_ids)
    output = Output(0, [1], token_ids, text, "length", [], stats, error=error)
    for number, (at_s, tokens, bet) in enumerate(steps):
        origins = ("guess",) * (len(tokens) - 1) + ("target",)
        is_last = number == len(steps) - 1
        piece = "".join(WORDS[token] for token in tokens)
        event = StreamEvent(0, tokens, piece, origins, bet, is_last, output=output if is_last else None)
        frames.append(Frame(at_s, event))
    return Run(policy, tuple(frames), output)


PLAIN_STEPS = [(0.1, (0,), 0), (0.2, (1,), 0), (0.3, (2,), 0), (0.4, (3,), 0)]
WAGER_STEPS = [(0.1, (0,), 0), (0.2, (1, 2, 3), 4)]


def trial_of(kind: str = "code", wager_steps: Sequence[Any] = WAGER_STEPS, **values: Any) -> Trial:
    runs = [run_of("ar", PLAIN_STEPS), run_of("auto", wager_steps)] * 2
    return Trial(DemoPrompt(kind, "four", None), [3], tuple(runs), **values)


# -- the runs


def test_the_order_is_mirrored_and_alternates() -> None:
    assert order_of(0, "auto") == ("ar", "auto", "auto", "ar")
    assert order_of(1, "auto") == ("auto", "ar", "ar", "auto")
    first_round, second_round = order_of(2, "auto"), order_of(2 + len(KINDS), "auto")
    assert first_round != second_round, "a kind's second prompt has the other order"


def test_the_length_of_answers_fits_the_time_limit() -> None:
    assert fitting_tokens(0.001, 5) == MAX_TOKENS
    assert fitting_tokens(100.0, 5) == LEAST_TOKENS
    length = fitting_tokens(0.1, 5, limit_s=80.0)
    assert LEAST_TOKENS < length < MAX_TOKENS and length * 0.1 * 5 * 5 <= 80.0


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 6), (20.0, 3), (25.0, 3), (14.0, 4), (1000.0, 3)])
def test_the_first_round_is_complete_and_the_second_stops_at_the_time_limit(
    seconds: float, count: int
) -> None:
    prompts = [[DemoPrompt(kind, "", None) for kind in "abc"]] * 2
    clock = SimpleNamespace(now=0.0)
    found = []
    for index, prompt in rounds_within(prompts, 60.0, lambda: clock.now):
        found.append((index, prompt.kind))
        clock.now += seconds
    assert found == list(enumerate("abcabc"))[:count]


def test_prompts_are_of_five_kinds_and_do_not_end_inside_a_token() -> None:
    rounds = read_prompts()
    assert [[prompt.kind for prompt in prompts] for prompts in rounds] == [KINDS, KINDS]
    for prompt in (prompt for prompts in rounds for prompt in prompts):
        assert "<|" in prompt.text or not prompt.text[-1].isspace()
        assert "<|" not in prompt.display_text and prompt.display_text
        assert (prompt.question is not None) == (prompt.kind in ("math", "chat"))


def test_questions_use_the_chat_template_and_mathematics_enables_thinking() -> None:
    folder = DEMO_FOLDER / "target"
    tokenizer, template = Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder)
    parts = SimpleNamespace(parts=SimpleNamespace(tokenizer=tokenizer))
    llm: Any = SimpleNamespace(engine=parts, chat_template=template, encode=tokenizer.encode)
    for prompt in read_prompts(1)[0]:
        seen = tokenizer.decode(encode(llm, prompt), skip_special=False)
        assert seen == prompt.text + ("<think>\n" if prompt.kind == "math" else "")


# -- the figures


def test_figures_are_of_whole_answers() -> None:
    [found] = figures_by_kind([trial_of(), trial_of()])
    assert (found.kind, found.num_prompts, found.num_tokens) == ("code", 2, 8)
    assert found.plain_tokens_per_s == pytest.approx(10.0)
    assert found.wager_tokens_per_s == pytest.approx(20.0)
    assert found.speedup == pytest.approx(2.0)
    assert found.tokens_per_step == pytest.approx(2.0)
    assert (found.bet_mean, found.bet_low, found.bet_high) == (4.0, 4.0, 4.0)
    assert found.identical and found.ledger_ms == pytest.approx(40.0)


def test_the_noise_of_plain_runs() -> None:
    slower = run_of("ar", [(0.5, (0, 1, 2, 3), 0)])
    trial = trial_of()
    noisy = Trial(trial.prompt, [3], (trial.runs[0], slower))
    assert plain_noise([trial]) == 0.0
    assert plain_noise([noisy]) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("tokens", "place"), [((1, 2, 3), None), ((1, 2, 0), 3), ((0, 2, 3), 1), ((1, 2), 3), ((1, 2, 3, 0), 4)]
)
def test_the_first_difference(tokens: tuple[int, ...], place: int | None) -> None:
    trial = trial_of(wager_steps=[(0.1, (0,), 0), (0.2, tokens, 4)])
    assert trial.first_difference == place
    assert figures_by_kind([trial])[0].identical == (place is None)
    assert ("the same 4 tokens" in verdict(trial)) == (place is None)


def printed(show: Callable[[Console], None], **options: Any) -> str:
    file = io.StringIO()
    show(Console(file=file, width=100, highlight=False, **options))
    return file.getvalue()


DIFFERENT = [(0.1, (0,), 0), (0.2, (1, 2, 0), 4)]


def test_the_summary_says_whether_texts_are_the_same() -> None:
    assert "Every text is the same" in printed(lambda console: show_summary([trial_of()], console))
    for near, said in ((True, "near-tie: the two best scores are 2e-05 apart"), (False, "THE TEXTS DIFFER")):
        trial = trial_of("chat", DIFFERENT, gap=2e-5, is_near_tie=near)
        out = printed(lambda console, trial=trial: show_summary([trial_of(), trial], console))
        assert said in out and "Every text is the same" not in out
        assert [line.split()[-1] for line in out.splitlines() if line.split()[:1] == ["chat"]] == ["NO"]


# -- the screens


class Clock:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def side_by_side(trial: Trial, brief: bool = False, **options: Any) -> tuple[str, Clock]:
    clock = Clock()

    def show(console: Console) -> None:
        screen = SideBySideScreen(console, word_tokenizer(), clock.sleep, clock)
        screen.begin(trial.prompt, ("ar", "auto"), brief)
        screen.running(1)
        screen.show(trial)
        screen.close()

    return printed(show, force_terminal=True, color_system="standard", height=30, **options), clock


def test_the_replay_takes_the_time_of_the_slower_run_and_shows_both() -> None:
    out, clock = side_by_side(trial_of())
    assert clock.now == pytest.approx(0.4, abs=0.06)
    last = Text.from_ansi(out[out.rindex("plain decoding") :]).plain
    assert last.count("one two three") == 2
    assert "4 tokens in 0.40 s, 10 tokens/s" in last and "4 tokens in 0.20 s, 20 tokens/s" in last
    assert "all four runs produced the same 4 tokens; Wager was 2.00x as fast" in last
    assert "timing Wager, run 2 of 2" in out
    assert "bet 4, 2.00 tokens per step" in out


def test_accepted_draft_tokens_are_marked_on_the_right_only() -> None:
    assert side_by_side(trial_of())[0].count("\x1b[32m") > 0
    assert "\x1b[32m" not in side_by_side(trial_of(wager_steps=PLAIN_STEPS))[0]
    without = side_by_side(trial_of(), no_color=True)[0]
    assert "\x1b[32m" not in without and "\x1b[4m" in without


def test_a_brief_trial_is_one_line() -> None:
    out, clock = side_by_side(trial_of(), brief=True)
    assert clock.now == 0.0
    assert "second code prompt: plain 10, Wager 20 tokens/s; all four runs produced the same 4 tokens" in out


def test_without_a_terminal_the_text_is_printed_once() -> None:
    def show(console: Console) -> None:
        screen = LineScreen(console)
        screen.begin(trial_of().prompt, ("ar", "auto"), brief=False)
        screen.show(trial_of())

    out = printed(show)
    assert out.count("one two three") == 1
    assert "plain  4 tokens in 0.40 s" in out and "Wager  4 tokens in 0.20 s" in out


# -- the command


class ScriptedLLM:
    """Streams the same four words under every policy; it can be interrupted or write a different text."""

    def __init__(self, interrupt_at: int | None = None, differs: bool = False) -> None:
        self.interrupt_at = interrupt_at
        self.differs = differs
        self.policy = ""
        self.requests: list[tuple[str, SamplingParams]] = []
        self.chat_template = None
        self.notes = {"policy": "auto"}
        self.engine = SimpleNamespace(parts=SimpleNamespace(tokenizer=word_tokenizer()))

    def encode(self, _text: str) -> list[int]:
        return [3]

    def set_policy(self, name: str) -> None:
        self.policy = name

    def stream(self, _prompts: Any, params: SamplingParams) -> Iterator[StreamEvent]:
        self.requests.append((self.policy, params))
        if self.interrupt_at == len(self.requests):
            raise KeyboardInterrupt
        steps = PLAIN_STEPS if self.policy == "ar" else DIFFERENT if self.differs else WAGER_STEPS
        yield from (frame.event for frame in run_of(self.policy, steps).frames)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedLLM]:
    def install(**values: Any) -> ScriptedLLM:
        llm = ScriptedLLM(**values)

        def load(config: EngineConfig) -> ScriptedLLM:
            llm.config = config  # type: ignore[attr-defined]
            return llm

        monkeypatch.setattr(demo, "load_llm", load)
        return llm

    return install


def test_it_ends_with_the_table_and_the_next_commands(
    scripted: Callable[..., ScriptedLLM],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WAGER_MODEL", "another")
    llm = scripted()
    assert main.exit_status(["demo", "--max-tokens", "7", "--temperature", "0.5"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if row and row[-1] == "yes"] == KINDS
    assert "10 prompts, each answered twice by plain decoding and twice with Wager" in out
    assert "wager generate -p" in out and "--drafter demo/chain" in out
    assert "\x1b" not in out
    measured = llm.requests[3:]
    assert [policy for policy, _ in measured[:8]] == ["ar", "auto", "auto", "ar", "auto", "ar", "ar", "auto"]
    assert {(params.max_tokens, params.temperature) for _, params in measured} == {(7, 0.5)}
    seeds = [params.seed for _, params in measured]
    assert seeds == [number for number in range(1, 11) for _ in range(4)]
    config = llm.config  # type: ignore[attr-defined]
    assert config.model.model == "demo" and not config.cache.prefix_reuse


def test_json_has_figures_and_every_run(
    scripted: Callable[..., ScriptedLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted()
    assert main.exit_status(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in found["kinds"]] == KINDS
    assert all(one["identical"] for one in found["kinds"]) and found["geometric_mean"] > 0
    assert [len(trial["runs"]) for trial in found["trials"]] == [4] * 10
    assert found["trials"][0]["runs"][1]["bets"] == [4]
    assert found["engine"] == {"policy": "auto"} and found["how"]["policy"] == "auto"


def test_different_texts_are_checked_for_a_near_tie(
    scripted: Callable[..., ScriptedLLM],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted(differs=True)
    positions = []

    def gap_at(_llm: Any, _ids: Any, _params: Any, position: int) -> float:
        positions.append(position)
        return 1e-6

    monkeypatch.setattr(ties, "gap_at", gap_at)
    monkeypatch.setattr(ties, "near_tie", lambda _: 1e-4)
    assert main.exit_status(["demo"]) == 0
    assert "near-tie: the two best scores are 1e-06 apart" in capsys.readouterr().out
    assert set(positions) == {3}


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("interrupt_at", [1, 5, 9])
def test_an_interrupt_prints_the_finished_prompts(
    interrupt_at: int,
    flags: list[str],
    scripted: Callable[..., ScriptedLLM],
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripted(interrupt_at=interrupt_at)
    assert main.exit_status(["demo", *flags]) == 130
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == "wager: interrupted"
    done = max(0, interrupt_at - 4) // 4
    if flags:
        assert len(json.loads(out)["trials"]) == done
    else:
        assert ("By kind of text" in out) == (done > 0)
        assert "Commands to try next" not in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--max-tokens", "0"], "max_tokens: 0"),
        (["--temperature", "-1"], "temperature: -1.0"),
        (["--policy", "ar"], "policy = 'ar'"),
        (["--policy", "best"], "policy = 'best'"),
        (["--model", "another"], "--model"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_loaded(
    args: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "load_llm", lambda _: pytest.fail("loaded"))
    assert main.exit_status(["demo", *args]) == 2
    out, err = capsys.readouterr()
    assert not out and said in err and len(err.splitlines()) == 1


def test_the_demo_pair_runs_end_to_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are short and there is no second round; speeds are not checked."""
    monkeypatch.setattr(demo, "LIMIT_S", 0.0)
    flags = ["--max-tokens", "6", "--json", "--threads", "1", "--policy", "fixed:3"]
    assert main.exit_status(["demo", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in found["kinds"]] == KINDS
    for trial in found["trials"]:
        assert trial["first_difference"] is None or trial["gap"] < 1e-4
    bets = [bet for trial in found["trials"] for run in trial["runs"] for bet in run["bets"]]
    assert max(bets) == 3
