"""The offline interface: `LLM(model).generate(prompts, SamplingParams(...))`.

A prompt is text (used as it is), a list of token ids, or a list of chat messages (rendered with the chat
template of the model). `generate` answers a whole batch; `stream` yields events as tokens are generated. An
LLM owns one engine and runs it in the calling thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wager.cards import ModelCard, card_for, decide_budget
from wager.config import EngineConfig, with_values
from wager.engine.assemble import build_engine
from wager.engine.engine import Engine, Event
from wager.engine.engine import Sequence as Running
from wager.errors import RequestError, WagerError
from wager.pairs import DEMO
from wager.records import CloseReport, SamplingParams, TokenDetail
from wager.text.chat import ChatTemplate
from wager.text.thinking import ThinkingMarks, ends_inside, thinking_marks

log = logging.getLogger("wager.llm")

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


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
    """One finished request."""

    index: int
    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    origins: list[str]
    stats: Stats
    stop: str | int | None = None
    logprobs: list[object] | None = None
    """One entry per token; the entry of a forced token is None."""
    error: str | None = None
    close: CloseReport | None = None
    """How the thinking of the request ended, if the request limits or counts it."""
    repeat_stopped: bool = False
    """Whether the answer was ended because it only repeated itself."""


@dataclass(frozen=True)
class StreamEvent:
    """New tokens of one request; the last event has `finished` set and carries the output."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    origins: tuple[str, ...]
    bet: int
    finished: bool = False
    finish_reason: str | None = None
    output: Output | None = field(default=None, repr=False)
    details: tuple[TokenDetail, ...] = ()
    """One entry per token if the request asked for token details, else empty."""


