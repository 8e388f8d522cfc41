"""The request body of /v1/responses."""

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
    ReplayedPart,
    UnreportedSpeculation,
    no_effect,
)
from wager.server.schemas.chat import Effort


class InputItem(ReplayedPart):
    """A message, a tool call, the output of a call, or reasoning. Without a type it is a message."""

    fields_by_type: ClassVar[Mapping[str | None, frozenset[str]]] = {
        None: frozenset({"role", "content"}),
        "message": frozenset({"role", "content"}),
        "function_call": frozenset({"call_id", "name", "arguments"}),
        "function_call_output": frozenset({"call_id", "output"}),
        "reasoning": frozenset({"content", "summary"}),
    }

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    id: str | None = no_effect(STORED)
    status: str | None = no_effect("an item is used as it is")
    phase: str | None = no_effect("chat templates do not use it")
    encrypted_content: str | None = no_effect("reasoning is not encrypted")


class FunctionTool(Part):
    type: Literal["function"]
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(Part):
    type: Literal["function"]
    name: str


class TextFormat(Part):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = no_effect("the model does not see the schema")
    description: str | None = no_effect("the model does not see the schema")
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = no_effect("the schema is always enforced")


class TextConfig(Part):
    format: TextFormat | None = None
    verbosity: None = None


class ReasoningConfig(Part):
    effort: Effort | None = None
    max_tokens: int | None = Field(None, description="An extension of Wager: a budget in tokens.")
    summary: Literal["auto", "concise", "detailed"] | None = no_effect("the whole reasoning is returned")
    generate_summary: None = None


class ResponsesStreamOptions(Part):
    include_obfuscation: bool | None = no_effect("events are never padded")


class ResponsesBody(Body):
    """/v1/responses."""

    refused: ClassVar[Mapping[str, str]] = {
        "previous_response_id": "nothing is stored; send the whole conversation",
        "conversation": "nothing is stored; send the whole conversation",
        "prompt": "the server stores no prompts",
        "background": "an answer is only returned while the client waits",
        "context_management": "send the messages that the model should see",
    }

    model: str | None = None
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["disabled"] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    seed: int | None = Field(None, description="An extension of Wager.")
    top_k: int | None = Field(None, description="An extension of Wager.")
    min_p: float | None = Field(None, description="An extension of Wager.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="An extension of Wager.")
    speculation: UnreportedSpeculation | None = Field(None, description="An extension of Wager.")
    user: str | None = no_effect(CLIENT)
    metadata: dict[str, Any] | None = no_effect("nothing is stored; the answer repeats it")
    store: bool | None = no_effect(STORED)
    service_tier: str | None = no_effect("there is only one tier")
    safety_identifier: str | None = no_effect(CLIENT)
    prompt_cache_key: str | None = no_effect(CACHE)
    prompt_cache_retention: str | None = no_effect(CACHE)
    max_tool_calls: int | None = no_effect("it limits built-in tools, and there are none")
