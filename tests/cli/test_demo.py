"""`wager demo`: the order of runs, the figures, the screens and the exit statuses; one test loads a model."""

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from bench.demo_tables import demo_table
from tests.cli.test_generate import WORDS, word_tokenizer
from wager.bench import ties
from wager.cli import demo, main
from wager.cli.demo_figures import (
    Scatter,
    Verdict,
    declined_steps,
    figures_by_kind,
    is_busy,
    overall,
    repetition,
    scatter_of,
    verdict_of,
)
from wager.cli.demo_runs import (
    LEAST_TOKENS,
    MAX_TOKENS,
    DemoPrompt,
    Frame,
    Run,
    Trial,
    encode,
    fitting_tokens,
    order_of,
    read_prompts,
    rounds_within,
)
from wager.cli.demo_screen import LineScreen, SideBySideScreen, waiting
from wager.cli.demo_table import Setup, show_setup, show_summary, trial_words
from wager.config import EngineConfig
from wager.llm import Output, Stats, StreamEvent
from wager.pairs import DEMO_FOLDER
from wager.policy import Declined, Reason
from wager.records import SamplingParams
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer

KINDS = ["code", "math", "prose", "chat", "dialog"]


def run_of(
    policy: str,
    steps: Sequence[tuple[float, tuple[int, ...], int]],
    error: str | None = None,
    declined: Sequence[Declined] = (),
) -> Run:
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
    return Run(policy, tuple(frames), output, tuple(declined))


PLAIN_STEPS = [(0.1, (0,), 0), (0.2, (1,), 0), (0.3, (2,), 0), (0.4, (3,), 0)]
WAGER_STEPS = [(0.1, (0,), 0), (0.2, (1, 2, 3), 4)]


def trial_of(kind: str = "code", wager_steps: Sequence[Any] = WAGER_STEPS, **values: Any) -> Trial:
    runs = [run_of("ar", PLAIN_STEPS), run_of("auto", wager_steps)] * 2
    return Trial(DemoPrompt(kind, "four"), [3], tuple(runs), **values)


def timed(kind: str, plain: Sequence[float], wager: Sequence[float], bet: int = 2) -> Trial:
    """Makes a trial whose runs take these times."""
    one = Declined(Reason.PRICE, 0.2, 0.7)
    runs = [run_of("ar", [(time_s / 2, (0,), 0), (time_s, (1,), 0)]) for time_s in plain]
    steps = [[(time_s / 2, (0,), 0), (time_s, (1,), bet)] for time_s in wager]
    runs += [run_of("auto", own, declined=() if bet else (one,)) for own in steps]
    return Trial(DemoPrompt(kind, "four"), [3], tuple(runs))


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


def test_the_demo_pairs_prompts_do_not_end_inside_a_token() -> None:
    rounds = read_prompts("demo", 2)
    assert [[prompt.kind for prompt in prompts] for prompts in rounds] == [KINDS, KINDS]
    for prompt in (prompt for prompts in rounds for prompt in prompts):
        assert "<|" in prompt.text or not prompt.text[-1].isspace()
        assert "<|" not in prompt.display_text and prompt.display_text
        assert (prompt.question is not None) == (prompt.kind in ("math", "chat"))


def test_other_models_are_asked_questions() -> None:
    rounds = read_prompts("instruct")
    assert [[prompt.kind for prompt in prompts] for prompts in rounds] == [KINDS] * 3
    for prompt in (prompt for prompts in rounds for prompt in prompts):
        assert prompt.question == prompt.text == prompt.display_text and not prompt.thinks


def test_questions_use_the_chat_template_and_mathematics_enables_thinking() -> None:
    folder = DEMO_FOLDER / "target"
    tokenizer, template = Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder)
    assert template is not None

    def encoded(prompt: Any, template_kwargs: Any = None) -> list[int]:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        return tokenizer.encode(template.render(prompt, template_kwargs=template_kwargs), add_special=False)

    llm: Any = SimpleNamespace(chat_template=template, encode=encoded)
    for prompt in read_prompts("demo", 1)[0]:
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


