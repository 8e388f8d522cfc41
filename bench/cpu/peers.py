"""A target in Wager and in llama.cpp, in one process: tokens per second, and one pass by its tokens.

    python -m bench.cpu.peers [--limit N] [--rounds 1] [--int8] [--setup "NAME=POLICY[,FIELD=VALUE...]"]
    python -m bench.cpu.peers --file MODEL.gguf [--temperature 0.8] [--json cpu_peers_gguf.json]

The demo target is converted to GGUF (float32, Q8_0); with --file both read that file instead. llama.cpp
decodes plainly, greedily, with as many threads as Wager, in whichever way it is fastest. With --temperature
Wager samples and llama.cpp is still greedy, which takes it no longer. First the scores of both are compared:
it must be the same model.
Then everybody answers every prompt there and back (A B C C B A), all answers of one length; nothing is kept
between them but what a policy learns. Wager runs as `ar`, `auto` and what --int8 and --setup add.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.cpu.gguf_file import FORMS, library, write_gguf
from bench.cpu.peers_figures import (
    F32,
    Q8,
    SAME_FILE,
    Clocks,
    bars,
    decode_rate,
    medians,
    pass_lines,
    ratio_lines,
    speed_lines,
    there_and_back,
    whole_rate,
)
from bench.cpu.peers_llama import CACHES, LlamaContext, LlamaModel, LlamaPeer, LlamaSettings, Scores
from bench.cpu.peers_passes import (
    Agreement,
    LlamaPasses,
    Passes,
    Plan,
    WagerPasses,
    agreement,
    time_passes,
)
from bench.results import write_result
from wager.bench.plan import RunOptions, prompt_order
from wager.bench.records import Answer, Run
from wager.bench.results import load_average, shown
from wager.bench.runs import Contender, Encoded, PolicyContender, encode
from wager.bench.suites import first_of_each_kind, load_suite
from wager.config import EngineConfig, settings_of, unknown_key, with_values
from wager.errors import ConfigError, ModelError, WagerError
from wager.llm import LLM
from wager.records import SamplingParams

NAMES = {"f32": F32, "bf16": "llama.cpp BF16", "q8_0": Q8, "file": SAME_FILE}
PARTS = ("passes", "answers")
SAME = 1e-2
"""The largest difference of a float32 score at which it still is the same model; near 1e-4 is found."""
_PROBE = Plan(sizes=(1,), rounds=3, in_a_row=12)
_MEMORY_GIB = 0.25  # one request at a time


class Setup(NamedTuple):
    """Wager in one way: what it is called, its policy, and settings of the engine."""

    name: str
    policy: str
    settings: tuple[tuple[str, object], ...] = ()


SETUPS = (Setup("ar", "ar"), Setup("auto", "auto"))
INT8 = ("ar int8=ar,weights=int8", "auto int8=auto,weights=int8")
"""What --int8 adds."""


def read_setup(text: str) -> Setup:
    """`NAME=POLICY[,FIELD=VALUE...]`. Raises ConfigError where it is not one."""
    name, _, rest = text.partition("=")
    policy, *settings = rest.split(",")
    if not name.strip() or not policy.strip() or any("=" not in part for part in settings):
        raise ConfigError("setup", text, "NAME=POLICY[,FIELD=VALUE...]")
    known = {setting.name: setting for setting in settings_of(EngineConfig)}
    values: dict[str, object] = {}
    for part in settings:
        key, _, value = part.strip().partition("=")
        if key not in known:
            raise unknown_key(key, list(known))
        values[key] = known[key].allowed.read(value)
    return Setup(name.strip(), policy.strip(), tuple(values.items()))


def all_setups(given: Sequence[str]) -> list[Setup]:
    """Those that always run, and those of the flags. Raises ConfigError where two have one name."""
    found = [*SETUPS, *map(read_setup, given)]
    names = [setup.name for setup in found]
    for name in (*NAMES.values(), *names):
        if (*NAMES.values(), *names).count(name) > 1:
            raise ConfigError("setup", name, "a name that no other contender has")
    return found


class Named:
    """A policy under the name of its set-up."""

    compared = True

    def __init__(self, setup: Setup, llm: LLM) -> None:
        self.name, self.setup, self.llm = setup.name, setup, llm
        self._own = PolicyContender(llm, setup.policy)

    def begin(self) -> None:
        self._own.begin()

    def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
        return self._own.answer(prompt_ids, params)


@dataclass
class Bench:
    """Everything loaded: Wager's set-ups, and llama.cpp's models with the context that ran best."""

    wager: list[Named]
    prompts: list[Encoded]
    models: dict[str, LlamaModel] = field(default_factory=dict)
    contexts: dict[str, LlamaContext] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    """What the result file will hold."""

    @property
    def plain(self) -> Named:
        return self.wager[0]

    @property
    def texts(self) -> list[list[int]]:
        """The prompts as the scores are compared on them."""
        most = LlamaSettings().num_batch
        return [one.token_ids[:most] for one in self.prompts]


def load_wager(setups: Sequence[Setup], options: argparse.Namespace) -> list[Named]:
    """Load them; those with the same settings share their weights."""
    loaded: dict[tuple[tuple[str, object], ...], LLM] = {}
    shared: dict[str, object] = {
        "model": options.file or options.model,
        "dtype": "float32",
        "prefix_reuse": False,
        "threads": options.threads,
        "native": "on",
        "memory_gib": _MEMORY_GIB,
    }
    for setup in setups:
        if setup.settings not in loaded:
            config = with_values(EngineConfig(), **shared | dict(setup.settings))
            loaded[setup.settings] = llm = LLM(config=config)
            llm.settle(print)
    return [Named(setup, loaded[setup.settings]) for setup in setups]


def load_llama(bench: Bench, forms: Sequence[str], folder: Path, options: argparse.Namespace) -> None:
    """Convert, load, compare the scores, and take the settings that are fastest."""
    llm = bench.plain.llm
    longest = max(len(one.token_ids) for one in bench.prompts) + options.max_tokens
    base = LlamaSettings(threads=options.threads, num_context=max(longest, 512))
    for form in ["file"] if options.file else forms:
        path = Path(llm.engine.parts.folder)
        if not options.file:
            path = write_gguf(path, folder / f"target-{form}.gguf", form)
        model = bench.models[form] = LlamaModel(path)
        near = _llama_near(bench, model, base)
        times = _probe(bench, model, base)
        best = min(times, key=lambda settings: times[settings])
        bench.contexts[form] = LlamaContext(model, best)
        bench.found[NAMES[form]] = {
            "file_bytes": path.stat().st_size,
            "scores": near._asdict(),
            "settings": best._asdict(),
            "one_token_ms": {str(settings): ms for settings, ms in times.items()},
        }
        print(f"{NAMES[form]}: {near}; fastest with {best}", flush=True)
        if form == "f32" and near.max_difference > SAME:
            raise ModelError(f"{NAMES[form]} is another model: scores differ by {near.max_difference:.2g}")


def _llama_near(bench: Bench, model: LlamaModel, base: LlamaSettings) -> Agreement:
    """Both runtimes' scores at every position of the prompts, keys and values in float32."""
    context = LlamaContext(model, base._replace(cache="f32"))
    found = agreement(_wager_scores(bench.plain, bench.texts), _llama_scores(context, bench.texts))
    context.close()
    return found


