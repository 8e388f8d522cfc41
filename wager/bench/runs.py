"""Runs the plan: every contender answers every prompt in turn, and texts are compared with plain decoding's.

A contender is plain decoding, a policy, or another decoder (peers.py). Each policy has a controller of its
own, so it learns only from its own steps; it keeps what it has learned from prompt to prompt, as a server
does. For warm-up, every contender answers the first prompt of each kind once, without a clock, and forgets
it. No drafter does anything for plain decoding. `wager bench` calls this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wager.bench.plan import BASELINE, PromptSet, RunOptions, sets
from wager.bench.records import Answer, Counts, Difference, Measured, Run, Timing
from wager.bench.suites import BenchPrompt
from wager.engine.assemble import build_controller
from wager.errors import ConfigError, ModelError
from wager.records import SamplingParams

if TYPE_CHECKING:
    from wager.bench.profile import Profiler
    from wager.engine.telemetry import StepReport
    from wager.llm import LLM, Output

__all__ = ["Contender", "Encoded", "PolicyContender", "Progress", "encode", "measure"]

Progress = Callable[[int, int, str], None]
"""Called with the number of finished sets, the number of all sets, and the next contender."""


class Contender(Protocol):
    """A decoder that answers prompts."""

    name: str
    compared: bool
    """Whether its text must equal plain decoding's."""

    def begin(self) -> None:
        """Forgets everything learned so far."""

    def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
        """Answers one prompt, alone. Raises ModelError if it fails."""


class PolicyContender:
    """One policy on the engine, with its own experience."""

    compared = True

    def __init__(self, llm: LLM, policy: str, profiler: Profiler | None = None) -> None:
        self.llm, self.name, self.profiler = llm, policy, profiler
        self.begin()

    def begin(self) -> None:
        self.controller = build_controller(self.llm.config, self.llm.engine.parts.make_costs())
        self.controller.set_policy(self.name)
        if self.profiler is not None:
            self.profiler.forget(self.name)

    def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
        reports: list[StepReport] = []
        if self.name == BASELINE:
            params = replace(params, speculation="off")  # so that no drafter keeps anything
        with self._installed(reports):
            start = time.perf_counter()
            first_s, num_first, output = 0.0, 0, None
            for event in self.llm.stream(list(prompt_ids), params):
                if not num_first:
                    first_s, num_first = time.perf_counter() - start, len(event.token_ids)
                output = event.output
            wall_s = time.perf_counter() - start
        assert output is not None
        if output.error:
            raise ModelError(f"{self.name}: {output.error}")
        timing = Timing(wall_s, first_s, len(output.token_ids), num_first)
        return Answer(timing, tuple(output.token_ids), counts_of(reports, output, wall_s))

    @contextmanager
    def _installed(self, reports: list[StepReport]) -> Iterator[None]:
        """Installs this policy's controller in the engine."""
        engine = self.llm.engine
        own = engine.controller
        hear = reports.append
        if self.profiler is not None:
            hear = self.profiler.listener(self.name, hear)
        engine.controller, engine.telemetry.listener = self.controller, hear
        try:
            yield
        finally:
            engine.controller = own
            engine.telemetry.listener = None


class Encoded(NamedTuple):
    """A prompt as token ids; `cut` tokens were removed from its beginning so that the answer fits."""

    prompt: BenchPrompt
    token_ids: list[int]
    cut: int = 0


def encode(llm: LLM, prompts: Sequence[BenchPrompt], max_tokens: int) -> list[Encoded]:
    """Returns the token ids of every prompt; a prompt that is too long for the context loses its
    beginning.
    """
    room = llm.engine.parts.max_context - max_tokens
    if room < 1:
        raise ConfigError("max_tokens", max_tokens, f"below the context of {llm.engine.parts.max_context}")
    found = []
    for prompt in prompts:
        is_chat = prompt.as_chat and llm.chat_template is not None
        ids = llm.encode([{"role": "user", "content": prompt.text}] if is_chat else prompt.text)
        found.append(Encoded(prompt, ids[-room:], max(len(ids) - room, 0)))
    return found


