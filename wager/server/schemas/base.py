"""What the request bodies of all APIs share: strict types, refused fields, and the sampling fields.

Ranges are not checked here: `SamplingParams` checks them and names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

NO_EFFECT = "Accepted without effect: "
CACHE = "prefix reuse needs no request field"
CLIENT = "clients are identified by their API key or address"
STORED = "nothing is stored"
TEXT_ONLY = "chat templates receive only the text"


def no_effect(reason: str) -> Any:
    """Declares an optional field that is accepted and ignored. docs/api.md lists each one with its reason."""
    return Field(None, description=NO_EFFECT + reason)


class Part(BaseModel):
    """A JSON object with strict types and without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class Body(Part):
    """A whole request body."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Fields of the API that Wager does not support, with the reason."""

    @model_validator(mode="before")
    @classmethod
    def _check_refused(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, reason in cls.refused.items():
            if data.get(name) not in (None, [], {}):
                context = {"field": name, "reason": reason}
                raise PydanticCustomError("unsupported_field", "not supported: {reason}", context)
        return {name: value for name, value in data.items() if name not in cls.refused}


class ReplayedPart(Part):
    """An object that clients often send back from an answer. Its type decides which fields it may have."""

    fields_by_type: ClassVar[Mapping[str | None, frozenset[str]]] = {}
    """The fields of each type. Those declared with `no_effect` are allowed with every type."""

    type: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Clients send back every field that their library knows, most of them null."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}

    @model_validator(mode="after")
    def _check_fields(self) -> ReplayedPart:
        for name in self.model_fields_set - self.fields_by_type.get(self.type, frozenset()) - {"type"}:
            description = type(self).model_fields[name].description or ""
            if not description.startswith(NO_EFFECT):
                context = {"field": name, "type": self.type}
                raise PydanticCustomError("wrong_type", "not allowed with the type {type}", context)
        return self


class ContentPart(Part):
    """A part of a message's content. Only text is supported."""

    type: Literal["text", "input_text", "output_text", "summary_text", "reasoning_text"] = "text"
    text: str
    annotations: list[Any] | None = no_effect(TEXT_ONLY)
    logprobs: list[Any] | None = no_effect(TEXT_ONLY)
    cache_control: dict[str, Any] | None = no_effect(CACHE)


class Speculation(Part):
    """How speculative decoding is used for this request. The text does not depend on it."""

    mode: Literal["auto", "off", "fixed"] = "auto"
    nodes: int | None = Field(None, description="Length of the chain in the mode `fixed`.")
    report: Literal["none", "tokens"] = Field(
        "none", description="`tokens` reports the origin of each token."
    )


class UnreportedSpeculation(Speculation):
    """The same for APIs whose answers have no place for a report."""

    report: Literal["none"] = "none"


class Thinking(Part):
    """Whether the model thinks before it answers, and for how long."""

    type: Literal["enabled", "disabled", "adaptive"] = "enabled"
    budget_tokens: int | None = None


class StreamOptions(Part):
    include_usage: bool | None = None
    include_obfuscation: bool | None = no_effect("events are never padded")


class Sampling(Body):
    """The sampling fields of chat completions and completions."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    priority: int | None = None
    speculation: Speculation | None = None

    def given(self) -> dict[str, Any]:
        """The sampling fields that were given, by the names of `SamplingParams`."""
        names = [name for name in Sampling.model_fields if name not in ("speculation", "logit_bias")]
        return {name: value for name in names if (value := getattr(self, name)) is not None}