def _llama_scores(context: LlamaContext, texts: Sequence[Sequence[int]]) -> Iterator[Scores]:
    for text in texts:
        context.keep(0)
        yield context.scores(text)


def _wager_scores(one: Named, texts: Sequence[Sequence[int]]) -> Iterator[Scores]:
    return map(WagerPasses(one.name, one.llm, one.setup.policy).scores, texts)


def compare_setups(bench: Bench) -> None:
    """The scores of set-ups with weights of their own beside plain decoding's."""
    for one in bench.wager:
        if one.llm is bench.plain.llm:
            continue
        near = agreement(_wager_scores(bench.plain, bench.texts), _wager_scores(one, bench.texts))
        bench.found[one.name] = {"scores": near._asdict()}
        print(f"{one.name}: {near}", flush=True)


def _probe(bench: Bench, model: LlamaModel, base: LlamaSettings) -> dict[LlamaSettings, float]:
    """Milliseconds of one token in every way that llama.cpp can be set up."""
    ways = [base._replace(flash=flash, cache=cache) for flash in (False, True) for cache in CACHES]
    contexts = [LlamaContext(model, way) for way in ways]
    passes = [LlamaPasses(str(context.settings), context) for context in contexts]
    times = time_passes(passes, bench.texts[0], _PROBE)
    for context in contexts:
        context.close()
    return {way: statistics.median(times[str(way)][1]) for way in ways}


