"""`LLM(model).generate(prompts, SamplingParams(...))`: the interface for ordinary programs and threads.

`generate` answers a whole batch, `chat` answers conversations, and `stream` yields events as tokens are
generated. Calls of several threads run together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wager.engine.assemble import give_back_memory
from wager.errors import RequestError
from wager.llm.loaded import LoadedModel
from wager.llm.outputs import Output, StreamEvent, by_prompt, output_of, stream_event
from wager.llm.progress import progress_bar
from wager.llm.prompts import ChatOptions, Message, NewRequest, Prompt
from wager.records import SamplingParams
from wager.text.tools import Tool

log = logging.getLogger("wager.llm")

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM(LoadedModel):
    """A loaded model, its drafter and its policy. Threads may share it."""

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
        use_tqdm: bool | None = None,
    ) -> list[Output]:
        """Answers every prompt and returns one output per prompt, in their order. A failed request has
        `error` set.

        Without params the model's own recommendations apply (`default_params`). `sampling_params` is vLLM's
        name of `params`. `use_tqdm` shows a progress bar; None shows it on a terminal.
        """
        return self._answers(self._requests(prompts, params, sampling_params), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        sampling_params: Params = None,
        tools: Sequence[Tool] | None = None,
        enable_thinking: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[Output]:
        """Answers one conversation or a list of them, rendered with the model's chat template.

        `tools` and `chat_template_kwargs` go to the template, and so does `enable_thinking`.
        `continue_final_message` continues the last message instead of answering it. Raises RequestError if
        the model has no chat template, or none that takes tools.
        """
        options = ChatOptions(tools, chat_template_kwargs, add_generation_prompt, continue_final_message)
        requests = self._chat_requests(messages, params, sampling_params, options, enable_thinking)
        return self._answers(requests, use_tqdm)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
    ) -> Iterator[StreamEvent]:
        """Yields the events of all prompts as they occur. Closing the iterator aborts the requests that still
        run.
        """
        requests = self._requests(prompts, params, sampling_params)
        with closing(self._calls.events(requests)) as events:
            for request, event in events:
                yield stream_event(request, event)

    def set_policy(self, name: str) -> None:
        """Changes the policy; this is allowed while requests run."""
        self._calls.ask(lambda engine: engine.set_policy(name))

    def settle(self, tell: Callable[[str], None] = log.info) -> None:
        """Waits for work that is still prepared in the background, mainly compiled passes.

        Only measurements need this, while nothing runs. `tell` receives a message about what it waits for.
        """
        with self._calls.paused() as engine:
            engine.settle(tell)

    def record_trace(
        self, prompts: Prompt | Sequence[Prompt], params: Params, path: str | Path, kind: str = "text"
    ) -> None:
        """Writes a trace of what the drafter offers at every position of these outputs, for `wager simulate`.

        Decoding is plain; the policy and its experience do not change. Raises ConfigError if the drafter
        gives no probabilities.
        """
        requests = self._requests(prompts, params, None)
        if any(request.choice for request in requests):
            raise RequestError("a trace has one answer per prompt", field="n")
        asked = [(request.prompt.token_ids, request.params) for request in requests]
        with self._calls.paused() as engine:
            engine.record_trace(asked, Path(path), kind)

    def close(self) -> None:
        """Ends requests that still run and frees the memory; every later use raises WagerError."""
        self._calls.stop()
        give_back_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self, requests: list[NewRequest], use_tqdm: bool | None) -> list[Output]:
        found: list[Output] = []
        with (
            progress_bar(len(requests), use_tqdm) as count,
            closing(self._calls.events(requests, only_last=True)) as events,
        ):
            for request, event in events:
                found.append(output_of(request, event))
                count(found[-1])
        return by_prompt(found)
