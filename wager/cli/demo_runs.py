"""Runs and measures the prompts of `wager demo`.

Every prompt is answered twice by plain decoding and twice with drafts, in mirrored order, one run at a time
in one process. Plain runs ask for no speculation, so that no drafter does anything for them. This file draws
nothing and computes no figures. Called by demo.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from wager.bench.suites import BenchPrompt, first_of_each_kind, load_suite
from wager.errors import ModelError
from wager.policy import Declined, Prediction, StepOutcome
from wager.records import SamplingParams
from wager.trace.decisions import declined_of

if TYPE_CHECKING:
    from wager.llm import LLM, Output, StreamEvent

PLAIN = "ar"
MAX_TOKENS = 128
LEAST_TOKENS = 16
LIMIT_S = 85.0
"""Time limit of all runs after loading, which keeps the whole demo below two minutes."""
PROMPTS_PER_KIND = 3
RUNS_PER_PROMPT = 4
_WARM_UP_TOKENS = 24
_MARK = re.compile(r"<\|(\w+)\|>\n")
_QUESTION = re.compile(r"<\|user\|>\n([^|]*)\n<\|assistant\|>\n")


class DemoPrompt(NamedTuple):
    kind: str
    text: str
    question: str | None = None
    """The user's question, if the prompt is a chat of that one question."""
    thinks: bool = False
    """Whether the chat template is asked to let the model think."""

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
    declined: tuple[Declined, ...] = ()
    """Why nothing was verified, for each such step after the prompt; empty for plain decoding."""

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


def read_prompts(suite: str, per_kind: int = PROMPTS_PER_KIND) -> list[list[DemoPrompt]]:
    """Returns rounds of prompts. Each round has one prompt of every kind, in the order of the file."""
    by_kind: dict[str, list[DemoPrompt]] = {}
    for prompt in first_of_each_kind(load_suite(suite), per_kind):
        by_kind.setdefault(prompt.kind, []).append(_prompt(prompt))
    return [list(prompts) for prompts in zip(*by_kind.values(), strict=True)]


def _prompt(prompt: BenchPrompt) -> DemoPrompt:
    kind, text = prompt.kind, prompt.text
    if prompt.as_chat:
        return DemoPrompt(kind, text, text)
    # NOTE: A line end and the spaces after it are one token, so trailing whitespace is removed as a whole.
    question = _QUESTION.fullmatch(text)
    cut = text if _MARK.search(text) else text.rstrip()
    return DemoPrompt(kind, cut, None if question is None else question[1], thinks=kind == "math")


def encode(llm: LLM, prompt: DemoPrompt) -> list[int]:
    """Returns the prompt's token ids. Questions use the chat template."""
    if prompt.question is None or llm.chat_template is None:
        return llm.encode(prompt.text)
    thinking = {"enable_thinking": True} if prompt.thinks else None
    return llm.encode([{"role": "user", "content": prompt.question}], thinking)


def answer(llm: LLM, prompt_ids: list[int], params: SamplingParams, policy: str) -> Run:
    """Runs one request under a policy and records when each of its events arrived."""
    llm.set_policy(policy)
    if policy == PLAIN:
        params = replace(params, speculation="off")
    frames: list[Frame] = []
    outcomes: list[StepOutcome] = []

    def on_step(outcome: StepOutcome, expected: Prediction) -> None:
        outcomes.append(outcome)

    controller = llm.engine.controller
    controller.on_step = None if policy == PLAIN else on_step
    stream = llm.stream([prompt_ids], params)
    began = time.perf_counter()
    try:
        with closing(stream):  # type: ignore[type-var]
            for event in stream:
                frames.append(Frame(time.perf_counter() - began, event))
    finally:
        controller.on_step = None
    output = frames[-1].event.output
    assert output is not None
    if output.error:
        raise ModelError(output.error)
    return Run(policy, tuple(frames), output, tuple(_reasons(outcomes)))


def _reasons(outcomes: Iterable[StepOutcome]) -> Iterator[Declined]:
    """Yields why nothing was verified, for each such step that did not read the prompt."""
    for outcome in outcomes:
        is_decoding = all(share.row.num_pending == 1 for share in outcome.rows)
        declined = declined_of(outcome) if is_decoding else None
        if declined is not None:
            yield declined


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
