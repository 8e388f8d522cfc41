"""Bodies of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from wager.server.schemas.base import Body, Part, Sampling, StreamOptions, Thinking

__all__ = ["ChatBody", "ChatMessage", "CompletionBody", "Tool"]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class CalledFunction(Part):
    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Part):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(Part):
    """One message. Content is text, or a list of text parts."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
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
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Part):
    """The form of the answer; `regex` and `lark` are Wager's own."""

    type: Literal["text", "json_object", "json_schema", "regex", "lark"]
    json_schema: JsonSchema | None = None
    regex: str | None = None
    lark: str | None = None


class Reasoning(Part):
    effort: Effort | None = None
    max_tokens: int | None = None
    summary: str | None = None


class ChatBody(Sampling):
    """/v1/chat/completions."""

    refused: ClassVar[Mapping[str, str]] = {
        "functions": "use tools",
        "function_call": "use tool_choice",
        "audio": "this model writes text only",
        "web_search_options": "nothing is searched here",
        "verbosity": "the model has no such setting",
        "best_of": "choose among n yourself",
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
    # Harmless: they change nothing here.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prediction: dict[str, Any] | None = None


class CompletionBody(Sampling):
    """/v1/completions."""

    refused: ClassVar[Mapping[str, str]] = {"suffix": "the model cannot fill in"}

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
    # Harmless.
    user: str | None = None
    metadata: dict[str, Any] | None = None


class TokenizeBody(Body):
    """/tokenize: a text, or messages as the chat template puts them."""

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
