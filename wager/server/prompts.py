"""From messages and texts to token ids: the chat template, the tokenizer, and what is too long to try.

Rendering and encoding take time on long prompts, so they run in threads of their own and the loop goes on. It
does not know HTTP; dialects hand it messages in the form of chat completions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wager.engine.engine import Engine
from wager.errors import RequestError
from wager.records import GrammarSpec
from wager.server.problems import Problem
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer
from wager.text.tool_grammar import strict_grammar
from wager.text.tools import Tool, ToolFormat, find_format, for_template

_THREADS = 2


class Prompt(NamedTuple):
    """A prompt ready for the engine, and the text it was made from."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class Chat:
    """A conversation to be rendered."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final: bool = False


class Prompts:
    """Makes prompts for one model."""

    def __init__(self, engine: Engine) -> None:
        self._tokenizer = engine.parts.tokenizer
        self._template = ChatTemplate.from_folder(engine.parts.folder)
        self._max_context = engine.parts.max_context
        self._longest = _longest_token(self._tokenizer)
        self._grammars = engine.grammars
        self.form: ToolFormat | None = find_format(self._template.sources) if self._template else None
        """How the model writes calls; None where it takes no tools."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="wager-prompt")

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises RequestError where the model has none."""
        if self._tokenizer is None:
            raise RequestError("the model has no tokenizer: only /v1/completions with token ids", "model")
        return self._tokenizer

    @property
    def template(self) -> ChatTemplate:
        """Raises RequestError where the model has none."""
        if self._template is None:
            raise RequestError("the model has no chat template: use /v1/completions", "messages")
        return self._template

    async def chat(self, chat: Chat) -> Prompt:
        return await self._in_thread(self._chat, chat)

    async def text(self, text: str, add_special: bool = True) -> Prompt:
        return await self._in_thread(self._text, text, add_special)

    def strict_grammar(self, form: ToolFormat, tools: Sequence[Tool]) -> GrammarSpec:
        """Free text whose calls of strict tools fit their schemas. Raises RequestError."""
        return strict_grammar(form, tools, self.tokenizer, self._grammars)

    async def check_grammar(self, spec: GrammarSpec) -> None:
        """Compile a grammar ahead of its request: a large one takes a while. Raises RequestError."""
        await self._in_thread(self._grammars.check, spec)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def _chat(self, chat: Chat) -> Prompt:
        messages, tools = for_template(self.form, chat.messages, chat.tools)
        text = self.template.render(
            messages,
            tools=tools,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final=chat.continue_final,
            template_kwargs=chat.template_kwargs,
        )
        return self._text(text, False, "messages")

    def _text(self, text: str, add_special: bool, field: str = "prompt") -> Prompt:
        if len(text) > self._max_context * self._longest:
            raise self._too_long(f"{len(text)} characters", field)
        return Prompt(text, self.tokenizer.encode(text, add_special))

    def checked(self, prompt: Prompt, field: str = "prompt") -> Prompt:
        """The same prompt. Raises Problem where it leaves no room for an answer."""
        if len(prompt.token_ids) >= self._max_context:
            raise self._too_long(f"{len(prompt.token_ids)} tokens", field)
        return prompt

    def _too_long(self, size: str, field: str) -> Problem:
        said = f"{field}: {size} leave no room in a context of {self._max_context} tokens"
        return Problem(400, said, param=field, code="context_length_exceeded")


def _longest_token(tokenizer: Tokenizer | None) -> int:
    """Characters of the longest token: what a text of n tokens can at most be long."""
    return 1 if tokenizer is None else max(map(len, tokenizer.backend.get_vocab()), default=1)