def run_passes(bench: Bench, plan: Plan) -> dict[str, dict[int, float]]:
    contenders: list[Passes] = [WagerPasses(one.name, one.llm, one.setup.policy) for one in bench.wager]
    contenders += [LlamaPasses(NAMES[form], context) for form, context in bench.contexts.items()]
    found = medians(time_passes(contenders, bench.texts[0], plan))
    bench.found["pass_ms"] = found
    return found


def run_answers(bench: Bench, options: RunOptions) -> Clocks:
    """Everybody answers every prompt, there and back."""
    everybody: list[Contender] = [*bench.wager]
    everybody += [LlamaPeer(NAMES[form], context) for form, context in bench.contexts.items()]
    contenders = {one.name: one for one in everybody}
    kinds = [one.prompt.kind for one in bench.prompts]
    clocks, same = Clocks(kinds), dict.fromkeys(contenders, 0)
    _warm_up(contenders, bench.prompts, options)
    order = prompt_order(kinds) * options.rounds
    for number, prompt in enumerate(order):
        texts: dict[str, tuple[int, ...]] = {}
        for place, name in enumerate(there_and_back(list(contenders), number)):
            ids, params = bench.prompts[prompt].token_ids, options.params(prompt)
            answer = contenders[name].answer(ids, params)
            clocks.runs.append(Run(name, prompt, number // len(kinds), place, answer.timing))
            texts[name] = answer.token_ids
        for name, text in texts.items():
            same[name] += text == texts[bench.plain.name]
        print(f"{number + 1} of {len(order)}: {bench.prompts[prompt].prompt.id}", file=sys.stderr)
    bench.found["texts_as_plain"] = {"of": len(order), **same}
    return clocks


def _warm_up(contenders: dict[str, Contender], prompts: Sequence[Encoded], options: RunOptions) -> None:
    first = {one.prompt.kind: index for index, one in reversed(list(enumerate(prompts)))}
    for one in contenders.values():
        for index in sorted(first.values()):
            one.answer(prompts[index].token_ids, options.params(index, options.warmup_tokens))
        one.begin()


def _show_answers(bench: Bench, clocks: Clocks) -> None:
    ours = [one.name for one in bench.wager]
    theirs = [NAMES[form] for form in bench.contexts]
    for title, measure in (("whole requests", whole_rate), ("after the first token", decode_rate)):
        bench.found[title.replace(" ", "_")] = {
            "tokens_per_s": {name: clocks.by_kind(name, measure) for name in (*ours, *theirs)},
            "ratios": {
                f"{name} / {other}": clocks.ratios(name, other, measure) for other in theirs for name in ours
            },
        }
        lines = [*speed_lines(clocks, [*ours, *theirs], measure), *ratio_lines(clocks, ours, theirs, measure)]
        print("", title, *lines, sep="\n")
    same = bench.found["texts_as_plain"]
    print("", f"texts equal to {bench.plain.name}'s, of {same['of']}:", sep="\n", end=" ")
    print(", ".join(f"{name} {count}" for name, count in same.items() if name != "of"))


def run(options: argparse.Namespace, bench: Bench, asked: RunOptions) -> None:
    passes: dict[str, dict[int, float]] = {}
    if "passes" in options.only:
        plan = Plan(rounds=options.pass_rounds)
        passes = run_passes(bench, plan)
        print("", f"one pass behind {plan.num_context} tokens", *pass_lines(passes), sep="\n", flush=True)
    clocks = None
    if "answers" in options.only:
        clocks = run_answers(bench, asked)
        bench.found["clocks"] = [
            [*run[:4], *(round(value, 6) for value in run.timing)] for run in clocks.runs
        ]
        _show_answers(bench, clocks)
    found = bars(passes, clocks)
    bench.found["bars"] = [bar._asdict() | {"is_met": bar.is_met} for bar in found]
    print("", *found, sep="\n")


def _config(options: argparse.Namespace, bench: Bench, asked: RunOptions) -> dict[str, object]:
    wanted = ("dtype", "passes", "layout", "threads", "drafter")
    return {
        "model": shown(options.file or options.model),
        "temperature": asked.temperature,
        "threads": options.threads,
        "prompts": len(bench.prompts),
        "max_tokens": asked.max_tokens,
        "rounds": asked.rounds,
        "setups": {one.name: one.setup._asdict() for one in bench.wager},
        "wager": {one.name: {key: one.llm.notes.get(key) for key in wanted} for one in bench.wager},
        "llama_cpp_python": library("llama_cpp").__version__,
        "llama_cpp": next(iter(bench.models.values())).system,
        "load_before": options.load_before,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    options.load_before = load_average()
    for name in ("gguf", "llama_cpp"):  # before anything is loaded that takes time
        library(name)
    setups = all_setups([*(INT8 if options.int8 else ()), *options.setup])
    asked = RunOptions(max_tokens=options.max_tokens, rounds=options.rounds, temperature=options.temperature)
    wager = load_wager(setups, options)
    prompts = encode(
        wager[0].llm,
        first_of_each_kind(load_suite(options.suite, options.prompts), options.limit),
        asked.max_tokens,
    )
    bench = Bench(wager, prompts)
    with ExitStack() as open_things:
        folder = options.gguf or Path(open_things.enter_context(tempfile.TemporaryDirectory()))
        load_llama(bench, options.forms, folder, options)
        compare_setups(bench)
        run(options, bench, asked)
    path = write_result("cpu_peers", _config(options, bench, asked), bench.found, options.json)
    print(f"wrote {path}")
    return 0


def _some_of(known: Sequence[str]) -> Any:
    def read(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not words or any(word not in known for word in words):
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, with commas between")
        return words

    return read


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench.cpu.peers", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--model", default="demo", help="a Qwen3 target's folder [demo]")
    add("--file", default="", metavar="MODEL", help="a GGUF file, or a fetched model's name, that both read")
    add("--suite", default=None, help="the prompts' suite [demo]")
    add("--prompts", type=Path, default=None, help="a prompt file instead")
    add("--temperature", type=float, default=0.0, help="of Wager's answers [0]")
    add("--limit", type=int, default=None, help="only the first N prompts of each kind")
    add("--max-tokens", type=int, default=128, help="tokens of every answer [128]")
    add("--rounds", type=int, default=1, help="how often all prompts are answered [1]")
    add("--threads", type=int, default=2, help="for Wager and llama.cpp alike [2]")
    add("--pass-rounds", type=int, default=Plan().rounds, help="rounds of the timed passes [6]")
    add("--only", type=_some_of(PARTS), default=list(PARTS), help=f"some of {', '.join(PARTS)}")
    add("--forms", type=_some_of(FORMS), default=["f32", "q8_0"], help=f"of {', '.join(FORMS)} [f32,q8_0]")
    add("--setup", action="append", default=[], metavar="NAME=POLICY[,FIELD=VALUE...]", help="one more Wager")
    add("--int8", action="store_true", help="also Wager with int8 weights, beside llama.cpp's Q8_0")
    add("--gguf", type=Path, default=None, metavar="FOLDER", help="keep the converted files here")
    add("--json", type=Path, default=None, help="where the result goes [bench/results/cpu_peers.json]")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WagerError as error:
        sys.exit(f"bench.cpu.peers: {error}")
