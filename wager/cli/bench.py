"""`wager bench`: measures policies and other decoders against plain decoding, on the same prompts.

All flags are checked before anything is loaded. The measuring is done in wager.bench; this file connects its
parts, and writes the finished results even when it is interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from wager.bench.plan import BASELINE, PEERS, RunOptions, check_peers, sets
from wager.bench.report import Report, make_report, read_report, report_text, write_report
from wager.bench.results import load_average, shown
from wager.bench.suites import PROMPT_CHARS, SUITES, BenchPrompt, first_of_each_kind, kinds_of, load_suite
from wager.cli.flags import (
    announce_default_model,
    config_flags,
    model_argument,
    names_of,
    resolve_config,
    source_flags,
    with_flags,
)
from wager.cli.help import OUTPUT, policy_option
from wager.cli.outputs import check_outputs, check_picture, progress_counter, refuse_file_name, write_errors
from wager.config import EngineConfig, with_values
from wager.errors import ModelError
from wager.extras import require
from wager.policy import check_policy, settings_from

if TYPE_CHECKING:
    from wager.bench.profile import Profiler
    from wager.bench.runs import Contender, Encoded
    from wager.llm import LLM

SWEEP = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15)
"""The chain lengths of --fixed-sweep."""

# Policies have their own flag here, and with prefix reuse the second answer to a prompt would be faster.
_EXCLUDED_FLAGS = ("policy", "gate", "prefix_reuse")
_EXCLUDED_PREFIXES = ("bod_", "ema_", "entropy_")


# The engine's choices that influence the figures.
_REPORTED_CHOICES = (
    *("model_type", "device", "dtype", "layout", "passes", "threads", "calibration"),
    *("drafter", "drafters", "max_context"),
)


class _Outputs(NamedTuple):
    out: Path | None
    html: Path | None
    plot: Path | None


class _Task(NamedTuple):
    """The checked command line."""

    config: EngineConfig
    policies: list[str]
    peers: list[str]
    assistant: str | None
    options: RunOptions
    prompts: list[BenchPrompt]
    source: str
    """The name of the suite or of the prompt file."""
    has_stages: bool = False
    """Whether the time of each stage is measured."""


def _engine_flags() -> list[Any]:
    return [
        flag
        for flag in config_flags(EngineConfig)
        if flag.name not in _EXCLUDED_FLAGS and not flag.name.startswith(_EXCLUDED_PREFIXES)
    ]


def _option(metavar: str | None, help: str, *names: str, group: str = "Measurement") -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=group)


def _output(metavar: str | None, help: str, *names: str) -> Any:
    return _option(metavar, help, *names, group=OUTPUT)


_SUITE = f"Prompt suite: {', '.join(SUITES)} [default: demo]."
_PEERS = f"Other decoders to measure, separated by commas: {', '.join(PEERS)}; or all."
_STAGES = "Also measure the time of each stage of a step."
_PROMPTS = "Read the prompts, or those of --suite, from this file."
_CHARS = "Use the first N characters of a held-out text as prompt."
_POLICY = "Policy to measure; may be repeated [default: auto]."
_SWEEP = f"Also measure fixed:K for K in {', '.join(map(str, SWEEP))}."
_ORDER = "mixed takes the kinds in turn, by-kind one kind after another."
_FROM = "Show the results in this file instead of measuring."
_ASSISTANT = "Small model for the peer `assisted` [default: the chain drafter of the target]."


@with_flags(source_flags(), _engine_flags())
def bench(
    name: Annotated[str | None, model_argument()] = None,
    *,
    suite: Annotated[str | None, _option("NAME", _SUITE)] = None,
    prompts: Annotated[Path | None, _option("FILE.jsonl[.xz]", _PROMPTS)] = None,
    prompt_chars: Annotated[int, _option("N", _CHARS)] = PROMPT_CHARS,
    policy: Annotated[list[str] | None, policy_option(_POLICY, "Measurement")] = None,
    fixed_sweep: Annotated[bool, _option(None, _SWEEP, "--fixed-sweep")] = False,
    peers: Annotated[str | None, _option("NAMES", _PEERS)] = None,
    assistant: Annotated[str | None, _option("FOLDER", _ASSISTANT)] = None,
    temperature: Annotated[
        float, _option("X", "Sampling temperature; 0 is greedy.", *names_of("temperature"))
    ] = 0.0,
    max_tokens: Annotated[
        int, _option("N", "Number of tokens of every answer.", *names_of("max_tokens"))
    ] = 128,
    limit: Annotated[int | None, _option("N", "Use only the first N prompts of each kind.")] = None,
    rounds: Annotated[int, _option("N", "Run the whole suite N times.")] = 1,
    prompt_order: Annotated[str, _option("ORDER", _ORDER)] = "mixed",
    seed: Annotated[int, _option("N", "Seed for sampling.")] = 0,
    stages: Annotated[bool, _option(None, _STAGES, "--stages")] = False,
    as_json: Annotated[bool, _output(None, "Print all measurements as JSON.", "--json")] = False,
    out: Annotated[
        Path | None, _output("FILE.json", "Write all measurements here.", *names_of("out"))
    ] = None,
    html: Annotated[Path | None, _output("FILE.html", "Write a report for a browser here.")] = None,
    plot: Annotated[Path | None, _output("FILE.png", "Write a plot here.")] = None,
    from_file: Annotated[Path | None, _output("FILE.json", _FROM, "--from")] = None,
    **values: object,
) -> None:
    """Measure policies and other decoders against plain decoding, on the same prompts in one process.

    Plain decoding (ar) runs before and after every other decoder: ar X X ar. All answers have the same
    length because the end of text is ignored. Every text is compared with that of plain decoding.
    """
    refuse_file_name(name)
    outputs = _Outputs(out, html, plot)
    check_outputs(outputs._asdict())
    check_picture(plot)
    if from_file is not None:
        _show(read_report(from_file), outputs, as_json)
        return
    settings = resolve_config(values, EngineConfig, name)
    config = with_values(settings.config, prefix_reuse=False)
    task = _Task(
        config,
        _policies(config, policy, fixed_sweep),
        _peers(peers),
        assistant,
        RunOptions(max_tokens, temperature, seed, rounds, prompt_order),
        first_of_each_kind(load_suite(suite, prompts, prompt_chars), limit),
        suite or ("demo" if prompts is None else prompts.name),
        stages,
    )
    announce_default_model(settings)
    _finish(_run(task), outputs, as_json)


def _finish(report: Report, outputs: _Outputs, as_json: bool) -> None:
    """Shows and writes the report; then raises an error if texts were wrong or the run was interrupted."""
    _show(report, outputs, as_json)
    _refuse_wrong_texts(report)
    if not report.measured.finished:
        raise KeyboardInterrupt


def _policies(config: EngineConfig, requested: Sequence[str] | None, sweep: bool) -> list[str]:
    """Returns the policies' canonical names, without plain decoding, which always runs."""
    names = list(requested or [config.policy.policy])
    if sweep:
        names += [f"fixed:{length}" for length in SWEEP]
    settings = settings_from(config.policy)
    found = dict.fromkeys(check_policy(name, settings) for name in names)
    return [name for name in found if name != BASELINE]


