"""Request bodies of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from wager.server.schemas.base import (
    CACHE,
    CLIENT,
    STORED,
    TEXT_ONLY,
    Body,
    Part,
    ReplayedPart,
    Thinking,
    UnreportedSpeculation,
    no_effect,
)


class ContentBlock(ReplayedPart):
    """A part of a message or of the system prompt."""

    fields_by_type: ClassVar[Mapping[str | None, frozenset[str]]] = {
        "text": frozenset({"text"}),
        "thinking": frozenset({"thinking"}),
        "redacted_thinking": frozenset({"data"}),
        "tool_use": frozenset({"id", "name", "input"}),
        "tool_result": frozenset({"tool_use_id", "content"}),
    }

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[ContentBlock] | None = None
    data: str | None = no_effect("redacted thinking cannot be read")
    signature: str | None = no_effect("thinking is not signed")
    is_error: bool | None = no_effect("chat templates do not use it; say so in the content")
    citations: list[Any] | None = no_effect(TEXT_ONLY)
    caller: dict[str, Any] | None = no_effect("tools are always called by the client")
    cache_control: dict[str, Any] | None = no_effect(CACHE)


class TurnMessage(Part):
    role: Literal["user", "assistant"]
    content: str | list[ContentBlock]


class CustomTool(Part):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None
    cache_control: dict[str, Any] | None = no_effect(CACHE)
    input_examples: list[Any] | None = no_effect("chat templates do not use it")
    eager_input_streaming: bool | None = no_effect("calls are sent when they are complete")


class ToolChoice(Part):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Part):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Part):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class DisplayedThinking(Thinking):
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`summarized` returns the whole thinking; `omitted` leaves its text out."
    )


class CountBody(Body):
    """/v1/messages/count_tokens: the fields that make the prompt."""

    refused: ClassVar[Mapping[str, str]] = {
        "container": "the server runs no code",
        "mcp_servers": "the server calls no other servers",
        "context_management": "send the messages that the model should see",
        "inference_geo": "the server does not choose a region",
    }

    model: str | None = None
    messages: list[TurnMessage]
    system: str | list[ContentBlock] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: DisplayedThinking | None = None
    output_config: OutputConfig | None = None
    speed: Literal["standard"] | None = None
    cache_control: dict[str, Any] | None = no_effect(CACHE)
    user_profile_id: str | None = no_effect(CLIENT)
    workspace_id: str | None = no_effect(CLIENT)


class MessagesBody(CountBody):
    """/v1/messages."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = Field(None, description="An extension of Wager.")
    speculation: UnreportedSpeculation | None = Field(None, description="An extension of Wager.")
    diagnostics: dict[str, Any] | None = no_effect(STORED)
    metadata: dict[str, Any] | None = no_effect(STORED)
    service_tier: str | None = no_effect("there is only one tier")
