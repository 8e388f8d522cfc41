"""Bodies of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from wager.server.schemas.base import Body, Part, Speculation, Thinking

__all__ = ["CountBody", "MessagesBody"]


class AnyBlock(Part):
    """A part of a message. Which fields it has hangs on its type; `messages.py` reads them."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str


class TurnMessage(Part):
    role: Literal["user", "assistant"]
    content: str | list[AnyBlock]


class OwnTool(Part):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None
    input_examples: list[Any] | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None


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


class ShownThinking(Thinking):
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`summarized` shows all of it; `omitted` leaves its text out."
    )


class CountBody(Body):
    """/v1/messages/count_tokens: what of a request makes its prompt."""

    refused: ClassVar[Mapping[str, str]] = {
        "container": "nothing is run here",
        "mcp_servers": "no servers are called from here",
        "context_management": "send the messages that are meant",
        "inference_geo": "it runs where it runs",
    }

    model: str | None = None
    messages: list[TurnMessage]
    system: str | list[AnyBlock] | None = None
    tools: list[OwnTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ShownThinking | None = None
    output_config: OutputConfig | None = None
    speed: Literal["standard"] | None = None
    # Harmless. Pages are shared without being asked to.
    cache_control: dict[str, Any] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class MessagesBody(CountBody):
    """/v1/messages."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # Wager's own.
    seed: int | None = None
    speculation: Speculation | None = None
    # Harmless.
    diagnostics: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