def _peers(text: str | None) -> list[str]:
    if text is None:
        return []
    names = list(PEERS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    check_peers(names)
    if names:
        require("train", "--peers")
    return list(dict.fromkeys(names))


def _run(task: _Task) -> Report:
    """Loads the model, measures, and checks every text that differs from that of plain decoding."""
    from wager.bench.profile import Profiler
    from wager.bench.runs import encode, measure
    from wager.bench.ties import judged
    from wager.llm import LLM

    load_before = load_average()
    llm = LLM(config=task.config)
    llm.settle(lambda text: typer.echo(f"wager: {text}", err=True))
    profiler = Profiler(llm.engine) if task.has_stages else None
    contenders = _contenders(llm, task, profiler)
    encoded = encode(llm, task.prompts, task.options.max_tokens)
    names = [contender.name for contender in contenders[1:]]
    num_sets = len(sets([prompt.kind for prompt in task.prompts], names, task.options.rounds))
    with progress_counter(num_sets, "prompts", num_lines=10) as progress:
        measured = measure(contenders, encoded, task.options, progress)
    measured.profiles = {} if profiler is None else profiler.profiles()
    measured.differences = judged(llm, measured.differences, encoded, task.options)
    return make_report(_described(llm, task, encoded) | {"load_before": load_before}, measured)


def _contenders(llm: LLM, task: _Task, profiler: Profiler | None) -> list[Contender]:
    from wager.bench.peers import PeerSource, assistant_beside, load_peers
    from wager.bench.runs import PolicyContender
    from wager.engine.assemble import find_folder

    decoder, folder = llm.engine.runner.decoder, llm.engine.parts.folder
    assistant = None if task.assistant is None else find_folder(task.assistant)
    if assistant is None and "assisted" in task.peers:
        assistant = assistant_beside(folder, task.config.model.drafter)
    source = PeerSource(folder, assistant, decoder.dtype, decoder.device, llm.engine.parts.num_threads)
    policies = [PolicyContender(llm, name, profiler) for name in (BASELINE, *task.policies)]
    return [*policies, *load_peers(task.peers, source, greedy=task.options.temperature == 0.0)]


def _described(llm: LLM, task: _Task, encoded: Sequence[Encoded]) -> dict[str, object]:
    """Returns the settings that influence the figures."""
    from wager.train.grow import grown_from

    kinds = [prompt.kind for prompt in task.prompts]
    return {
        "model": shown(task.config.model.model),
        "grown_from": grown_from(llm.engine.parts.folder),
        **{key: llm.notes.get(key) for key in _REPORTED_CHOICES},
        "suite": task.source,
        "prompts": {kind: kinds.count(kind) for kind in kinds_of(task.prompts)},
        "prompts_cut": sum(one.cut > 0 for one in encoded),
        "prompt_tokens": sum(len(one.token_ids) for one in encoded) / len(encoded),
        **asdict(task.options),
        "ignore_eos": True,
        "prefix_reuse": False,
        "policies": task.policies,
        "peers": task.peers,
    }


def _show(report: Report, outputs: _Outputs, as_json: bool) -> None:
    from wager.bench.table import show

    if as_json:
        typer.echo(report_text(report), nl=False)
    else:
        show(report)
    if outputs.out is not None:
        with write_errors("out"):
            write_report(report, outputs.out)
    if outputs.html is not None:
        from wager.bench.html import page

        with write_errors("html"):
            outputs.html.write_text(page(report), encoding="utf-8")
    if outputs.plot is not None and report.measured.runs:
        from wager.bench.plot import draw

        with write_errors("plot"):
            draw(report, outputs.plot)
    for path in outputs:
        if path is not None and path.exists():
            typer.echo(f"wrote {path}", err=as_json)


def _refuse_wrong_texts(report: Report) -> None:
    """Raises ModelError if a policy's text differs from plain decoding and no near-tie explains it."""
    wrong = [
        one for one in report.measured.differences if not one.excused and _is_policy(report, one.contender)
    ]
    if wrong and report.config["dtype"] in ("float32", "float64"):
        names = ", ".join(dict.fromkeys(one.contender for one in wrong))
        raise ModelError(
            f"{len(wrong)} texts of {names} differ from plain decoding, and no near-tie explains it"
        )


def _is_policy(report: Report, contender: str) -> bool:
    return contender not in report.config["peers"]
