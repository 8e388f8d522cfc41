"""What `wager demo` runs: which prompts, in which order, how long, and the figures that come of it.

Every prompt is answered twice plainly and twice with guesses, in mirrored order, one run at a time in one
process. It draws nothing and reads no flags: the engine goes in, timed runs come out. Called by demo.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from wager.bench.figures import geometric_mean, quantile
from wager.bench.suites import limited, load_suite
from wager.errors import ModelError
from wager.pairs import DEMO
from wager.records import SamplingParams

if TYPE_CHECKING:
    from wager.llm import LLM, Output, StreamEvent

PLAIN = "ar"
MAX_TOKENS = 96
LEAST_TOKENS = 16
LIMIT_S = 85.0
"""Time for all runs after loading, so that the whole stays below two minutes."""
RUNS_PER_PROMPT = 4
_WARM_UP_TOKENS = 24
_MARK = re.compile(r"<\|(\w+)\|>\n")
_QUESTION = re.compile(r"<\|user\|>\n([^|]*)\n<\|assistant\|>\n")


class DemoPrompt(NamedTuple):
    """A prompt of one kind; `question` is what a user asked, where the prompt is nothing but that."""

    kind: str
    text: str
    question: str | None

    @property
    def shown(self) -> str:
        """For people: the marks of a chat as words."""
        return _MARK.sub(r"\1: ", self.text.removesuffix("<|assistant|>\n")).strip("\n")


class Frame(NamedTuple):
    """An event of a run and when it came, in seconds since the run began."""

    at_s: float
    event: StreamEvent


@dataclass(frozen=True)
class Run:
    """One answer, timed. `time_s` is the whole request, the prompt's pass included."""

    policy: str
    frames: tuple[Frame, ...]
    output: Output

    @property
    def time_s(self) -> float:
        return self.frames[-1].at_s

    @property
    def num_tokens(self) -> int:
        return len(self.output.token_ids)

    @property
    def bets(self) -> list[int]:
        """Nodes verified, step by step; the first step reads the prompt and bets nothing."""
        return [frame.event.bet for frame in self.frames[1:]]


@dataclass(frozen=True)
class Trial:
    """A prompt's four runs, in the order in which they were made."""

    prompt: DemoPrompt
    prompt_ids: list[int]
    runs: tuple[Run, ...]
    gap: float | None = None
    """Where the texts part: how far plain decoding's two best scores are apart there."""
    is_near_tie: bool = False
    """Whether that is so near that passes of different width may rank them differently."""

    @property
    def plain(self) -> list[Run]:
        return [run for run in self.runs if run.policy == PLAIN]

    @property
    def wager(self) -> list[Run]:
        return [run for run in self.runs if run.policy != PLAIN]

    @property
    def first_difference(self) -> int | None:
        """The first token at which any two of the runs part; None where all are the same."""
        texts = [run.output.token_ids for run in self.runs]
        length = min(map(len, texts))
        parted = (i for i in range(length) if len({text[i] for text in texts}) > 1)
        return next(parted, None if len({len(text) for text in texts}) == 1 else length)


class Figures(NamedTuple):
    """One line of the table."""

    kind: str
    num_prompts: int
    num_tokens: int
    """Of one answer to each prompt."""
    plain_tokens_per_s: float
    wager_tokens_per_s: float
    speedup: float
    tokens_per_step: float
    bet_mean: float
    bet_low: float
    """A tenth of the bets are at most this."""
    bet_high: float
    """A tenth of the bets are at least this."""
    identical: bool
    ledger_ms: float
    """Time saved against plain decoding, by the ledger that Wager keeps while it runs; one answer each."""


def read_prompts(per_kind: int = 2) -> list[list[DemoPrompt]]:
    """Rounds of prompts: in each, one of every kind, in the order of the benchmark's file."""
    by_kind: dict[str, list[DemoPrompt]] = {}
    for one in limited(load_suite(DEMO), per_kind):
        by_kind.setdefault(one.kind, []).append(_prompt(one.kind, one.text))
    return [list(prompts) for prompts in zip(*by_kind.values(), strict=True)]


def _prompt(kind: str, text: str) -> DemoPrompt:
    """NOTE: a line end and the spaces behind it are one token, so a text is cut before them, not between."""
    question = _QUESTION.fullmatch(text)
    cut = text if _MARK.search(text) else text.rstrip()
    return DemoPrompt(kind, cut, None if question is None else question[1])


def encode(llm: LLM, prompt: DemoPrompt) -> list[int]:
    """The prompt's token ids: a question goes through the chat template, and mathematics is thought over."""
    tokenizer, template = llm.engine.parts.tokenizer, llm.chat_template
    if prompt.question is None or template is None or tokenizer is None:
        return llm.encode(prompt.text)
    thinking = {"enable_thinking": True} if prompt.kind == "math" else None
    text = template.render([{"role": "user", "content": prompt.question}], template_kwargs=thinking)
    return tokenizer.encode(text, add_special=False)


def answer(llm: LLM, prompt_ids: list[int], params: SamplingParams, policy: str) -> Run:
    """Run one request under a policy and note when each of its events came."""
    llm.set_policy(policy)
    frames: list[Frame] = []
    stream = llm.stream([prompt_ids], params)
    began = time.perf_counter()
    with closing(stream):  # type: ignore[type-var]
        for event in stream:
            frames.append(Frame(time.perf_counter() - began, event))
    output = frames[-1].event.output
    assert output is not None
    if output.error:
        raise ModelError(output.error)
    return Run(policy, tuple(frames), output)