def measure(
    contenders: Sequence[Contender],
    prompts: Sequence[Encoded],
    options: RunOptions,
    progress: Progress | None = None,
) -> Measured:
    """Runs the whole plan; the first contender is plain decoding. An interrupted run returns its complete
    sets.
    """
    assert contenders[0].name == BASELINE
    by_name = {contender.name: contender for contender in contenders}
    kinds = [one.prompt.kind for one in prompts]
    plan = sets(kinds, list(by_name)[1:], options.rounds, options.prompt_order)
    measured = Measured(list(by_name), [(one.prompt.kind, one.prompt.id) for one in prompts])
    tell = progress or (lambda done, total, label: None)
    try:
        tell(0, len(plan), "warm-up")
        _warm_up(contenders, prompts, options)
        texts: dict[int, tuple[int, ...]] = {}
        for done, one in enumerate(plan):
            tell(done, len(plan), prompts[one.prompt].prompt.id)
            answers = _answer_set(by_name, one, prompts[one.prompt].token_ids, options)
            plain = texts.setdefault(one.prompt, answers[0].token_ids)
            _enter(measured, one, answers, plain, by_name)
        measured.finished = True
        tell(len(plan), len(plan), "done")
    except KeyboardInterrupt:
        pass
    return measured


def _warm_up(contenders: Sequence[Contender], prompts: Sequence[Encoded], options: RunOptions) -> None:
    first = {one.prompt.kind: index for index, one in reversed(list(enumerate(prompts)))}
    tokens = min(options.warmup_tokens, options.max_tokens)
    for contender in contenders:
        for index in sorted(first.values()):
            contender.answer(prompts[index].token_ids, options.params(index, tokens))
        contender.begin()


def _answer_set(
    by_name: dict[str, Contender], one: PromptSet, prompt_ids: Sequence[int], options: RunOptions
) -> list[Answer]:
    params = options.params(one.prompt)
    return [by_name[name].answer(prompt_ids, params) for name in one.turns]


def _enter(
    measured: Measured,
    one: PromptSet,
    answers: Sequence[Answer],
    plain: tuple[int, ...],
    by_name: dict[str, Contender],
) -> None:
    """Stores the times, counts and differences of a complete set."""
    kind = measured.prompts[one.prompt][0]
    known = {(found.contender, found.prompt) for found in measured.differences}
    for place, (name, answer) in enumerate(zip(one.turns, answers, strict=True)):
        measured.runs.append(Run(name, one.prompt, one.round, place, answer.timing))
        if answer.counts is not None:
            measured.add_counts(name, kind, answer.counts)
        if not by_name[name].compared:
            continue
        measured.compared[name] += 1
        found = difference(name, one.prompt, plain, answer.token_ids)
        if found is not None and (name, one.prompt) not in known:
            known.add((name, one.prompt))
            measured.differences.append(found)


def difference(contender: str, prompt: int, plain: Sequence[int], own: Sequence[int]) -> Difference | None:
    """Returns the first difference of two texts; None if they are equal."""
    if tuple(plain) == tuple(own):
        return None
    longest = max(len(plain), len(own))
    pairs = zip(_padded(plain, longest), _padded(own, longest), strict=True)
    position, (left, right) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    return Difference(contender, prompt, position, left, right)


def _padded(tokens: Sequence[int], length: int) -> list[int | None]:
    return [*tokens, *[None] * (length - len(tokens))]


def counts_of(reports: Sequence[StepReport], output: Output, wall_s: float) -> Counts:
    """Returns the counts of one answer's steps. A step with more than one pending token reads the prompt."""
    counts = Counts(answers=1)
    for report in reports:
        if report.num_tokens - report.num_nodes > 1:
            counts.prompt_steps += 1
            counts.prompt_ms += report.total_ms
            continue
        counts.steps += 1
        counts.emitted += report.emitted
        counts.bets[report.num_nodes] += 1
        counts.drafters[report.drafters[0]] += 1
        if report.num_nodes:
            counts.accepted[report.accepted] += 1
        for stage, ms in report.stage_ms.items():
            counts.stage_ms[stage] = counts.stage_ms.get(stage, 0.0) + ms
    counts.outside_ms = wall_s * 1e3 - sum(counts.stage_ms.values()) - counts.prompt_ms
    counts.spent_ms = output.stats.time_s * 1e3
    counts.plain_ms = counts.spent_ms + output.stats.ledger_ms
    return counts
