"""What the bodies of all dialects share: strict types, unknown fields refused, and the fields of sampling.

Ranges are not checked here: `SamplingParams` knows them, and says so with the field's name. Knows no dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Body", "Part", "Sampling", "Speculation", "StreamOptions", "Thinking"]


class Part(BaseModel):
    """Strict types, and no field that is not named."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class Body(Part):
    """A whole body. `refused` are fields of the dialect that Wager does not honour, with the reason."""

    refused: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, why in cls.refused.items():
                if data.pop(name, None) not in (None, [], {}):
                    raise ValueError(f"{name} is not supported: {why}")
        return data


class Speculation(Part):
    """How this request is guessed. The text does not depend on it."""

    mode: Literal["auto", "off", "fixed"] = "auto"
    nodes: int | None = Field(None, description="With `fixed`: length of the chain.")
    report: Literal["none", "tokens"] = Field("none", description="`tokens`: say of each where it came from.")


class Thinking(Part):
    """Whether the model thinks first, and for how long."""

    type: Literal["enabled", "disabled", "adaptive"] = "enabled"
    budget_tokens: int | None = None


class StreamOptions(Part):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(Body):
    """How tokens are chosen and when the text ends: the same names in all OpenAI dialects."""

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
        """Those of the sampling fields that were given, by the names of `SamplingParams`."""
        names = [name for name in Sampling.model_fields if name not in ("speculation", "logit_bias")]
        return {name: value for name in names if (value := getattr(self, name)) is not None}