def warm_up(llm: LLM, prompt: DemoPrompt, policy: str) -> float:
    """Let caches fill and costs be learned; returns the seconds of a plain token on this machine."""
    prompt_ids = encode(llm, prompt)
    params = SamplingParams(max_tokens=_WARM_UP_TOKENS, ignore_eos=True)
    for name in (PLAIN, policy):
        answer(llm, prompt_ids, params, name)
    last = answer(llm, prompt_ids, params, PLAIN)
    return last.time_s / last.num_tokens


def fitting_tokens(plain_token_s: float, num_prompts: int, limit_s: float = LIMIT_S) -> int:
    """How long answers may be so that one round fits, were guessing no help and each shown once more."""
    most = limit_s / (num_prompts * (RUNS_PER_PROMPT + 1) * plain_token_s)
    return max(LEAST_TOKENS, min(MAX_TOKENS, int(most)))


def order_of(index: int, policy: str) -> tuple[str, ...]:
    """A B B A for one prompt, B A A B for the next: drift and order fall on both sides alike."""
    order = (PLAIN, policy, policy, PLAIN)
    return order if index % 2 == 0 else (policy, PLAIN, PLAIN, policy)


def measure(
    llm: LLM, prompt: DemoPrompt, params: SamplingParams, order: Sequence[str], told: Callable[[int], None]
) -> Trial:
    """Answer a prompt once for each entry of `order`; `told` hears the number of the run that begins."""
    prompt_ids = encode(llm, prompt)
    runs = []
    for number, policy in enumerate(order):
        told(number)
        runs.append(answer(llm, prompt_ids, params, policy))
    trial = Trial(prompt, prompt_ids, tuple(runs))
    return trial if trial.first_difference is None else _judged(llm, trial, params)


def _judged(llm: LLM, trial: Trial, params: SamplingParams) -> Trial:
    """A trial whose texts part, with the reason."""
    from wager.bench.ties import gap_at, near_tie

    assert trial.first_difference is not None
    gap, near = gap_at(llm, trial.prompt_ids, params, trial.first_difference), near_tie(llm)
    return replace(trial, gap=gap, is_near_tie=near is not None and gap < near)


def figures_by_kind(trials: Iterable[Trial]) -> list[Figures]:
    by_kind: dict[str, list[Trial]] = {}
    for trial in trials:
        by_kind.setdefault(trial.prompt.kind, []).append(trial)
    return [_figures(kind, own) for kind, own in by_kind.items()]


def _figures(kind: str, trials: Sequence[Trial]) -> Figures:
    plain = [run for trial in trials for run in trial.plain]
    wager = [run for trial in trials for run in trial.wager]
    bets = [bet for run in wager for bet in run.bets] or [0]
    speeds = _speed(plain), _speed(wager)
    return Figures(
        kind,
        len(trials),
        sum(run.num_tokens for run in wager) // 2,
        *speeds,
        speeds[1] / speeds[0],
        sum(run.num_tokens for run in wager) / sum(run.output.stats.steps for run in wager),
        fmean(bets),
        quantile(bets, 0.1),
        quantile(bets, 0.9),
        all(trial.first_difference is None for trial in trials),
        sum(run.output.stats.ledger_ms for run in wager) / 2,
    )


def plain_scatter(trials: Iterable[Trial]) -> float:
    """How far two plain runs of one prompt are apart, as a part of the quicker; the middle over prompts."""
    apart = sorted(_apart(trial.plain) for trial in trials)
    return apart[len(apart) // 2]


def as_json(trials: Sequence[Trial]) -> dict[str, Any]:
    """Everything measured, without the text of each frame."""
    figures = figures_by_kind(trials)
    return {
        "kinds": [one._asdict() for one in figures],
        "geometric_mean": geometric_mean([one.speedup for one in figures]) if figures else None,
        "plain_scatter": plain_scatter(trials) if trials else None,
        "trials": [_trial_dict(trial) for trial in trials],
    }


def _trial_dict(trial: Trial) -> dict[str, Any]:
    return {
        "kind": trial.prompt.kind,
        "prompt": trial.prompt.text,
        "text": trial.runs[0].output.text,
        "first_difference": trial.first_difference,
        "gap": trial.gap,
        "runs": [_run_dict(run) for run in trial.runs],
    }


def _run_dict(run: Run) -> dict[str, Any]:
    stats = run.output.stats
    return {
        "policy": run.policy,
        "time_s": run.time_s,
        "num_tokens": run.num_tokens,
        "steps": stats.steps,
        "bets": run.bets,
        "ledger_ms": stats.ledger_ms,
        "finish_reason": run.output.finish_reason,
    }


def _speed(runs: Sequence[Run]) -> float:
    return sum(run.num_tokens for run in runs) / sum(run.time_s for run in runs)


def _apart(runs: Sequence[Run]) -> float:
    times = [run.time_s for run in runs]
    return max(times) / min(times) - 1.0


def rounds_within(
    rounds: Sequence[Sequence[DemoPrompt]], limit_s: float, clock: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[int, DemoPrompt]]:
    """Every prompt of the first round, and of later ones as long as another is likely to fit the time."""
    began = clock()
    done = 0
    for number, prompts in enumerate(rounds):
        for prompt in prompts:
            spent = clock() - began
            if number and spent + spent / done > limit_s:
                return
            yield done, prompt
            done += 1