def test_the_scatter_is_that_of_plain_runs() -> None:
    assert scatter_of([trial_of()]).difference == 0.0
    trials = [timed("a", (1.0, 1.1), (0.5, 0.5)), timed("b", (1.1, 1.0), (0.5, 0.9))]
    found = scatter_of(trials)
    assert found.difference == pytest.approx(0.1) and (found.num_pairs, found.num_disturbed) == (2, 0)
    assert found.deviation == pytest.approx(1.4826 * math.log(1.1) / math.sqrt(2))
    assert found.limit() == pytest.approx(4.30 * found.deviation)
    assert found.limit(4) == pytest.approx(found.limit() / 2)
    assert scatter_of(trials * 20).limit() < found.limit(), "more pairs say more about chance"


def test_a_stall_is_counted_and_spoils_only_its_own_prompt() -> None:
    quiet = [timed(kind, (1.0, 1.01), (0.8, 0.8)) for kind in "abcde"]
    stalled = timed("f", (1.0, 1.01), (0.8, 3.0))
    waited = timed("g", (1.0, 3.0), (0.8, 1.1))
    scatter = scatter_of([*quiet, stalled, waited])
    assert scatter.num_disturbed == 1 and scatter.difference == pytest.approx(0.01)
    verdicts = [verdict_of(trial, scatter) for trial in (quiet[0], stalled, waited)]
    assert verdicts == [Verdict.FASTER, Verdict.UNDECIDED, Verdict.UNDECIDED]


SCATTER = Scatter(0.02, 10, 0.02)


@pytest.mark.parametrize(
    ("wager", "bet", "verdict", "said"),
    [
        ((0.5, 0.5), 2, Verdict.FASTER, "Wager was faster, 2.00x"),
        ((1.2, 1.2), 2, Verdict.SLOWER, "Wager was slower, 0.83x"),
        ((0.97, 0.97), 2, Verdict.UNDECIDED, "no difference that this short run can show (1.03x)"),
        ((0.5, 0.5), 0, Verdict.NO_BET, "no bet was made: plain decoding throughout (a draft would have"),
        ((1.2, 1.2), 0, Verdict.SLOWER, "no bet was made: plain decoding throughout, at 0.83x the speed"),
    ],
)
def test_a_prompt_shows_only_what_exceeds_chance(
    wager: tuple[float, float], bet: int, verdict: Verdict, said: str
) -> None:
    trial = timed("code", (1.0, 1.0), wager, bet)
    assert verdict_of(trial, SCATTER) is verdict
    words = trial_words(trial, SCATTER)
    assert said in words and "the same 2 tokens in all four runs" in words
    if verdict is not Verdict.FASTER:
        assert "faster" not in words
    if not bet:
        assert "(price 0.70 of a plain step, gain 0.20 tokens): 100%" in words


def test_a_kind_is_mixed_where_its_prompts_disagree() -> None:
    quick, slow = timed("a", (1.0, 1.0), (0.4, 0.4)), timed("a", (1.0, 1.0), (1.3, 1.3))
    assert [one.verdict for one in figures_by_kind([quick, quick])] == [Verdict.FASTER]
    [mixed] = figures_by_kind([quick, slow])
    assert mixed.verdict is Verdict.MIXED
    assert (mixed.lowest, mixed.highest) == (pytest.approx(1.0 / 1.3), pytest.approx(2.5))
    [none] = figures_by_kind([timed("a", (1.0, 1.0), (0.4, 0.4), bet=0)])
    assert none.verdict is Verdict.NO_BET and none.plain_share == 1.0


def overall_of(trials: Sequence[Trial]) -> Any:
    return overall(trials, figures_by_kind(trials))


