"""The results of requests: `Output` at the end, `StreamEvent` on the way, and how both come from the engine's
events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from wager.engine.engine import Event, Sequence
from wager.llm.prompts import NewRequest
from wager.records import CloseReport, TokenDetail, TopLogprobs


@dataclass(frozen=True)
class Stats:
    """Statistics of speculation for one request."""

    steps: int
    tokens_per_step: float
    accepted: int
    drafted: int
    acceptance: float
    histogram: list[int]
    """Entry i is the number of drafted steps that accepted i guesses."""
    speedup: float | None
    """Time of plain decoding, as estimated by the ledger, divided by the time spent."""
    ledger_ms: float
    """Time saved compared with plain decoding."""
    time_s: float
    reused: int
    """Number of prompt tokens whose keys and values came from shared pages."""


@dataclass(frozen=True)
class Output:
    """One finished request: an answer to a prompt."""

    index: int
    """The number of the prompt in the call."""
    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    """`stop`, `length`, `abort` or `error`."""
    origins: list[str]
    """Of each token: `target`, `guess` or `forced`."""
    stats: Stats
    stop: str | int | None = None
    """The stop text or the token that ended the answer."""
    logprobs: list[TopLogprobs | None] | None = None
    """One entry per token if the request asked for them; the entry of a forced token is None."""
    error: str | None = None
    close: CloseReport | None = None
    """How the thinking of the request ended, if the request limits or counts it."""
    repeat_stopped: bool = False
    """Whether the answer was ended because it only repeated itself."""
    prompt: str | None = None
    """The text of the prompt, of a chat as its template renders it; None if token ids were given."""
    prompt_logprobs: list[TopLogprobs | None] | None = None
    """One entry per token of the prompt if the request asked for them; that of the first is None."""
    choice: int = 0
    """The number of the answer among the `n` answers to its prompt."""
    others: tuple[Output, ...] = ()
    """The other answers to the prompt, if the request asked for several."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """All answers to the prompt, this one first."""
        return (self, *self.others)

    @property
    def prompt_token_ids(self) -> list[int]:
        """The same as `prompt_ids`."""
        return self.prompt_ids


@dataclass(frozen=True)
class StreamEvent:
    """New tokens of one request; the last event has `finished` set and carries the output."""

    index: int
    """The number of the prompt in the call."""
    token_ids: tuple[int, ...]
    text: str
    origins: tuple[str, ...]
    bet: int
    finished: bool = False
    finish_reason: str | None = None
    output: Output | None = field(default=None, repr=False)
    details: tuple[TokenDetail, ...] = ()
    """One entry per token if the request asked for token details, else empty."""
    choice: int = 0
    """The number of the answer among the `n` answers to its prompt."""


def stream_event(request: NewRequest, event: Event) -> StreamEvent:
    return StreamEvent(
        request.number,
        event.token_ids,
        event.text,
        tuple(origin.value for origin in event.origins),
        event.bet,
        event.finish is not None,
        None if event.finish is None else event.finish.value,
        None if event.finish is None else output_of(request, event),
        event.details,
        request.choice,
    )


def output_of(request: NewRequest, event: Event) -> Output:
    """The output of a request. Precondition: the event is its last."""
    sequence = event.sequence
    assert sequence is not None
    params = sequence.params
    return Output(
        request.number,
        list(sequence.request.prompt_ids),
        sequence.output_ids,
        sequence.text,
        sequence.finish.value if sequence.finish else "",
        [origin.value for origin in sequence.origins],
        _stats(sequence, event),
        sequence.matched_stop,
        None if params.logprobs is None else sequence.logprobs,
        sequence.error,
        sequence.close,
        sequence.repeat_stopped,
        request.prompt.text,
        None if params.prompt_logprobs is None else sequence.prompt_logprobs,
        request.choice,
    )


def _stats(sequence: Sequence, event: Event) -> Stats:
    stats, account = sequence.stats, event.account
    return Stats(
        stats.steps,
        stats.tokens_per_step,
        stats.accepted,
        stats.drafted,
        stats.acceptance,
        list(stats.acceptance_histogram),
        stats.speedup,
        account.balance_ms if account else 0.0,
        stats.time_s,
        sequence.num_reused,
    )


def by_prompt(found: Iterable[Output]) -> list[Output]:
    """One output per prompt, in the order of the prompts; the first answer carries the others."""
    answers: dict[int, list[Output]] = {}
    for output in sorted(found, key=lambda one: (one.index, one.choice)):
        answers.setdefault(output.index, []).append(output)
    return [replace(one[0], others=tuple(one[1:])) if one[1:] else one[0] for one in answers.values()]
