"""Builds what the engine takes from what a client asked: prompts, sampling parameters, limits, grammars.

All limits of the server are applied here. `PromptEncoder` renders the chat template and tokenizes, in threads
of its own, so that long prompts do not block the event loop. `RequestBuilder` does the rest; `ModelService`
owns one and every generation route uses it. It knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from wager.engine.engine import Engine
from wager.errors import RequestError
from wager.records import GrammarSpec, SamplingParams
from wager.server.api_errors import ApiError
from wager.server.generation_request import ChatRequest, GenerationRequest
from wager.server.schemas.base import Speculation
from wager.server.schemas.chat import ResponseFormat
from wager.server.thinking import ThinkingRules, make_thinking_rules, read_card
from wager.server_config import ServeConfig
from wager.text.chat import ChatTemplate
from wager.text.grammar import json_spec
from wager.text.tokenizer import Tokenizer
from wager.text.tool_grammar import strict_grammar, tool_grammar
from wager.text.tools import Tool, ToolFormat, find_format, for_template, function_of

MAX_LOGIT_BIAS = 1024
_PROMPT_THREADS = 2


class Prompt(NamedTuple):
    """A prompt as text and as token ids."""

    text: str
    token_ids: list[int]


class PromptEncoder:
    """Renders and tokenizes the prompts of one model."""

    def __init__(self, engine: Engine) -> None:
        self._tokenizer = engine.parts.tokenizer
        self._template = ChatTemplate.from_folder(engine.parts.folder)
        self._max_context = engine.parts.max_context
        self._max_token_chars = _longest_token(self._tokenizer)
        self.tool_format: ToolFormat | None = find_format(self._template.sources) if self._template else None
        """How the model writes tool calls; None if its chat template takes no tools."""
        self._threads = ThreadPoolExecutor(_PROMPT_THREADS, thread_name_prefix="wager-prompt")

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises RequestError if the model has none."""
        if self._tokenizer is None:
            message = "the model has no tokenizer; only /v1/completions with token ids is possible"
            raise RequestError(message, "model")
        return self._tokenizer

    async def render(self, chat: ChatRequest) -> Prompt:
        """The prompt of a conversation. Raises RequestError."""
        return await self.in_thread(self._render, chat)

    async def encode(self, text: str, add_special: bool = True) -> Prompt:
        return await self.in_thread(self._encode, text, add_special)

    def check_length(self, prompt: Prompt, field: str = "prompt") -> Prompt:
        """Returns the prompt. Raises ApiError if it leaves no room for an answer."""
        if len(prompt.token_ids) >= self._max_context:
            raise self._too_long(f"{len(prompt.token_ids)} tokens", field)
        return prompt

    async def in_thread(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _render(self, chat: ChatRequest) -> Prompt:
        if self._template is None:
            raise RequestError("the model has no chat template; use /v1/completions", "messages")
        offered = [_without_strict(tool) for tool in chat.tools.offered]
        known = [_with_known_role(message) for message in chat.messages]
        messages, tools = for_template(self.tool_format, known, offered)
        text = self._template.render(
            messages,
            tools=tools,
            add_generation_prompt=chat.add_generation_prompt and not chat.continue_final,
            continue_final=chat.continue_final,
            template_kwargs=chat.template_kwargs,
        )
        return self._encode(text, False, "messages")

    def _encode(self, text: str, add_special: bool, field: str = "prompt") -> Prompt:
        # Text that cannot fit into the context is refused before the work of tokenizing it.
        if len(text) > self._max_context * self._max_token_chars:
            raise self._too_long(f"{len(text)} characters", field)
        return Prompt(text, self.tokenizer.encode(text, add_special))

    def _too_long(self, size: str, field: str) -> ApiError:
        message = f"{field}: {size} leave no room in a context of {self._max_context} tokens"
        return ApiError(400, message, param=field, code="context_length_exceeded")


class RequestBuilder:
    """Builds the requests of one model."""

    def __init__(self, engine: Engine, config: ServeConfig) -> None:
        self._grammars = engine.grammars
        self._max_context = engine.parts.max_context
        self._max_output_tokens = config.server.max_output_tokens
        self.prompts = PromptEncoder(engine)
        self.card = read_card(engine, config)
        self.thinking: ThinkingRules | None = make_thinking_rules(engine, config, self.card)
        """How the model thinks; None if it does not."""

    async def render(self, chat: ChatRequest) -> Prompt:
        """The prompt of a conversation. Raises RequestError."""
        kwargs, is_on = dict(chat.template_kwargs), chat.thinking.is_on
        if is_on is not None:
            if self.thinking is None and is_on:
                raise RequestError("this model does not support thinking", "thinking")
            kwargs.setdefault("enable_thinking", is_on)
        return await self.prompts.render(replace(chat, template_kwargs=kwargs))

    async def build_chat(self, chat: ChatRequest, model: str) -> GenerationRequest:
        """Render, tokenize and check a conversation. Raises RequestError and ApiError."""
        prompt = self.prompts.check_length(await self.render(chat), "messages")
        grammar = self._grammar(chat)
        if grammar is not None:
            # Compiling a large grammar takes time, so it is done before the request is queued.
            await self.prompts.in_thread(self._grammars.check, grammar)
        params = self.sampling_params(
            {**chat.sampling, "grammar": grammar}, len(prompt.token_ids), chat.max_tokens, chat.speculation
        )
        request = GenerationRequest(
            model, [prompt.token_ids], params, chat.n, chat.client, self.prompts.tokenizer, tools=chat.tools
        )
        return self._with_tools(self._with_thinking(request, chat, prompt))

    def sampling_params(
        self,
        given: Mapping[str, Any],
        num_prompt: int,
        max_tokens: int | None,
        speculation: Speculation | None,
    ) -> SamplingParams:
        """The given values over the defaults of the model card, within the limits. Raises RequestError."""
        values = {name: value for name, value in given.items() if value is not None}
        params: dict[str, Any] = {"temperature": 1.0, **self.card.sampling.value, **values}
        params["max_tokens"] = self._token_limit(num_prompt, max_tokens)
        if speculation is not None:
            params["speculation"] = _speculation_mode(speculation)
            params["token_details"] = speculation.report == "tokens"
        return SamplingParams(**params)

    def _token_limit(self, num_prompt: int, max_tokens: int | None) -> int:
        """The smallest of the requested number, the server's limit and the rest of the context."""
        room = max(self._max_context - num_prompt, 1)
        limit = min(room, self._max_output_tokens or room)
        if max_tokens is None:
            return min(limit, self.card.max_tokens.value)
        if max_tokens < 1:
            raise RequestError(f"{max_tokens} is not a whole number from 1", "max_tokens")
        return min(max_tokens, limit)

    def _grammar(self, chat: ChatRequest) -> GrammarSpec | None:
        """The grammar of the text: that of the required tool calls, or that of the response format."""
        tool_format, offered, forced = self.prompts.tool_format, chat.tools.offered, chat.tools.forced
        if not offered:
            return chat.grammar
        if tool_format is None:
            raise RequestError("the model's chat template does not support tools", "tools")
        if chat.grammar is not None:
            message = "cannot be combined with tools unless tool_choice is none"
            raise RequestError(message, "response_format")
        if forced is not None:
            return tool_grammar(tool_format, forced, self.prompts.tokenizer, chat.tools.parallel)
        if any(function_of(tool).get("strict") for tool in offered):
            return strict_grammar(tool_format, offered, self.prompts.tokenizer, self._grammars)
        return None

    def _with_thinking(
        self, request: GenerationRequest, chat: ChatRequest, prompt: Prompt
    ) -> GenerationRequest:
        """Adds the limit of thinking and its marks, if the model thinks."""
        rules, params = self.thinking, request.params
        if rules is None:
            return request
        has_grammar = params.grammar is not None
        decision = rules.decide(chat.thinking, prompt.token_ids, params.max_tokens, has_grammar)
        shown_ids = (*params.shown_ids, *rules.shown_ids)
        return replace(
            request,
            params=replace(params, thinking=decision.limit, shown_ids=shown_ids),
            reasoning_marks=rules.texts,
            statistics={**request.statistics, "thinking": decision.statistics},
        )

    def _with_tools(self, request: GenerationRequest) -> GenerationRequest:
        """Adds the parsing of tool calls, if tools are offered."""
        tool_format = self.prompts.tool_format
        if not request.tools.offered or tool_format is None:
            return request
        shown_ids = (*request.params.shown_ids, *tool_format.shown_ids(self.prompts.tokenizer))
        return replace(request, params=replace(request.params, shown_ids=shown_ids), tool_format=tool_format)


def _speculation_mode(speculation: Speculation) -> str:
    if speculation.mode != "fixed":
        if speculation.nodes is not None:
            raise RequestError("is only allowed with the mode `fixed`", "speculation.nodes")
        return speculation.mode
    if speculation.nodes is None:
        raise RequestError("is required with the mode `fixed`", "speculation.nodes")
    return f"fixed:{speculation.nodes}"


def _with_known_role(message: Mapping[str, Any]) -> dict[str, Any]:
    """Chat templates do not know the role `developer`: it becomes `system`."""
    role = "system" if message.get("role") == "developer" else message.get("role")
    return {**message, "role": role}


def _without_strict(tool: Tool) -> Tool:
    """The tool as the chat template gets it: `strict` is for the server, not for the model."""
    function = {key: value for key, value in function_of(tool).items() if key != "strict"}
    return {**tool, "function": function}


def _longest_token(tokenizer: Tokenizer | None) -> int:
    """Characters of the longest token of the vocabulary."""
    return 1 if tokenizer is None else max(map(len, tokenizer.backend.get_vocab()), default=1)


def logit_bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    """The bias by token id. JSON object keys are strings, so the ids arrive as text."""
    if not given:
        return None
    if len(given) > MAX_LOGIT_BIAS:
        raise RequestError(f"{len(given)} entries; at most {MAX_LOGIT_BIAS} are allowed", "logit_bias")
    try:
        return {int(token_id): bias for token_id, bias in given.items()}
    except ValueError:
        raise RequestError("its keys must be token ids", "logit_bias") from None


def choice_count(n: int | None) -> int:
    if n is not None and n < 1:
        raise RequestError(f"{n} is not a whole number from 1", "n")
    return n or 1


def grammar_of(form: ResponseFormat | None) -> GrammarSpec | None:
    """The grammar of a response format; None for free text. Raises RequestError."""
    if form is None:
        return None
    for name in ("json_schema", "regex", "lark"):
        if name != form.type and getattr(form, name) is not None:
            raise RequestError(f"is only allowed with the type {name!r}", f"response_format.{name}")
    if form.type == "text":
        return None
    if form.type == "json_object":
        return json_spec({"type": "object"})
    if form.type == "json_schema":
        if form.json_schema is None or form.json_schema.schema_ is None:
            raise RequestError("expected a schema", "response_format.json_schema")
        return json_spec(form.json_schema.schema_)
    text = form.regex if form.type == "regex" else form.lark
    if not text:
        raise RequestError(f"expected text in the field {form.type!r}", "response_format")
    return GrammarSpec(form.type, text)
