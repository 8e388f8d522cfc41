"""`wager demo`: the demo models answer a few prompts by plain decoding and with Wager, then a table follows.

Loads the demo pair, decides how much fits into two minutes on this machine, and passes each prompt to
demo_runs.py, which measures, and demo_screen.py, which shows. After an interrupt the table shows the prompts
that were finished.
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
from wager.cli.demo_screen import DemoScreen, LineScreen, QuietScreen, SideBySideScreen
from wager.cli.demo_table import show_next_commands, show_summary
from wager.cli.flags import config_flags, resolve_config, with_flags
from wager.config import EngineConfig, with_values
from wager.errors import ConfigError, ModelError
from wager.pairs import DEMO
from wager.policy import check_policy, settings_from
from wager.records import SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from wager.llm import LLM

_LINE_WIDTH = 100
_ENGINE_FLAGS = ("drafter", "policy", "threads")


@dataclass(frozen=True)
class _Task:
    """The checked command line."""

    params: SamplingParams
    policy: str
    has_fixed_length: bool
    """Whether --max-tokens was given."""


@with_flags([flag for flag in config_flags(EngineConfig) if flag.name in _ENGINE_FLAGS])
def demo(
    *,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum tokens of an answer [default: as many as fit into two minutes]."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(metavar="X", help="Sampling temperature; 0 is greedy.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON at the end.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Do not use colours.")] = False,
    **values: object,
) -> None:
    """Compare plain decoding and Wager side by side on the built-in demo models, in under two minutes.

    Each prompt is answered twice by plain decoding and twice with Wager, one run at a time, and the answers
    are compared token by token. A table of the speeds by kind of text is printed at the end.
    """
    config = _config(resolve_config(values, EngineConfig, DEMO).config)
    params = SamplingParams(max_tokens=1 if max_tokens is None else max_tokens, temperature=temperature)
    task = _Task(params, config.policy.policy, max_tokens is not None)
    console = _console(no_color)
    if not as_json:
        _print_introduction(console)
    llm = load_llm(config)
    trials: list[Trial] = []
    try:
        _run(llm, task, _screen(llm, console, as_json), trials)
    except KeyboardInterrupt:
        _finish(llm, task, trials, console, as_json)
        raise
    _finish(llm, task, trials, console, as_json)
    if not as_json:
        show_next_commands(console)


def load_llm(config: EngineConfig) -> LLM:
    from wager.llm import LLM

    llm = LLM(config=config)
    llm.settle(lambda text: typer.echo(f"wager: {text}", err=True))
    return llm


def _config(config: EngineConfig) -> EngineConfig:
    """Limits the engine to one request at a time, without prefix reuse, so that every run costs the same."""
    name = check_policy(config.policy.policy, settings_from(config.policy))
    if name == PLAIN:
        raise ConfigError("policy", name, "a policy that drafts, to compare with plain decoding")
    return with_values(config, prefix_reuse=False, max_rows=1)


def _console(no_color: bool) -> Console:
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False, no_color=no_color or None)
    return Console(highlight=False, no_color=True, width=_LINE_WIDTH)


def _screen(llm: LLM, console: Console, as_json: bool) -> DemoScreen:
    tokenizer = llm.engine.parts.tokenizer
    if tokenizer is None:
        raise ModelError(f"the model {DEMO} has no tokenizer")
    if as_json:
        return QuietScreen()
    return SideBySideScreen(console, tokenizer) if console.is_terminal else LineScreen(console)


def _print_introduction(console: Console) -> None:
    mark = "underlined" if console.no_color else "green"
    colours = f" Accepted draft tokens are {mark}." if console.is_terminal else ""
    console.print(
        "A small model included in Wager answers prompts of five kinds in two ways: by plain decoding, and "
        "by speculative decoding, where a drafter proposes tokens and the model verifies them. Both ways "
        "must produce the same text; only the speed differs.\n"
        "Each way is timed twice, one run at a time. The answers are then shown at the speed that was "
        f"measured.{colours}\n",
        soft_wrap=not console.is_terminal,
    )


def _run(llm: LLM, task: _Task, screen: DemoScreen, trials: list[Trial]) -> None:
    """Measures and shows each prompt, and appends it to `trials` when it is finished."""
    rounds = read_prompts()
    began = time.perf_counter()
    token_s = warm_up(llm, rounds[0][0], task.policy)
    length = task.params.max_tokens if task.has_fixed_length else fitting_tokens(token_s, len(rounds[0]))
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


def _finish(llm: LLM, task: _Task, trials: list[Trial], console: Console, print_json: bool) -> None:
    if print_json:
        typer.echo(json.dumps(_as_dict(llm, task, trials), indent=1, ensure_ascii=False, default=str))
    elif trials:
        show_summary(trials, console)


def _as_dict(llm: LLM, task: _Task, trials: list[Trial]) -> dict[str, object]:
    how = {
        "policy": task.policy,
        "temperature": task.params.temperature,
        "runs_per_prompt": RUNS_PER_PROMPT,
    }
    return {**as_json(trials), "how": how, "machine": machine(), "engine": llm.notes}
