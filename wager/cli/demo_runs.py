"""Runs and measures the prompts of `wager demo`, and computes its figures.

Every prompt is answered twice by plain decoding and twice with drafts, in mirrored order, one run at a time
in one process. This file draws nothing and reads no flags. Called by demo.py.
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
from wager.bench.suites import first_of_each_kind, load_suite
from wager.errors import ModelError
from wager.pairs import DEMO
from wager.records import SamplingParams

if TYPE_CHECKING:
    from wager.llm import LLM, Output, StreamEvent

PLAIN = "ar"
MAX_TOKENS = 96
LEAST_TOKENS = 16
LIMIT_S = 85.0
"""Time limit of all runs after loading, which keeps the whole demo below two minutes."""
RUNS_PER_PROMPT = 4
_WARM_UP_TOKENS = 24
_MARK = re.compile(r"<\|(\w+)\|>\n")
_QUESTION = re.compile(r"<\|user\|>\n([^|]*)\n<\|assistant\|>\n")


class DemoPrompt(NamedTuple):
    kind: str
    text: str
    question: str | None
    """The user's question, if the prompt is a chat of that one question."""

    @property
    def display_text(self) -> str:
        """The text with the chat markers replaced by role names."""
        return _MARK.sub(r"\1: ", self.text.removesuffix("<|assistant|>\n")).strip("\n")


class Frame(NamedTuple):
    """One event of a run."""

    at_s: float
    """When the event arrived, in seconds since the run began."""
    event: StreamEvent


@dataclass(frozen=True)
class Run:
    """One timed answer."""

    policy: str
    frames: tuple[Frame, ...]
    output: Output

    @property
    def time_s(self) -> float:
        """The time of the whole request, with the prefill."""
        return self.frames[-1].at_s

    @property
    def num_tokens(self) -> int:
        return len(self.output.token_ids)

    @property
    def bets(self) -> list[int]:
        """The nodes verified in each step after the prefill."""
        return [frame.event.bet for frame in self.frames[1:]]


@dataclass(frozen=True)
class Trial:
    """The four runs of a prompt, in the order in which they were made."""

    prompt: DemoPrompt
    prompt_ids: list[int]
    runs: tuple[Run, ...]
    gap: float | None = None
    """The gap between plain decoding's two best scores at the first difference; None if there is none."""
    is_near_tie: bool = False
    """Whether the gap is so small that passes of different widths may rank the two tokens differently."""

    @property
    def plain(self) -> list[Run]:
        return [run for run in self.runs if run.policy == PLAIN]

    @property
    def wager(self) -> list[Run]:
        return [run for run in self.runs if run.policy != PLAIN]

    @property
    def first_difference(self) -> int | None:
        """The index of the first token that is not the same in all runs; None if there is none."""
        texts = [run.output.token_ids for run in self.runs]
        length = min(map(len, texts))
        different = (i for i in range(length) if len({text[i] for text in texts}) > 1)
        return next(different, None if len({len(text) for text in texts}) == 1 else length)


class Figures(NamedTuple):
    """One row of the table."""

    kind: str
    num_prompts: int
    num_tokens: int
    """Number of tokens of one answer to each prompt."""
    plain_tokens_per_s: float
    wager_tokens_per_s: float
    speedup: float
    tokens_per_step: float
    bet_mean: float
    bet_low: float
    """The 10th percentile of the bets."""
    bet_high: float
    """The 90th percentile of the bets."""
    identical: bool
    ledger_ms: float
    """Time saved compared with plain decoding according to Wager's ledger, for one answer to each prompt."""


def read_prompts(per_kind: int = 2) -> list[list[DemoPrompt]]:
    """Returns rounds of prompts. Each round has one prompt of every kind, in the order of the file."""
    by_kind: dict[str, list[DemoPrompt]] = {}
    for prompt in first_of_each_kind(load_suite(DEMO), per_kind):
        by_kind.setdefault(prompt.kind, []).append(_prompt(prompt.kind, prompt.text))
    return [list(prompts) for prompts in zip(*by_kind.values(), strict=True)]


def _prompt(kind: str, text: str) -> DemoPrompt:
    # NOTE: A line end and the spaces after it are one token, so trailing whitespace is removed as a whole.
    question = _QUESTION.fullmatch(text)
    cut = text if _MARK.search(text) else text.rstrip()
    return DemoPrompt(kind, cut, None if question is None else question[1])


