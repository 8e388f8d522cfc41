"""The flags of `wager generate` that limit thinking.

A budget or an effort tells the model's chat template to enable thinking; effort `none` disables it. The model
card defines the thinking marks, the budget of each effort, and the tokens reserved for the answer.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from wager.cards import EFFORTS, decide_budget
from wager.cli.flags import parameter
from wager.cli.help import THINKING, completing
from wager.errors import RequestError
from wager.records import SamplingParams

if TYPE_CHECKING:
    from wager.llm import LLM


class ThinkingOptions(NamedTuple):
    """The values of the flags; None for a flag that was not given."""

    budget: int | None = None
    effort: str | None = None
    close: str | None = None

    @property
    def is_given(self) -> bool:
        return any(value is not None for value in self)

    @property
    def is_enabled(self) -> bool:
        return self.effort != "none"


def thinking_flags() -> list[inspect.Parameter]:
    """`--thinking-budget`, `--effort` and `--thinking-close`."""
    budget = typer.Option(
        "--thinking-budget",
        metavar="N",
        help="Enable thinking, limited to N tokens before the answer.",
        rich_help_panel=THINKING,
    )
    effort = typer.Option(
        "--effort",
        metavar="|".join(EFFORTS),
        help="Set the thinking budget by the model card's levels.",
        rich_help_panel=THINKING,
        autocompletion=completing(EFFORTS),
    )
    close = typer.Option(
        "--thinking-close",
        metavar="TEXT",
        help="Text that ends the thinking when the budget is used up [default: the model card's].",
        rich_help_panel=THINKING,
    )
    return [
        parameter("thinking_budget", int, budget),
        parameter("effort", str, effort),
        parameter("thinking_close", str, close),
    ]


def thinking_options(values: Mapping[str, Any]) -> ThinkingOptions:
    """Reads the thinking flags. Raises RequestError naming the field."""
    options = ThinkingOptions(
        values.get("thinking_budget"), values.get("effort"), values.get("thinking_close")
    )
    if options.budget is not None and options.budget < 0:
        raise RequestError(f"{options.budget} is negative; expected a whole number from 0", "thinking_budget")
    if options.effort is not None and options.effort not in EFFORTS:
        raise RequestError(f"{options.effort!r} is not one of {', '.join(EFFORTS)}", "effort")
    if options.budget and not options.is_enabled:
        raise RequestError("is none, which contradicts the thinking budget", "effort")
    return options


class LimitedPrompt(NamedTuple):
    """A prompt's token ids, and its parameters with the thinking limit."""

    prompt_ids: list[int]
    params: SamplingParams


def limit_thinking(llm: LLM, options: ThinkingOptions, prompt: Any, params: SamplingParams) -> LimitedPrompt:
    """Renders the prompt with thinking enabled or disabled, and adds the thinking limit to its parameters."""
    card = llm.card(options.close)
    prompt_ids = llm.encode(prompt, {"enable_thinking": options.is_enabled})
    limited = llm.limit_thinking(prompt_ids, params, options.budget, options.effort, card)
    return LimitedPrompt(prompt_ids, limited)


def announce_budget(llm: LLM, options: ThinkingOptions, params: SamplingParams) -> None:
    """Prints the thinking limit and its source on stderr."""
    card = llm.card(options.close)
    decided = decide_budget(card, params.max_tokens, options.budget, options.effort)
    tokens = "unlimited" if decided.budget is None else f"at most {decided.budget} tokens"
    less = f", less than the requested {decided.asked}" if decided.clamped else ""
    print(
        f"wager: thinking {tokens} ({decided.source}{less}); closing text from {card.thinking.source}",
        file=sys.stderr,
    )
