"""Request bodies of /v1/chat/completions, /v1/completions and the routes that generate no text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from wager.server.schemas.base import (
    CACHE,
    CLIENT,
    STORED,
    Body,
    ContentPart,
    Part,
    Sampling,
    StreamOptions,
    Thinking,
    no_effect,
)

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class CalledFunction(Part):
    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Part):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = no_effect("the order of the list counts")


class ChatMessage(Part):
    """One message. Its content is text or a list of text parts."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = no_effect("chat templates do not use it")
    annotations: list[Any] | None = no_effect("chat templates do not use it")
    audio: None = None
    function_call: None = None


class Function(Part):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    type: Literal["function"] = "function"
    function: Function


class NamedFunction(Part):
    name: str


class NamedTool(Part):
    type: Literal["function"] = "function"
    function: NamedFunction


class JsonSchema(Part):
    name: str | None = no_effect("the model does not see the schema")
    description: str | None = no_effect("the model does not see the schema")
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = no_effect("the schema is always enforced")


class ResponseFormat(Part):
    """The form of the answer. The types `regex` and `lark` are extensions of Wager."""

    type: Literal["text", "json_object", "json_schema", "regex", "lark"]
    json_schema: JsonSchema | None = None
    regex: str | None = None
    lark: str | None = None


class Reasoning(Part):
    effort: Effort | None = None
    max_tokens: int | None = None
    summary: str | None = no_effect("the whole reasoning is returned")


class ChatBody(Sampling):
    """/v1/chat/completions."""

    refused: ClassVar[Mapping[str, str]] = {
        "functions": "use tools",
        "function_call": "use tool_choice",
        "audio": "the model generates text only",
        "web_search_options": "the server has no web search",
        "verbosity": "the model has no such setting",
        "best_of": "use n and select an answer in the client",
        "documents": "put them into a message",
    }

    model: str | None = None
    messages: list[ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    thinking: Thinking | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: list[Literal["text"]] | None = None
    user: str | None = no_effect(CLIENT)
    metadata: dict[str, Any] | None = no_effect(STORED)
    store: bool | None = no_effect(STORED)
    service_tier: str | None = no_effect("there is only one tier")
    safety_identifier: str | None = no_effect(CLIENT)
    prompt_cache_key: str | None = no_effect(CACHE)
    prompt_cache_retention: str | None = no_effect(CACHE)
    prediction: dict[str, Any] | None = no_effect("the drafter makes the guesses")


class CompletionBody(Sampling):
    """/v1/completions."""

    refused: ClassVar[Mapping[str, str]] = {"suffix": "the model cannot fill in the middle"}

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    user: str | None = no_effect(CLIENT)
    metadata: dict[str, Any] | None = no_effect(STORED)


class TokenizeBody(Body):
    """/tokenize: a text, or messages that are rendered with the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """/detokenize."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False


class PolicyBody(Body):
    """/wager/policy."""

    policy: str
