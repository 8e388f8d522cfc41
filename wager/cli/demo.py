"""`wager demo`: the pair that ships answers a few prompts plainly and with Wager, side by side, then a table.

Loads the demo pair, decides how much fits into two minutes on this machine, and hands prompt after prompt to
demo_runs.py (which measures) and demo_screen.py (which shows). An interrupt shows the table of what was done.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from wager.bench.results import machine
from wager.cli.demo_runs import (
    LIMIT_S,
    PLAIN,
    RUNS_PER_PROMPT,
    Trial,
    as_json,
    fitting_tokens,
    measure,
    order_of,
    read_prompts,
    rounds_within,
    warm_up,
)
from wager.cli.demo_screen import DemoScreen, LineScreen, QuietScreen, RaceScreen
from wager.cli.demo_table import show_end, show_next
from wager.cli.flags import config_flags, flagged, resolved
from wager.config import EngineConfig, with_values
from wager.errors import ConfigError, ModelError
from wager.pairs import DEMO
from wager.policy import check_policy, settings_from
from wager.records import SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from wager.llm import LLM

_LINE_WIDTH = 100
_OWN_FLAGS = ("drafter", "policy", "threads")


@dataclass(frozen=True)
class _Task:
    """What was asked for, checked."""

    params: SamplingParams
    policy: str
    fixed_length: bool
    """Whether the length of answers was given."""


@flagged([flag for flag in config_flags(EngineConfig) if flag.name in _OWN_FLAGS])
def demo(
    *,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most tokens of an answer; else what fits into two minutes."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(metavar="X", help="How freely tokens are drawn; 0: greedy.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON when all is measured.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours.")] = False,
    **values: object,
) -> None:
    """Show plain decoding and Wager side by side, on the pair that ships, in under two minutes.

    Prompts of five kinds are each answered twice plainly and twice with Wager, one run at a time, and
    compared token by token; a table by kind comes at the end.
    """
    config = _config(resolved(values, EngineConfig, DEMO).config)
    asked = SamplingParams(max_tokens=1 if max_tokens is None else max_tokens, temperature=temperature)
    task = _Task(asked, config.policy.policy_name, max_tokens is not None)
    console = _console(no_color)
    if not as_json:
        _say_what_comes(console)
    llm = load_llm(config)
    trials: list[Trial] = []
    try:
        _run(llm, task, _screen(llm, console, as_json), trials)
    except KeyboardInterrupt:
        _finish(llm, task, trials, console, as_json)
        raise
    _finish(llm, task, trials, console, as_json)
    if not as_json:
        show_next(console)


def load_llm(config: EngineConfig) -> LLM:
    from wager.llm import LLM

    llm = LLM(config=config)
    llm.settle(lambda text: typer.echo(f"wager: {text}", err=True))
    return llm


def _config(config: EngineConfig) -> EngineConfig:
    """One request at a time, each from its first token: a prompt that was seen before must not be cheaper."""
    name = check_policy(config.policy.policy_name, settings_from(config.policy))
    if name == PLAIN:
        raise ConfigError("policy", name, "one that guesses: plain decoding is the other side")
    return with_values(config, prefix_reuse=False, max_rows=1)


def _console(no_color: bool) -> Console:
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False, no_color=no_color or None)
    return Console(highlight=False, no_color=True, width=_LINE_WIDTH)


def _screen(llm: LLM, console: Console, as_json: bool) -> DemoScreen:
    tokenizer = llm.engine.parts.tokenizer
    if tokenizer is None:
        raise ModelError(f"{DEMO}: has no tokenizer")
    if as_json:
        return QuietScreen()
    return RaceScreen(console, tokenizer) if console.is_terminal else LineScreen(console)


def _say_what_comes(console: Console) -> None:
    mark = "underlined" if console.no_color else "green"
    seen = f", guesses that stood are {mark}" if console.is_terminal else ""
    console.print(
        "A small model that ships with Wager answers prompts of five kinds, plainly and with guesses that it "
        "checks itself: the text must be the same, only sooner.\n"
        "Each way is timed twice, one run at a time; what you see is shown after that, at the pace that was "
        f"measured{seen}.\n",
        soft_wrap=not console.is_terminal,
    )


def _run(llm: LLM, task: _Task, screen: DemoScreen, trials: list[Trial]) -> None:
    """Measure and show prompt after prompt; `trials` grows as they are done."""
    rounds = read_prompts()
    began = time.perf_counter()
    token_s = warm_up(llm, rounds[0][0], task.policy)
    length = task.params.max_tokens if task.fixed_length else fitting_tokens(token_s, len(rounds[0]))
    try:
        for index, prompt in rounds_within(rounds, LIMIT_S - (time.perf_counter() - began)):
            order = order_of(index, task.policy)
            params = replace(task.params, max_tokens=length, seed=index + 1)
            screen.begin(prompt, order, brief=index >= len(rounds[0]))
            trial = measure(llm, prompt, params, order, screen.running)
            trials.append(trial)
            screen.show(trial)
    finally:
        screen.close()


def _finish(llm: LLM, task: _Task, trials: list[Trial], console: Console, as_json_too: bool) -> None:
    if as_json_too:
        typer.echo(json.dumps(_as_dict(llm, task, trials), indent=1, ensure_ascii=False, default=str))
    elif trials:
        show_end(trials, console)


def _as_dict(llm: LLM, task: _Task, trials: list[Trial]) -> dict[str, object]:
    how = {
        "policy": task.policy,
        "temperature": task.params.temperature,
        "runs_per_prompt": RUNS_PER_PROMPT,
    }
    return {**as_json(trials), "how": how, "machine": machine(), "engine": llm.notes}
