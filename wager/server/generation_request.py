"""The records of what a client asked for, in one form for all APIs.

An API route fills a `ChatRequest` from its body. request_builder.py turns it into a `GenerationRequest` with
token ids and sampling parameters: the bridge submits it and generation.py reads its output. These records
know neither HTTP nor the engine, and importing them does not load pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wager.errors import RequestError
from wager.records import GrammarSpec, SamplingParams
from wager.text.reasoning import ReasoningMarks
from wager.text.tokenizer import Tokenizer
from wager.text.tools import Tool, ToolFormat, function_of
from wager.tree import derive_seed

if TYPE_CHECKING:
    from wager.server.schemas.base import Speculation


@dataclass(frozen=True)
class ThinkingOptions:
    """What a request says about thinking; None means that it says nothing."""

    enabled: bool | None = None
    budget: int | None = None
    effort: str | None = None

    @property
    def is_on(self) -> bool | None:
        """Whether thinking is wanted; None if that is not said. Raises RequestError on a contradiction."""
        by_effort = None if self.effort is None else self.effort != "none"
        by_budget = True if self.budget else None
        stated = {value for value in (self.enabled, by_effort, by_budget) if value is not None}
        if len(stated) > 1:
            raise RequestError("the request both enables and disables thinking", "thinking")
        return next(iter(stated), None)


@dataclass(frozen=True)
class ToolOptions:
    """The tools of a request, in the form of chat completions, and which of them may be called."""

    tools: Sequence[Tool] = ()
    choice: str = "auto"
    """`auto`, `none`, `required`, or `=` and the name of the tool to call."""
    parallel: bool = True
    """False: at most one call is returned."""

    @property
    def offered(self) -> list[Tool]:
        """The tools that the prompt describes."""
        return [] if self.choice == "none" else list(self.tools)

    @property
    def forced(self) -> list[Tool] | None:
        """The tools of which one must be called; None if the model decides. Raises RequestError."""
        if self.choice in ("auto", "none"):
            return None
        if self.choice == "required":
            found = list(self.tools)
        else:
            found = [tool for tool in self.tools if function_of(tool).get("name") == self.choice[1:]]
        if not found:
            message = f"there is no tool {self.choice[1:]!r}" if self.tools else "the request has no tools"
            raise RequestError(message, "tool_choice")
        return found


@dataclass(frozen=True)
class ChatRequest:
    """A conversation to be answered, in the terms of chat completions."""

    messages: Sequence[Mapping[str, Any]]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling values by the field names of `SamplingParams`; None means not given."""
    max_tokens: int | None = None
    n: int = 1
    tools: ToolOptions = field(default_factory=ToolOptions)
    grammar: GrammarSpec | None = None
    thinking: ThinkingOptions = field(default_factory=ThinkingOptions)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final: bool = False
    """The last message is continued instead of answered."""
    speculation: Speculation | None = None
    client: str = ""


@dataclass(frozen=True)
class GenerationRequest:
    """What the engine is to generate, and how its output is split into parts."""

    model: str
    prompts: Sequence[Sequence[int]]
    """Token ids. Only /v1/completions sends more than one prompt."""
    params: SamplingParams
    n: int = 1
    """Number of choices for each prompt."""
    client: str = ""
    tokenizer: Tokenizer | None = None
    reasoning_marks: ReasoningMarks | None = None
    """The marks around thinking; None if thinking is not separated from the answer."""
    tool_format: ToolFormat | None = None
    """How the model writes tool calls; None if none are parsed."""
    tools: ToolOptions = field(default_factory=ToolOptions)
    statistics: dict[str, Any] = field(default_factory=dict)
    """Decisions that are reported in `metrics` of the answer, such as the thinking budget."""

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def prompt(self, index: int) -> Sequence[int]:
        """The prompt of one choice."""
        return self.prompts[index // self.n]

    def choice_params(self, index: int) -> SamplingParams:
        """The parameters of one choice: every choice but the first of a prompt has a derived seed."""
        choice = index % self.n
        if not choice or self.params.seed is None:
            return self.params
        return replace(self.params, seed=derive_seed(self.params.seed, choice))
