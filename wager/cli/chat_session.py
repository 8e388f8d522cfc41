"""Answers the questions of a chat with an LLM: prompts within the context, streaming, stopping, totals.

It prints nothing itself: events go to a screen, and notices to a function. chat.py reads the questions, and
chat_commands.py changes the settings of a session.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wager.cli.conversation import Conversation
from wager.cli.generate_screen import Screen
from wager.cli.thinking import ThinkingOptions
from wager.errors import ModelError, RequestError
from wager.records import SamplingParams
from wager.text.reasoning import ReasoningMarks, ReasoningSplitter
from wager.text.thinking import ends_inside

if TYPE_CHECKING:
    from wager.llm import LLM, Output, StreamEvent

__all__ = ["Answered", "ChatSession", "Totals"]

ANSWER_SHARE = 4
"""At least this fraction of the context, one over it, is kept for an answer."""


@dataclass
class Answered:
    """One answer, complete or stopped."""

    text: str = ""
    """The whole text, with the thinking and its marks."""
    content: str = ""
    """The answer without the thinking. It is what the model sees in later turns."""
    num_tokens: int = 0
    num_steps: int = 0
    time_s: float = 0.0
    origins: Counter[str] = field(default_factory=Counter)
    """Tokens by origin: `target`, `forced`, or `guess:` and the drafter."""
    output: Output | None = None
    """The finished request; None if it was stopped."""

    @property
    def tokens_per_step(self) -> float:
        return self.num_tokens / max(self.num_steps, 1)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.time_s if self.time_s > 0.0 else 0.0


@dataclass
class Totals:
    """Sums over the answers of a chat."""

    answers: int = 0
    tokens: int = 0
    steps: int = 0
    time_s: float = 0.0
    origins: Counter[str] = field(default_factory=Counter)
    histogram: Counter[int] = field(default_factory=Counter)
    """Drafted steps by the number of accepted guesses."""

    def add(self, answered: Answered) -> None:
        self.answers += 1
        self.tokens += answered.num_tokens
        self.steps += answered.num_steps
        self.time_s += answered.time_s
        self.origins += answered.origins
        if answered.output is not None:
            self.histogram.update(dict(enumerate(answered.output.stats.histogram)))


class ChatSession:
    """A conversation with one model, and the settings of its next answers."""

    def __init__(
        self, llm: LLM, params: SamplingParams, thinking: ThinkingOptions, notice: Callable[[str], None]
    ) -> None:
        """`notice` receives one line about something that the user should know."""
        if llm.chat_template is None:
            raise ModelError("this model has no chat template; `wager generate --raw` continues texts")
        self.llm, self.params, self.thinking, self.notice = llm, params, thinking, notice
        self.conversation = Conversation()
        self.totals = Totals()
        self.max_context = int(str(llm.notes["max_context"]))
        marks, card = llm.thinking_marks(), llm.card()
        self._marks = marks
        texts = card.thinking.value
        self._texts = None if marks is None or texts is None else ReasoningMarks(texts.open, texts.close)

    @property
    def shown_ids(self) -> tuple[int, ...]:
        """Special tokens that the text shows: the marks around the thinking."""
        return () if self._marks is None else (*self._marks.open_ids, *self._marks.natural_ids)

    def prompt_ids(self) -> list[int]:
        """Returns the prompt of the next answer; the oldest turns are dropped if it would be too long.

        Raises RequestError if the last question alone is too long.
        """
        room = self.max_context - min(self.params.max_tokens, self.max_context // ANSWER_SHARE)
        dropped = 0
        ids = self._encoded()
        while len(ids) > room and self.conversation.drop_oldest_turn():
            dropped += 1
            ids = self._encoded()
        if len(ids) > room and len(ids) >= self.max_context:
            raise RequestError(f"has {len(ids)} tokens, the context holds {self.max_context}", "question")
        if dropped:
            turns = "turn is" if dropped == 1 else f"{dropped} turns are"
            self.notice(f"the context of {self.max_context} tokens is full: the oldest {turns} dropped")
        return ids

    def _encoded(self) -> list[int]:
        kwargs = {"enable_thinking": self.thinking.is_enabled} if self.thinking.is_given else None
        return self.llm.encode(self.conversation.prompt, kwargs)

    def answer(self, prompt_ids: list[int], open_screen: Callable[[], Screen]) -> Answered:
        """Answers a prompt and adds the answer to the conversation, whether or not Ctrl-C stopped it.

        Raises RequestError if the prompt is refused, ModelError if the request failed, and KeyboardInterrupt
        for a second Ctrl-C.
        """
        params, answered = self._params(prompt_ids), Answered()
        splitter, screen = self._splitter(prompt_ids), open_screen()
        began_s = time.perf_counter()
        try:
            with _first_interrupt() as interrupted:
                stream = self.llm.stream(prompt_ids, params)
                with closing(stream):  # type: ignore[type-var]
                    for event in stream:
                        screen.show(self._read(event, answered, splitter))
                        if interrupted():
                            break
        finally:
            screen.close()
            answered.time_s = time.perf_counter() - began_s
            self._keep(answered, splitter)
        if answered.output is not None and answered.output.error:
            raise ModelError(answered.output.error)
        return answered

    def _params(self, prompt_ids: list[int]) -> SamplingParams:
        params = replace(self.params, token_details=True, shown_ids=self.shown_ids)
        if not self.thinking.is_given:
            return params
        card = self.llm.card(self.thinking.close)
        return self.llm.limit_thinking(prompt_ids, params, self.thinking.budget, self.thinking.effort, card)

    def _splitter(self, prompt_ids: list[int]) -> ReasoningSplitter | None:
        tokenizer = self.llm.engine.parts.tokenizer
        if self._texts is None or self._marks is None or tokenizer is None:
            return None
        return ReasoningSplitter(self._texts, ends_inside(tokenizer, prompt_ids, self._marks))

    def _read(
        self, event: StreamEvent, answered: Answered, splitter: ReasoningSplitter | None
    ) -> StreamEvent:
        """Adds an event to the answer, and returns it with origins that name drafters and thinking."""
        is_thinking = splitter is not None and splitter.is_reasoning
        answered.text += event.text
        answered.content += event.text if splitter is None else splitter.feed(event.text).content
        answered.num_tokens += len(event.token_ids)
        answered.num_steps += bool(event.token_ids)
        answered.output = event.output or answered.output
        origins = [_origin(origin, event, at) for at, origin in enumerate(event.origins)]
        answered.origins.update(origins)
        return replace(event, origins=tuple(f"thinking:{one}" if is_thinking else one for one in origins))

    def _keep(self, answered: Answered, splitter: ReasoningSplitter | None) -> None:
        """Adds what was said so far to the conversation; a question without any answer is taken back."""
        if splitter is not None:
            answered.content += splitter.flush().content
        if answered.num_tokens:
            self.conversation.answer(answered.content)
            self.totals.add(answered)
        else:
            self.conversation.take_back_turn()


def _origin(origin: str, event: StreamEvent, place: int) -> str:
    drafter = event.details[place].drafter if place < len(event.details) else None
    return f"{origin}:{drafter}" if drafter else origin


@contextmanager
def _first_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns True after the first Ctrl-C. The second one raises KeyboardInterrupt.

    The engine is not interrupted within a step, after which it could not answer again.
    """
    interrupted = False

    def on_interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)