def test_the_whole_is_decided_by_the_spread_over_prompts() -> None:
    times = (0.6, 0.62, 0.58, 0.61)
    alike = overall_of([timed("a", (1.0, 1.0), (time_s, time_s)) for time_s in times])
    assert alike.verdict is Verdict.FASTER and 1.5 < alike.low < alike.speedup < alike.high < 1.8
    unlike = overall_of([timed("a", (1.0, 1.0), (time_s, time_s)) for time_s in (0.3, 1.2, 0.4, 1.3)])
    assert unlike.verdict is Verdict.UNDECIDED and unlike.low < 1.0 < unlike.high
    assert overall_of([timed("a", (1.0, 1.0), (0.5, 0.5))]).low is None
    none = overall_of([timed("a", (1.0, 1.0), (time_s, time_s), bet=0) for time_s in times])
    assert none.verdict is Verdict.NO_BET


def test_reasons_are_counted_the_most_frequent_first() -> None:
    prices = [Declined(Reason.PRICE, 0.2, 0.6), Declined(Reason.PRICE, 0.4, 0.8)]
    run = run_of("auto", PLAIN_STEPS, declined=[Declined(Reason.NO_DRAFT), *prices])
    first, second = declined_steps([run])
    assert (first.reason, first.num_steps) == (Reason.PRICE, 2)
    assert (first.gain, first.price) == (pytest.approx(0.3), pytest.approx(0.7))
    assert (second.reason, second.num_steps) == (Reason.NO_DRAFT, 1)


def test_repetition_is_that_of_one_answer_to_each_prompt() -> None:
    loop = run_of("ar", [(0.1 * (i + 1), (i % 2,), 0) for i in range(20)])
    trial = Trial(DemoPrompt("code", "four"), [3], (loop, loop, loop, loop))
    assert repetition([trial]) == pytest.approx(11 / 13)
    assert repetition([trial_of()]) == 0.0


def test_a_machine_is_busy_by_its_load_per_core() -> None:
    assert is_busy(1.2, 2) and not is_busy(0.9, 2) and not is_busy(None, 2)


@pytest.mark.parametrize(
    ("tokens", "place"), [((1, 2, 3), None), ((1, 2, 0), 3), ((0, 2, 3), 1), ((1, 2), 3), ((1, 2, 3, 0), 4)]
)
def test_the_first_difference(tokens: tuple[int, ...], place: int | None) -> None:
    trial = trial_of(wager_steps=[(0.1, (0,), 0), (0.2, tokens, 4)])
    assert trial.first_difference == place
    assert figures_by_kind([trial])[0].identical == (place is None)
    assert ("the same 4 tokens" in trial_words(trial, SCATTER)) == (place is None)


def printed(show: Callable[[Console], None], width: int = 100, **options: Any) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width, highlight=False, **options))
    return file.getvalue()


DIFFERENT = [(0.1, (0,), 0), (0.2, (1, 2, 0), 4)]


NOTES = {
    "model": "demo",
    "policy": "auto",
    "device": {"value": "cpu", "source": "auto"},
    "threads": 2,
    "drafter": {"value": ["block", "lookup"], "source": "found beside the target"},
    "passes": {"value": "torch", "source": "no compiler"},
    "layout": "out_in",
}
SETUP = Setup(NOTES, 1_700_000, DEMO_FOLDER / "target", "a processor", 2, 0.1)


def summary(trials: Sequence[Trial], setup: Setup = SETUP, is_greedy: bool = True) -> str:
    return printed(lambda console: show_summary(trials, setup, console, is_greedy=is_greedy))


def test_the_summary_says_whether_texts_are_the_same() -> None:
    assert "Every text is the same" in summary([trial_of()])
    for near, said in ((True, "near-tie: the two best scores are 2e-05 apart"), (False, "THE TEXTS DIFFER")):
        trial = trial_of("chat", DIFFERENT, gap=2e-5, is_near_tie=near)
        out = summary([trial_of(), trial])
        assert said in out and "Every text is the same" not in out
        assert [line.split()[-2] for line in out.splitlines() if line.split()[:1] == ["chat"]] == ["NO"]