class LLM:
    """A loaded model, its drafter and its policy."""

    def __init__(
        self,
        model: str | None = None,
        drafter: str | None = "auto",
        policy: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
        *,
        config: EngineConfig | None = None,
        seed: int = 0,
        **settings: object,
    ) -> None:
        """Loads the model; without a model and a config it loads the demo pair.

        `drafter` is "auto", None, "lookup", a folder or a published name. `settings` are fields of the config
        by name.
        """
        if model is None and config is None:
            log.warning("no model was named: using %s, the small pair that ships with Wager", DEMO)
        given = {"model": model, "policy": policy, "dtype": dtype, "device": device, **settings}
        if drafter != "auto":
            given["drafter"] = drafter or "none"
        config = with_values(config or EngineConfig(), **{k: v for k, v in given.items() if v is not None})
        self.engine: Engine = build_engine(config, seed)
        self.config = config
        self.chat_template = ChatTemplate.from_folder(self.engine.parts.folder)
        self._requests = 0
        self._open: set[object] = set()
        self._unread: list[Event] = []
        """Events of streams other than the one that ran the step."""

    @property
    def notes(self) -> dict[str, object]:
        """Effective values and their sources."""
        return self.engine.parts.notes

    def settle(self, tell: Callable[[str], None] = log.info) -> None:
        """Waits for work that is still prepared in the background, mainly compiled passes.

        Only measurements need this. `tell` receives a message about what it waits for.
        """
        self.engine.settle(tell)

    def set_policy(self, name: str) -> None:
        """Changes the policy; this is allowed while streams are open."""
        self.engine.set_policy(name)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Answers every prompt and returns the outputs in the order of the prompts. A failed request has
        `error` set.
        """
        found = [event.output for event in self.stream(prompts, params) if event.output is not None]
        return sorted(found, key=lambda output: output.index)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[StreamEvent]:
        """Yields the events of all prompts as they occur. Closing the iterator aborts the requests that still
        run.
        """
        batch = _as_batch(prompts)
        each = _as_params(params, len(batch))
        encoded = [self.encode(prompt) for prompt in batch]
        ids: dict[object, int] = {}
        try:
            for index, (prompt_ids, own) in enumerate(zip(encoded, each, strict=True)):
                self._requests += 1
                request_id = f"request-{self._requests}"
                self.engine.add(request_id, prompt_ids, own)
                ids[request_id] = index
            self._open |= ids.keys()
            yield from self._events(ids)
        finally:
            self._open -= ids.keys()
            for known in ids:
                self.engine.abort(known)
            self._unread = [event for event in self._unread if event.request_id in self._open]
            if not self.engine.scheduler.has_work:
                self._read_step()  # removes the final events of the aborted requests

    def record_trace(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        path: str | Path,
        kind: str = "text",
    ) -> None:
        """Writes a trace of what the drafter offers at every position of these outputs, for `wager simulate`.

        Decoding is plain; the policy and its experience do not change. Raises ConfigError if the drafter
        gives no probabilities.
        """
        batch = _as_batch(prompts)
        encoded = [self.encode(prompt) for prompt in batch]
        each = _as_params(params, len(batch))
        self.engine.record_trace(list(zip(encoded, each, strict=True)), Path(path), kind)

    def card(self, terminator: str | None = None) -> ModelCard:
        """Returns the model card; `terminator` replaces the text that closes thinking."""
        model_type = str(self.notes["model_type"])
        return card_for(self.config.model.model, model_type, {"thinking": terminator})

    def thinking_marks(self, card: ModelCard | None = None) -> ThinkingMarks | None:
        """Returns the marks around the thinking of this model, or None if it does not think."""
        tokenizer, found = self.engine.parts.tokenizer, (card or self.card()).thinking
        if tokenizer is None or found.value is None:
            return None
        return thinking_marks(tokenizer, found.value, known_only=found.source == "fallback")

    def limit_thinking(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        budget: int | None = None,
        effort: str | None = None,
        card: ModelCard | None = None,
    ) -> SamplingParams:
        """Returns params that limit the thinking after this prompt to a budget or an effort, and that show
        its marks.

        The budget never exceeds what the model card leaves beside the answer. Raises RequestError if the
        model does not think.
        """
        card = card or self.card()
        marks, tokenizer = self.thinking_marks(card), self.engine.parts.tokenizer
        if marks is None or tokenizer is None:
            raise RequestError("this model does not think", field="thinking")
        decided = decide_budget(card, params.max_tokens, budget, effort)
        limit = marks.limit(decided.budget, starts_open=ends_inside(tokenizer, prompt_ids, marks))
        shown = dict.fromkeys([*params.shown_ids, *marks.open_ids, *marks.natural_ids])
        return replace(params, thinking=limit, shown_ids=tuple(shown))

    def encode(self, prompt: Prompt, template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
        """Returns the token ids of a prompt of any kind; `template_kwargs` are variables for the chat
        template.
        """
        if not isinstance(prompt, str) and all(type(part) is int for part in prompt):
            return [int(part) for part in prompt]  # type: ignore[arg-type]
        tokenizer = self.engine.parts.tokenizer
        if tokenizer is None:
            raise RequestError(
                "is text, but the model folder has no tokenizer: give token ids", field="prompt"
            )
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        if not all(isinstance(part, Mapping) for part in prompt):
            raise RequestError("is neither text, nor token ids, nor chat messages", field="prompt")
        if self.chat_template is None:
            raise RequestError("is a chat, but the model has no chat template", field="prompt")
        text = self.chat_template.render(list(prompt), template_kwargs=template_kwargs)  # type: ignore[arg-type]
        return tokenizer.encode(text, add_special=False)

    def _events(self, ids: dict[object, int]) -> Iterator[StreamEvent]:
        open_requests = set(ids)
        while open_requests:
            mine = [event for event in self._unread if event.request_id in ids]
            if not mine:
                self._read_step()
                continue
            self._unread = [event for event in self._unread if event.request_id not in ids]
            for event in mine:
                if event.finish is not None:
                    open_requests.discard(event.request_id)
                yield _stream_event(ids[event.request_id], event)

    def _read_step(self) -> None:
        """Runs a step and stores its events for the streams they belong to."""
        events = self.engine.step()
        if self._open and not events and not self.engine.scheduler.has_work and not self._unread:
            raise WagerError("the engine has stopped with requests still open")
        self._unread += [event for event in events if event.request_id in self._open]


def _stream_event(index: int, event: Event) -> StreamEvent:
    output = None
    if event.finish is not None:
        assert event.sequence is not None
        output = _output(index, event.sequence, event)
    return StreamEvent(
        index,
        event.token_ids,
        event.text,
        tuple(origin.value for origin in event.origins),
        event.bet,
        event.finish is not None,
        None if event.finish is None else event.finish.value,
        output,
        event.details,
    )


def _output(index: int, sequence: Running, event: Event) -> Output:
    stats, account = sequence.stats, event.account
    return Output(
        index,
        list(sequence.request.prompt_ids),
        sequence.output_ids,
        sequence.text,
        sequence.finish.value if sequence.finish else "",
        [origin.value for origin in sequence.origins],
        Stats(
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
        ),
        sequence.matched_stop,
        sequence.logprobs if sequence.params.logprobs is not None else None,
        sequence.error,
        sequence.close,
        sequence.repeat_stopped,
    )


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Returns a list of prompts. Text, a list of ids and a list of messages are one prompt each."""
    if isinstance(prompts, str):
        return [prompts]
    parts = list(prompts)
    if not parts:
        raise RequestError("is empty", field="prompt")
    if all(isinstance(part, int) for part in parts) or all(isinstance(part, Mapping) for part in parts):
        return [parts]  # type: ignore[list-item]
    return parts  # type: ignore[return-value]


def _as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    each = list(params)
    if len(each) != count:
        raise RequestError(f"has {len(each)} entries for {count} prompts", field="params")
    return each
