"""The body of /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from wager.server.schemas.base import Body, Part, Speculation
from wager.server.schemas.chat import Effort

__all__ = ["InputItem", "ResponsesBody"]


class InputItem(Part):
    """A message, a call or its output. Which fields it has hangs on its type; `responses.py` reads them."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None


class FlatTool(Part):
    type: Literal["function"]
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(Part):
    type: Literal["function"]
    name: str


class TextFormat(Part):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Part):
    format: TextFormat | None = None
    verbosity: None = None


class ReasoningConfig(Part):
    effort: Effort | None = None
    max_tokens: int | None = Field(None, description="Wager's own: a budget in tokens.")
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: None = None


class ResponsesStreamOptions(Part):
    include_obfuscation: bool | None = None


class ResponsesBody(Body):
    """/v1/responses."""

    refused: ClassVar[Mapping[str, str]] = {
        "previous_response_id": "nothing is stored here; send the whole conversation",
        "conversation": "nothing is stored here; send the whole conversation",
        "prompt": "no prompts are stored here",
        "background": "answers are given while the client waits",
        "context_management": "send the messages that are meant",
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
    tools: list[FlatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["disabled"] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    # Wager's own.
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    speculation: Speculation | None = None
    # Harmless.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    max_tool_calls: int | None = None