def test_the_summary_names_zero_bets_noise_and_a_busy_machine() -> None:
    quiet = [timed(kind, (1.0, 1.01), (0.5, 0.5)) for kind in "abc"]
    out = " ".join(summary(quiet).split())
    assert "Wager was faster on 3 prompts" in out and "Two plain runs of one prompt differ by 1.0%" in out
    assert "of the greedy answers" in out and "busy" not in out
    assert "of the sampled answers" in " ".join(summary(quiet, is_greedy=False).split())
    none = [timed(kind, (1.0, 1.01), (0.5, 0.5), bet=0) for kind in "abc"]
    out = " ".join(summary(none).split())
    assert "No bet was made: plain decoding throughout on 3 prompts" in out and "faster" not in out
    assert "Wager bet in 0% of its steps" in out and "would have cost more than it was expected" in out
    noisy = [timed(kind, (1.0, 1.4), (0.9, 0.9)) for kind in "abc"]
    assert "plain runs of one prompt should agree better" in " ".join(summary(noisy).split())
    loaded = " ".join(summary(quiet, SETUP._replace(load=3.5)).split())
    assert "Other programs were running (load average 3.5 on 2 cores before the demo)" in loaded


def test_a_stall_is_reported() -> None:
    trials = [*(timed(kind, (1.0, 1.01), (0.5, 0.5)) for kind in "abcde"), timed("f", (1.0, 3.0), (0.5, 0.5))]
    assert "for 1 of 6 prompts two plain runs differ by more than 25%" in " ".join(summary(trials).split())


def test_drafts_that_were_not_used_are_not_plain_decoding() -> None:
    unused = [Declined(Reason.SCORES)]
    runs = [run_of("ar", PLAIN_STEPS), run_of("auto", PLAIN_STEPS, declined=unused)] * 2
    trial = Trial(DemoPrompt("code", "four"), [3], tuple(runs))
    for said in (trial_words(trial, SCATTER), summary([trial, trial])):
        assert "o bet was made" in said and "plain decoding throughout" not in said


def test_the_table_fits_eighty_columns() -> None:
    trials = [timed(kind, (1.0, 1.1), (0.99, 0.99)) for kind in KINDS]
    out = printed(lambda console: show_summary(trials, SETUP, console, is_greedy=True), width=80)
    assert [line.split()[0] for line in out.splitlines() if line.rstrip().endswith("no difference")][
        :5
    ] == KINDS


def test_the_header_describes_model_drafter_machine_and_passes(tmp_path: Path) -> None:
    out = printed(lambda console: show_setup(SETUP, console))
    for said in (
        "demo, 1.7 million weights",
        "block and lookup",
        "a processor, 2 cores, 2 threads",
        "no compiler",
    ):
        assert said in out
    assert "busy" not in out
    file = tmp_path / "tiny.gguf"
    file.write_bytes(bytes(2_000_000))
    notes = NOTES | {"passes": {"value": "native", "source": "auto"}, "layout": "native avx2: 4-bit weights"}
    other = SETUP._replace(notes=notes, num_weights=134_500_000, file=file, load=4.0)
    out = printed(lambda console: show_setup(other, console))
    assert "134 million weights (tiny.gguf, 2 MB)" in out and "native avx2" in out
    assert "4.0 on 2 cores before the demo: other programs are running" in out


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
        screen.show(trial, trial_words(trial, SCATTER))
        screen.close()

    return printed(show, force_terminal=True, color_system="standard", height=30, **options), clock


def test_the_replay_takes_the_time_of_the_slower_run_and_shows_both() -> None:
    out, clock = side_by_side(trial_of())
    assert clock.now == pytest.approx(0.4, abs=0.06)
    last = Text.from_ansi(out[out.rindex("plain decoding") :]).plain
    assert last.count("one two three") == 2
    assert "4 tokens in 0.40 s, 10 tokens/s" in last and "4 tokens in 0.20 s, 20 tokens/s" in last
    assert "the same 4 tokens in all four runs; Wager was faster, 2.00x" in last
    assert "timing Wager, run 2 of 2" in out
    assert "bet 4, 2.00 tokens per step" in out


