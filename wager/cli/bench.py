"""`wager bench`: policies, and other decoders, against plain decoding on the same prompts in one process.

Flags become a checked task before anything is loaded, so that every mistake is one line at once. The work is
wager.bench's; this file puts its parts together, and writes what is finished even when it is interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from wager.bench.plan import BASELINE, PEERS, RunOptions, check_peers, sets
from wager.bench.report import Report, make_report, read_report, write_report
from wager.bench.results import load_average, shown
from wager.bench.suites import PROMPT_CHARS, SUITES, BenchPrompt, kinds_of, limited, load_suite
from wager.cli.flags import config_flags, flagged, resolved, say_default_model, source_flags
from wager.cli.outputs import check_outputs, check_picture, counting, writing
from wager.config import EngineConfig, with_values
from wager.errors import ModelError
from wager.policy import check_policy, settings_from

if TYPE_CHECKING:
    from wager.bench.profile import Profiler
    from wager.bench.runs import Contender, Encoded
    from wager.llm import LLM

SWEEP = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15)
"""Lengths of --fixed-sweep."""

# Policies are named one by one here; and a prompt answered twice must be read twice.
_NOT_HERE = ("policy", "gate", "prefix_reuse")
_NOT_HERE_FAMILIES = ("bod_", "ema_", "entropy_")


# Of the engine's notes, what figures hang on.
_NOTED = (
    *("model_type", "device", "dtype", "layout", "passes", "threads", "calibration"),
    *("drafter", "drafters", "max_context"),
)


class _Outputs(NamedTuple):
    json: Path | None
    html: Path | None
    plot: Path | None


class _Task(NamedTuple):
    """What was asked for, checked."""

    config: EngineConfig
    policies: list[str]
    peers: list[str]
    assistant: str | None
    options: RunOptions
    prompts: list[BenchPrompt]
    source: str
    """The suite's or the prompt file's name."""
    profile: bool = False


def _engine_flags() -> list[Any]:
    return [
        flag
        for flag in config_flags(EngineConfig)
        if flag.name not in _NOT_HERE and not flag.name.startswith(_NOT_HERE_FAMILIES)
    ]


def _option(metavar: str, help: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help)


_SUITE = f"{', '.join(SUITES)} [default: demo]."
_PEERS = f"{', '.join(PEERS)}, with commas between; or all."
_PROFILE = "Also show where the time of a step goes. (A profile of settings is named by WAGER_PROFILE here.)"
_ASSISTANT = "Small model for `assisted` [default: the chain drafter at hand]."


@flagged([flag for flag in source_flags() if flag.name != "profile"], _engine_flags())
def bench(
    name: Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.")] = None,
    *,
    suite: Annotated[str | None, _option("NAME", _SUITE)] = None,
    prompts: Annotated[Path | None, _option("FILE.jsonl[.xz]", "Your own prompts, or a suite's.")] = None,
    prompt_chars: Annotated[int, _option("N", "Characters of a held-out text to begin with.")] = PROMPT_CHARS,
    policy: Annotated[list[str] | None, _option("NAME", "To compare; repeatable [default: auto].")] = None,
    fixed_sweep: Annotated[bool, typer.Option("--fixed-sweep", help="Also every likely fixed:K.")] = False,
    peers: Annotated[str | None, _option("NAMES", _PEERS)] = None,
    assistant: Annotated[str | None, _option("FOLDER", _ASSISTANT)] = None,
    temperature: Annotated[float, _option("X", "How freely tokens are drawn; 0: greedy.")] = 0.0,
    max_tokens: Annotated[int, _option("N", "Tokens of every answer.")] = 128,
    limit: Annotated[int | None, _option("N", "Only the first N prompts of each kind.")] = None,
    rounds: Annotated[int, _option("N", "How often the whole suite is run.")] = 1,
    prompt_order: Annotated[str, _option("ORDER", "mixed: the kinds in turn; or by-kind.")] = "mixed",
    seed: Annotated[int, _option("N", "Seed of sampled texts.")] = 0,
    profile: Annotated[bool, typer.Option("--profile", help=_PROFILE)] = False,
    json_file: Annotated[Path | None, _option("FILE.json", "Write all that was measured.", "--json")] = None,
    html: Annotated[Path | None, _option("FILE.html", "Write a report for a browser.")] = None,
    plot: Annotated[Path | None, _option("FILE.png", "Draw the figures.")] = None,
    from_file: Annotated[
        Path | None, _option("FILE.json", "Show a finished run; run none.", "--from")
    ] = None,
    **values: object,
) -> None:
    """Measure policies, and other decoders, against plain decoding on the same prompts.

    Plain decoding (ar) always runs, around every contender: ar X X ar. Every answer has the same length: the
    end of text is ignored. Texts are compared with plain decoding's.
    """
    outputs = _Outputs(json_file, html, plot)
    check_outputs(outputs._asdict())
    check_picture(plot)
    if from_file is not None:
        _show(read_report(from_file), outputs)
        return
    settings = resolved(values, EngineConfig, name)
    config = with_values(settings.config, prefix_reuse=False)
    task = _Task(
        config,
        _policies(config, policy, fixed_sweep),
        _peers(peers),
        assistant,
        RunOptions(max_tokens, temperature, seed, rounds, prompt_order),
        limited(load_suite(suite, prompts, prompt_chars), limit),
        suite or ("demo" if prompts is None else prompts.name),
        profile,
    )
    say_default_model(settings)
    _finish(_run(task), outputs)


def _finish(report: Report, outputs: _Outputs) -> None:
    """Show and write everything; then say what was wrong with it."""
    _show(report, outputs)
    _refuse_wrong_texts(report)
    if not report.measured.finished:
        raise KeyboardInterrupt


def _policies(config: EngineConfig, asked: Sequence[str] | None, sweep: bool) -> list[str]:
    """Names as the policies spell them, plain decoding left out: it runs anyway."""
    names = list(asked or [config.policy.policy_name])
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
    return list(dict.fromkeys(names))


def _run(task: _Task) -> Report:
    """Load, measure, and look at every text that is not plain decoding's."""
    from wager.bench.profile import Profiler
    from wager.bench.runs import encode, measure
    from wager.bench.ties import judged
    from wager.llm import LLM

    load_before = load_average()
    llm = LLM(config=task.config)
    llm.settle(lambda text: typer.echo(f"wager: {text}", err=True))
    profiler = Profiler(llm.engine) if task.profile else None
    contenders = _contenders(llm, task, profiler)
    encoded = encode(llm, task.prompts, task.options.max_tokens)
    names = [contender.name for contender in contenders[1:]]
    num_sets = len(sets([prompt.kind for prompt in task.prompts], names, task.options.rounds))
    with counting(num_sets, "prompts", parts=10) as progress:
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
    source = PeerSource(folder, assistant, decoder.dtype, decoder.device)
    policies = [PolicyContender(llm, name, profiler) for name in (BASELINE, *task.policies)]
    return [*policies, *load_peers(task.peers, source, greedy=task.options.temperature == 0.0)]


