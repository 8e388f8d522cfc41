"""The flags that limit thinking, and what they make of a prompt: `wager generate` takes them.

A budget or an effort asks the model's chat template to begin inside its thinking; effort `none` asks it not
to. The marks, the efforts and the room for the answer are the model card's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from wager.cards import EFFORTS, decide_budget
from wager.cli.flags import parameter
from wager.errors import RequestError
from wager.records import SamplingParams

if TYPE_CHECKING:
    from wager.llm import LLM


class ThinkingWish(NamedTuple):
    """What the flags say; None where they say nothing."""

    budget: int | None = None
    effort: str | None = None
    close: str | None = None

    @property
    def is_given(self) -> bool:
        return any(one is not None for one in self)

    @property
    def is_on(self) -> bool:
        return self.effort != "none"


def thinking_flags() -> list[inspect.Parameter]:
    """`--thinking-budget`, `--effort` and `--thinking-close`."""
    budget = typer.Option(
        "--thinking-budget", metavar="N", help="Let it think, for at most so many tokens; then it answers."
    )
    effort = typer.Option("--effort", metavar="|".join(EFFORTS), help="The same in the model card's words.")
    close = typer.Option(
        "--thinking-close",
        metavar="TEXT",
        help="What is written to close its thinking instead of the card's.",
    )
    return [
        parameter("thinking_budget", int, budget),
        parameter("effort", str, effort),
        parameter("thinking_close", str, close),
    ]


def thinking_wish(values: Mapping[str, Any]) -> ThinkingWish:
    """The wish behind the flags. Raises RequestError naming the field."""
    wish = ThinkingWish(values.get("thinking_budget"), values.get("effort"), values.get("thinking_close"))
    if wish.budget is not None and wish.budget < 0:
        raise RequestError(f"{wish.budget} is not a whole number from 0", "thinking_budget")
    if wish.effort is not None and wish.effort not in EFFORTS:
        raise RequestError(f"{wish.effort!r} is none of {', '.join(EFFORTS)}", "effort")
    if wish.budget and not wish.is_on:
        raise RequestError("is none, and yet a budget is given", "effort")
    return wish


class LimitedPrompt(NamedTuple):
    """A prompt's ids, and its parameters with their limit."""

    prompt_ids: list[int]
    params: SamplingParams


def limited(llm: LLM, wish: ThinkingWish, prompt: Any, params: SamplingParams) -> LimitedPrompt:
    """The prompt as its template has it for this wish, and the limit that holds for it."""
    card = llm.card(wish.close)
    prompt_ids = llm.encode(prompt, {"enable_thinking": wish.is_on})
    return LimitedPrompt(prompt_ids, llm.limit_thinking(prompt_ids, params, wish.budget, wish.effort, card))


def say_budget(llm: LLM, wish: ThinkingWish, params: SamplingParams) -> None:
    """One line on stderr: what holds, and where it came from."""
    card = llm.card(wish.close)
    decided = decide_budget(card, params.max_tokens, wish.budget, wish.effort)
    tokens = "as long as it takes" if decided.budget is None else f"at most {decided.budget} tokens"
    less = f", less than the {decided.asked} asked for" if decided.clamped else ""
    print(
        f"wager: thinks {tokens} ({decided.source}{less}), closed as the {card.thinking.source} says",
        file=sys.stderr,
    )