def test_accepted_draft_tokens_are_marked_on_the_right_only() -> None:
    assert side_by_side(trial_of())[0].count("\x1b[32m") > 0
    assert "\x1b[32m" not in side_by_side(trial_of(wager_steps=PLAIN_STEPS))[0]
    without = side_by_side(trial_of(), no_color=True)[0]
    assert "\x1b[32m" not in without and "\x1b[4m" in without


def test_what_the_demo_waits_for_is_shown_on_a_terminal_only() -> None:
    def show(console: Console) -> None:
        with waiting(console, "loading the model"):
            pass

    assert "loading the model" in printed(show, force_terminal=True)
    assert not printed(show)


def test_a_question_is_cut_at_its_end_and_a_text_at_its_beginning() -> None:
    text = "\n".join(f"line {number}" for number in range(9))
    for question, first, last in ((text, "line 0", "..."), (None, "...", "line 8")):
        trial = replace(trial_of(), prompt=DemoPrompt("dialog", text, question))

        def show(console: Console, trial: Trial = trial) -> None:
            LineScreen(console).begin(trial.prompt, ("ar", "auto"), brief=False)

        lines = [line.removeprefix("  > ") for line in printed(show).splitlines() if line.startswith("  > ")]
        assert (lines[0], lines[-1], len(lines)) == (first, last, 5)


def test_a_brief_trial_is_one_line() -> None:
    out, clock = side_by_side(trial_of(), brief=True)
    assert clock.now == 0.0
    assert (
        "code: plain 10, Wager 20 tokens/s; the same 4 tokens in all four runs" in Text.from_ansi(out).plain
    )


def test_without_a_terminal_the_text_is_printed_once() -> None:
    def show(console: Console) -> None:
        screen = LineScreen(console)
        screen.begin(trial_of().prompt, ("ar", "auto"), brief=False)
        screen.show(trial_of(), "a verdict")

    out = printed(show)
    assert out.count("one two three") == 1
    assert "plain  4 tokens in 0.40 s" in out and "Wager  4 tokens in 0.20 s" in out
    assert "a verdict" in out


# -- the command


class ScriptedLLM:
    """Streams the same four words under every policy; it can be interrupted or write a different text."""

    def __init__(self, interrupt_at: int | None = None, differs: bool = False) -> None:
        self.interrupt_at = interrupt_at
        self.differs = differs
        self.policy = ""
        self.requests: list[tuple[str, SamplingParams]] = []
        self.listened: dict[str, bool] = {}
        self.config = EngineConfig()
        self.chat_template = None
        self.notes = NOTES
        self.engine = SimpleNamespace(
            parts=SimpleNamespace(tokenizer=word_tokenizer(), folder=DEMO_FOLDER / "target"),
            runner=SimpleNamespace(decoder=SimpleNamespace(spec=SimpleNamespace(num_weights=1_700_000))),
            controller=SimpleNamespace(on_step=None),
        )

    def encode(self, _prompt: Any, template_kwargs: Any = None) -> list[int]:
        return [3]

    def set_policy(self, name: str) -> None:
        self.policy = name

    def stream(self, _prompts: Any, params: SamplingParams) -> Iterator[StreamEvent]:
        self.requests.append((self.policy, params))
        self.listened[self.policy] = self.engine.controller.on_step is not None
        if self.interrupt_at == len(self.requests):
            raise KeyboardInterrupt
        steps = PLAIN_STEPS if self.policy == "ar" else DIFFERENT if self.differs else WAGER_STEPS
        yield from (frame.event for frame in run_of(self.policy, steps).frames)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedLLM]:
    def install(**values: Any) -> ScriptedLLM:
        llm = ScriptedLLM(**values)

        def load(config: EngineConfig) -> ScriptedLLM:
            llm.config = config
            return llm

        monkeypatch.setattr(demo, "load_llm", load)
        return llm

    monkeypatch.setattr(demo, "is_fetched", lambda name: False)

    return install