def _described(llm: LLM, task: _Task, encoded: Sequence[Encoded]) -> dict[str, object]:
    """The settings that the figures hang on."""
    from wager.train.grow import grown_from

    kinds = [prompt.kind for prompt in task.prompts]
    return {
        "model": shown(task.config.model.model),
        "grown_from": grown_from(llm.engine.parts.folder),
        **{key: llm.notes.get(key) for key in _NOTED},
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


def _show(report: Report, outputs: _Outputs) -> None:
    from wager.bench.table import show

    show(report)
    if outputs.json is not None:
        with writing("json"):
            write_report(report, outputs.json)
    if outputs.html is not None:
        from wager.bench.html import page

        with writing("html"):
            outputs.html.write_text(page(report), encoding="utf-8")
    if outputs.plot is not None and report.measured.runs:
        from wager.bench.plot import draw

        with writing("plot"):
            draw(report, outputs.plot)
    for path in outputs:
        if path is not None and path.exists():
            typer.echo(f"wrote {path}")


def _refuse_wrong_texts(report: Report) -> None:
    """A text that is not plain decoding's, and no near-tie explains it, is an error after all was shown."""
    wrong = [
        one for one in report.measured.differences if not one.excused and _is_policy(report, one.contender)
    ]
    if wrong and report.config["dtype"] in ("float32", "float64"):
        names = ", ".join(dict.fromkeys(one.contender for one in wrong))
        raise ModelError(f"{len(wrong)} texts of {names} are not plain decoding's, beyond any near-tie")


def _is_policy(report: Report, contender: str) -> bool:
    return contender not in report.config["peers"]
