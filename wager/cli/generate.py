"""`wager generate`: a prompt in, the target's own words out.

Flags become a checked configuration, sampling parameters and prompts before anything is loaded, so that every
mistake is one line at once. The work is wager.llm's; what is seen while it runs is in generate_screen.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from wager.cli.flags import (
    config_flags,
    flagged,
    resolved,
    sampling_flags,
    sampling_params,
    say_default_model,
    source_flags,
)
from wager.cli.generate_screen import LiveScreen, OriginPainter, PlainScreen, Screen, describe_ledger
from wager.cli.thinking import limited, say_budget, thinking_flags, thinking_wish
from wager.config import EngineConfig
from wager.errors import ConfigError, InputError, ModelError, RequestError
from wager.policy import check_policy, settings_from
from wager.records import SamplingParams
from wager.resolve import Resolved
from wager.text.detokenize import Detokenizer

if TYPE_CHECKING:
    from wager.llm import LLM, Output, StreamEvent


class _Task(NamedTuple):
    """What was asked for, checked."""

    settings: Resolved[EngineConfig]
    params: SamplingParams
    texts: list[str]
    raw: bool
    each: list[SamplingParams] | None = None
    """Those of every prompt, where they differ."""


@dataclass
class _Written:
    """What has come of one prompt so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    output: Output | None = None

    def add(self, event: StreamEvent) -> None:
        self.text += event.text
        self.token_ids += event.token_ids
        self.output = event.output


@flagged(source_flags(), thinking_flags(), sampling_flags(), config_flags(EngineConfig))
def generate(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Target model: the same as --model.")
    ] = None,
    *,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt; several are answered together."),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file (- for standard input).")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The prompt as it is: no chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON when all is written.")] = False,
    record_trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Record what the drafter offers, for `wager simulate`."),
    ] = None,
    trace_kind: Annotated[
        str, typer.Option(metavar="WORD", help="Name of this content in the trace.")
    ] = "text",
    **values: object,
) -> None:
    """Write text: a prompt in, the target's own words out.

    The prompt comes from --prompt, --prompt-file or standard input. The model's chat template is applied
    where it has one, unless --raw is given. On a terminal, accepted guesses are coloured as they come.
    Without a model the demo pair answers, which ships with Wager.
    """
    settings = resolved(values, EngineConfig, name)
    _check_settings(settings.config)
    wish = thinking_wish(values)
    task = _Task(settings, sampling_params(values), _read_prompts(prompt, prompt_file), raw)
    if record_trace is not None:
        _check_trace_file(record_trace)
    say_default_model(settings)
    llm = load_llm(settings.config)
    _say_drafter(settings.config, llm)
    prompts = [_dressed(llm, text, raw) for text in task.texts]
    if wish.is_given:
        say_budget(llm, wish, task.params)
        found = [limited(llm, wish, one, task.params) for one in prompts]
        prompts = [one.prompt_ids for one in found]
        task = task._replace(each=[one.params for one in found])
    if record_trace is not None:
        llm.record_trace(prompts, task.each or task.params, record_trace, trace_kind)
        typer.echo(f"wrote {record_trace}")
    elif as_json:
        _print_json(llm, task, prompts)
    elif len(prompts) > 1:
        _print_each(llm, task, prompts)
    else:
        _print_streaming(llm, task, prompts[0])


def load_llm(config: EngineConfig) -> LLM:
    from wager.llm import LLM

    return LLM(config=config)


def _say_drafter(config: EngineConfig, llm: LLM) -> None:
    """Where the choice of a drafter was left to Wager, say what it chose and why."""
    if config.model.drafter == "auto":
        chosen = llm.notes.get("drafter")
        if isinstance(chosen, dict):
            names = " and ".join(chosen["value"])
            print(f"wager: drafter {names}: {chosen['source']}", file=sys.stderr)


def _check_settings(config: EngineConfig) -> None:
    if not config.model.model:
        raise ConfigError("model", "", "a folder or a published name (see `wager models`)")
    check_policy(config.policy.policy_name, settings_from(config.policy))


def _check_trace_file(path: Path) -> None:
    if path.suffix != ".npz" or not path.parent.is_dir():
        raise InputError(f"{path} is not an .npz file in a folder that exists", "record_trace")