def test_it_ends_with_the_table_and_the_next_commands(
    scripted: Callable[..., ScriptedLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    llm = scripted()
    assert main.exit_status(["demo", "--max-tokens", "7", "--temperature", "0.5"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if "yes" in row] == KINDS
    assert "by plain decoding and twice with Wager" in out and "on 15 prompts" in out
    assert "wager generate -p" in out and "wager demo --model demo" not in out
    assert "\x1b" not in out
    measured = llm.requests[3:]
    assert [policy for policy, _ in measured[:8]] == ["ar", "auto", "auto", "ar", "auto", "ar", "ar", "auto"]
    assert {(params.max_tokens, params.temperature) for _, params in measured} == {(7, 0.5)}
    seeds = [params.seed for _, params in measured]
    assert seeds == [number for number in range(1, 16) for _ in range(4)]
    assert not llm.config.cache.prefix_reuse and llm.config.scheduler.max_rows == 1


def test_plain_runs_ask_for_no_speculation(
    scripted: Callable[..., ScriptedLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    llm = scripted()
    assert main.exit_status(["demo", "--json"]) == 0
    assert {(policy, params.speculation) for policy, params in llm.requests} == {
        ("ar", "off"),
        ("auto", None),
    }
    assert llm.listened == {"ar": False, "auto": True} and llm.engine.controller.on_step is None


@pytest.mark.parametrize(
    ("fetched", "flags", "environment", "model", "says"),
    [
        (True, [], None, "smollm2", ""),
        (
            False,
            [],
            None,
            "demo",
            "smollm2 is not on this machine, so a toy model is used: `wager fetch smollm2`",
        ),
        (True, ["--model", "demo"], None, "demo", ""),
        (False, ["--model", "demo"], None, "demo", ""),
        (True, [], "another", "another", ""),
    ],
)
def test_the_model_is_the_fetched_one_or_says_how_to_fetch_it(
    fetched: bool,
    flags: list[str],
    environment: str | None,
    model: str,
    says: str,
    scripted: Callable[..., ScriptedLLM],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "is_fetched", lambda name: fetched)
    if environment is not None:
        monkeypatch.setenv("WAGER_MODEL", environment)
    llm = scripted()
    assert main.exit_status(["demo", "--max-tokens", "4", *flags]) == 0
    out, err = capsys.readouterr()
    assert llm.config.model.model == model
    assert says in err and bool(says) == bool(err)
    name = "" if model == "demo" else f" {model}"
    assert f"wager generate{name} -p" in out and ("wager demo --model demo" in out) == (model != "demo")


def test_json_is_a_result_file_with_figures_and_every_run(
    scripted: Callable[..., ScriptedLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted()
    assert main.exit_status(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "demo" and found["machine"]["cores"]
    config, data = found["config"], found["data"]
    assert config["model"] == "demo" and config["policy"] == "auto" and config["suite"] == "demo"
    assert config["max_tokens"] == MAX_TOKENS and config["num_weights"] == 1_700_000
    assert [one["kind"] for one in data["kinds"]] == KINDS
    assert all(one["identical"] and one["verdict"] in set(Verdict) for one in data["kinds"])
    whole = data["overall"]
    assert whole["low"] < whole["speedup"] < whole["high"] and whole["verdict"] in set(Verdict)
    assert data["scatter"]["num_pairs"] == 15 and data["repeated_8grams"] == 0.0
    assert [len(trial["runs"]) for trial in data["trials"]] == [4] * 15
    assert data["trials"][0]["runs"][1]["bets"] == {"4": 1}
    assert all(f"\n| {kind} | " in demo_table(found) for kind in [*KINDS, "mean, 95 % range"])


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
        assert len(json.loads(out)["data"]["trials"]) == done
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
        (["--model"], "--model"),
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
    flags = ["--model", "demo", "--max-tokens", "6", "--json", "--threads", "1", "--policy", "fixed:3"]
    assert main.exit_status(["demo", *flags]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert [one["kind"] for one in found["kinds"]] == KINDS
    for trial in found["trials"]:
        assert trial["first_difference"] is None or trial["gap"] < 1e-4
    bets = [bet for trial in found["trials"] for run in trial["runs"] for bet in run["bets"]]
    assert max(map(int, bets)) == 3
