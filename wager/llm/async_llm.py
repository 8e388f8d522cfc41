"""`AsyncLLM`: the same for programs with an event loop, on which no step ever runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self

from wager.engine.assemble import give_back_memory
from wager.engine.engine import Event
from wager.llm.llm import Params
from wager.llm.loaded import LoadedModel
from wager.llm.outputs import Output, StreamEvent, by_prompt, output_of, stream_event
from wager.llm.prompts import ChatOptions, Message, NewRequest, Prompt
from wager.text.tools import Tool


class AsyncLLM(LoadedModel):
    """A loaded model, its drafter and its policy, for coroutines. A cancelled task ends its requests.

    Loading takes its time in the constructor; `await asyncio.to_thread(AsyncLLM, ...)` keeps a loop running.
    """

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
    ) -> list[Output]:
        """Answers every prompt and returns one output per prompt, as `LLM.generate` does."""
        return await self._answers(await asyncio.to_thread(self._requests, prompts, params, sampling_params))

    async def chat(
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
    ) -> list[Output]:
        """Answers one conversation or a list of them, as `LLM.chat` does."""
        options = ChatOptions(tools, chat_template_kwargs, add_generation_prompt, continue_final_message)
        return await self._answers(
            await asyncio.to_thread(
                self._chat_requests, messages, params, sampling_params, options, enable_thinking
            )
        )

    async def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yields the events of all prompts as they occur. Closing the iterator aborts the requests that still
        run.
        """
        requests = await asyncio.to_thread(self._requests, prompts, params, sampling_params)
        async with aclosing(self._events(requests)) as events:
            async for request, event in events:
                yield stream_event(request, event)

    async def set_policy(self, name: str) -> None:
        """Changes the policy; this is allowed while requests run."""
        await asyncio.wrap_future(self._calls.ask_later(lambda engine: engine.set_policy(name)))

    async def close(self) -> None:
        """Ends requests that still run and frees the memory; every later use raises WagerError."""
        await asyncio.to_thread(self._calls.stop)
        give_back_memory()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _answers(self, requests: list[NewRequest]) -> list[Output]:
        async with aclosing(self._events(requests, only_last=True)) as events:
            return by_prompt([output_of(*one) async for one in events])

    async def _events(
        self, requests: Sequence[NewRequest], *, only_last: bool = False
    ) -> AsyncGenerator[tuple[NewRequest, Event], None]:
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Event | BaseException] = asyncio.Queue()

        def put(item: Event | BaseException) -> None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(inbox.put_nowait, item)

        call = self._calls.new(requests, put, only_last=only_last)
        try:
            await asyncio.wrap_future(self._calls.begin(call))
            while call.open_ids:
                yield call.receive(await inbox.get())
        finally:
            self._calls.end(call)