def _read_prompts(texts: list[str] | None, file: Path | None) -> list[str]:
    """The prompts, none of them empty. A file's last line end is not part of its prompt."""
    if texts and file is not None:
        raise RequestError("give --prompt or --prompt-file, not both", "prompt")
    found = texts or [_read_prompt(file)]
    if not all(found):
        raise RequestError("is empty", "prompt")
    return found


def _read_prompt(file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        raise RequestError("is missing: use --prompt, --prompt-file or standard input", "prompt")
    try:
        if file is None or str(file) == "-":
            return sys.stdin.read().removesuffix("\n")
        return file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", "prompt_file") from error


def _dressed(llm: LLM, text: str, raw: bool) -> Any:
    """The prompt as the model takes it: a chat where there is a template, else the text itself."""
    return text if raw or llm.chat_template is None else [{"role": "user", "content": text}]


def _print_streaming(llm: LLM, task: _Task, prompt: Any) -> None:
    shown = task.each[0].shown_ids if task.each else ()
    screen = _screen(llm, prompt, shown)
    written = _Written()
    try:
        for event in _events(llm, task, [prompt]):
            written.add(event)
            screen.show(event)
    finally:
        screen.close()
    _refuse_failed([written])
    if sys.stderr.isatty() and written.output is not None:
        typer.echo(_summary(written.output, llm), err=True)


def _screen(llm: LLM, prompt: Any, shown_ids: Sequence[int]) -> Screen:
    tokenizer = llm.engine.parts.tokenizer
    if not sys.stdout.isatty() or tokenizer is None:
        return PlainScreen()
    painter = OriginPainter(Detokenizer(tokenizer, after=llm.encode(prompt), shown_ids=shown_ids))
    return LiveScreen(painter, lambda: llm.engine.controller.experience.ledger.total)


def _events(llm: LLM, task: _Task, prompts: Sequence[Any]) -> Iterator[StreamEvent]:
    """The stream; closed at once when the reader is interrupted, so that requests are aborted."""
    stream = llm.stream(prompts, task.each or task.params)
    with closing(stream):  # type: ignore[type-var]
        yield from stream


def _collect(llm: LLM, task: _Task, prompts: Sequence[Any]) -> tuple[list[_Written], bool]:
    """All that was written, and whether it was interrupted on the way."""
    written = [_Written() for _ in prompts]
    try:
        for event in _events(llm, task, prompts):
            written[event.index].add(event)
    except KeyboardInterrupt:
        return written, True
    return written, False


def _print_each(llm: LLM, task: _Task, prompts: Sequence[Any]) -> None:
    written, interrupted = _collect(llm, task, prompts)
    typer.echo("\n\n".join(one.text for one in written))
    if interrupted:
        raise KeyboardInterrupt
    _refuse_failed(written)


def _print_json(llm: LLM, task: _Task, prompts: Sequence[Any]) -> None:
    written, interrupted = _collect(llm, task, prompts)
    outputs = [_as_dict(text, one) for text, one in zip(task.texts, written, strict=True)]
    settings = {row.setting.key: {"value": row.value, "source": row.source} for row in task.settings.rows()}
    found = {"outputs": outputs, "settings": settings, "engine": llm.notes}
    typer.echo(json.dumps(found, indent=1, ensure_ascii=False, default=str))
    if interrupted:
        raise KeyboardInterrupt
    _refuse_failed(written)


def _as_dict(prompt: str, written: _Written) -> dict[str, object]:
    output = written.output
    if output is None:
        unfinished = {"text": written.text, "token_ids": written.token_ids, "finish_reason": "abort"}
        return {"prompt": prompt, **unfinished}
    close = None if output.close is None else output.close._asdict()
    return {"prompt": prompt, **asdict(output), "close": close}


def _refuse_failed(written: Sequence[_Written]) -> None:
    """A request that failed is an error of the command, after everything else was shown."""
    for one in written:
        if one.output is not None and one.output.error:
            raise ModelError(one.output.error)


def _summary(output: Output, llm: LLM) -> str:
    stats = output.stats
    parts = [f"{len(output.token_ids)} tokens", f"{stats.tokens_per_step:.2f} per step"]
    if stats.time_s > 0.0:
        parts.append(f"{len(output.token_ids) / stats.time_s:.1f} tokens/s")
    parts.append(describe_ledger(llm.engine.controller.experience.ledger.total))
    if output.close is not None:
        parts.append(f"{output.close.thinking_tokens} of them thinking ({output.close.kind} close)")
    return ", ".join([*parts, f"ended by {output.finish_reason}"])