def encode(llm: LLM, prompt: DemoPrompt) -> list[int]:
    """Returns the prompt's token ids. Questions use the chat template; mathematics enables thinking."""
    tokenizer, template = llm.engine.parts.tokenizer, llm.chat_template
    if prompt.question is None or template is None or tokenizer is None:
        return llm.encode(prompt.text)
    thinking = {"enable_thinking": True} if prompt.kind == "math" else None
    text = template.render([{"role": "user", "content": prompt.question}], template_kwargs=thinking)
    return tokenizer.encode(text, add_special=False)


def answer(llm: LLM, prompt_ids: list[int], params: SamplingParams, policy: str) -> Run:
    """Runs one request under a policy and records when each of its events arrived."""
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
    """Fills caches, lets the engine learn its costs, and returns the seconds of a plainly decoded token."""
    prompt_ids = encode(llm, prompt)
    params = SamplingParams(max_tokens=_WARM_UP_TOKENS, ignore_eos=True)
    for name in (PLAIN, policy):
        answer(llm, prompt_ids, params, name)
    last = answer(llm, prompt_ids, params, PLAIN)
    return last.time_s / last.num_tokens


def fitting_tokens(plain_token_s: float, num_prompts: int, limit_s: float = LIMIT_S) -> int:
    """Returns the length of answers with which one round fits, if drafting saved no time at all.

    Every prompt takes the time of its runs plus one, because the answers are replayed on the screen.
    """
    most = limit_s / (num_prompts * (RUNS_PER_PROMPT + 1) * plain_token_s)
    return max(LEAST_TOKENS, min(MAX_TOKENS, int(most)))


def order_of(index: int, policy: str) -> tuple[str, ...]:
    """Returns A B B A for one prompt and B A A B for the next, so that drift affects both ways equally."""
    order = (PLAIN, policy, policy, PLAIN)
    return order if index % 2 == 0 else (policy, PLAIN, PLAIN, policy)


def measure(
    llm: LLM, prompt: DemoPrompt, params: SamplingParams, order: Sequence[str], on_run: Callable[[int], None]
) -> Trial:
    """Answers a prompt once for each policy in `order`; `on_run` is called with each run's number."""
    prompt_ids = encode(llm, prompt)
    runs = []
    for number, policy in enumerate(order):
        on_run(number)
        runs.append(answer(llm, prompt_ids, params, policy))
    trial = Trial(prompt, prompt_ids, tuple(runs))
    return trial if trial.first_difference is None else _with_gap(llm, trial, params)


def _with_gap(llm: LLM, trial: Trial, params: SamplingParams) -> Trial:
    """Adds the gap at the first difference to a trial whose texts differ."""
    from wager.bench.ties import gap_at, near_tie

    assert trial.first_difference is not None
    gap, near = gap_at(llm, trial.prompt_ids, params, trial.first_difference), near_tie(llm)
    return replace(trial, gap=gap, is_near_tie=near is not None and gap < near)


def figures_by_kind(trials: Iterable[Trial]) -> list[Figures]:
    by_kind: dict[str, list[Trial]] = {}
    for trial in trials:
        by_kind.setdefault(trial.prompt.kind, []).append(trial)
    return [_figures(kind, group) for kind, group in by_kind.items()]


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


def plain_noise(trials: Iterable[Trial]) -> float:
    """Returns the relative time difference of two plain runs of a prompt, as the median over all prompts."""
    differences = sorted(_time_difference(trial.plain) for trial in trials)
    return differences[len(differences) // 2]


def as_json(trials: Sequence[Trial]) -> dict[str, Any]:
    """Returns everything that was measured, without the text of each frame."""
    figures = figures_by_kind(trials)
    return {
        "kinds": [one._asdict() for one in figures],
        "geometric_mean": geometric_mean([one.speedup for one in figures]) if figures else None,
        "plain_scatter": plain_noise(trials) if trials else None,
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


def _time_difference(runs: Sequence[Run]) -> float:
    times = [run.time_s for run in runs]
    return max(times) / min(times) - 1.0


def rounds_within(
    rounds: Sequence[Sequence[DemoPrompt]], limit_s: float, clock: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[int, DemoPrompt]]:
    """Yields all prompts of the first round, then more as long as another is likely to fit the time limit."""
    began = clock()
    done = 0
    for number, prompts in enumerate(rounds):
        for prompt in prompts:
            spent = clock() - began
            if number and spent + spent / done > limit_s:
                return
            yield done, prompt
            done += 1
