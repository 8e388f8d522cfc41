"""Is the text the same? Every prompt of a file, answered plainly and under a policy, token for token.

    python -m bench.exactness --prompts FILE.jsonl.xz [--limit N] [--policy auto] [--max-tokens 64] [--resume]

Greedy, in batches, one process. Where two texts part, plain decoding's own two best scores must lie nearer
than the near-tie rule allows (docs/exactness.md); every such place is listed. Control: plain decoding against
itself in other company, on a part of the prompts. The result file is written after every batch, so a run that
was interrupted goes on with --resume. Exit status 1 where a difference has no excuse.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.partings import Parting, Progress
from bench.results import RESULTS, write_result
from wager.bench.plan import BASELINE
from wager.bench.runs import Encoded, difference, encode
from wager.bench.suites import read_prompts
from wager.bench.ties import gap_at, near_tie
from wager.engine.assemble import build_controller
from wager.errors import ConfigError, InputError, ModelError, WagerError
from wager.llm import LLM, Output
from wager.pairs import DEMO, shipped_folder
from wager.policy import Controller
from wager.records import SamplingParams

RESULT = RESULTS / "exactness.json"


@dataclass(frozen=True)
class Options:
    """What is compared, and in which company. Rows are requests that share a pass."""

    policy: str = "auto"
    max_tokens: int = 64
    rows: int = 8
    plain_rows: int = 16
    control_rows: int = 5
    control_every: int = 8
    """Of so many prompts one is answered plainly a second time."""
    batch: int = 96

    def __post_init__(self) -> None:
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(one.name, value, "a whole number from 1")


class Case(NamedTuple):
    """A prompt, and the benchmark it was taken from."""

    bench: str
    encoded: Encoded


class Comparer:
    """Answers batches of prompts plainly and under the policy, and holds the texts against each other."""

    def __init__(self, llm: LLM, options: Options) -> None:
        self.llm, self.options = llm, options
        self.params = SamplingParams(max_tokens=options.max_tokens)
        self.near = near_tie(llm)
        self._guessing = self._controller(options.policy)

    def _controller(self, policy: str) -> Controller:
        controller = build_controller(self.llm.config)
        controller.set_policy(policy)
        return controller

    def compare(self, cases: Sequence[Case], progress: Progress) -> None:
        """Enter one batch, whole or not at all."""
        start, options = time.perf_counter(), self.options
        telemetry = self.llm.engine.telemetry
        plain = self.plainly(cases, options.plain_rows)
        before = telemetry.verified, telemetry.accepted
        own = self.answers(cases, self._guessing, options.rows)
        counts = telemetry.verified - before[0], telemetry.accepted - before[1]
        found = [self.parting(*one) for one in zip(cases, plain, own, strict=True)]
        some = slice(None, None, options.control_every)
        again = self.plainly(cases[some], options.control_rows)
        control = [self.parting(*one) for one in zip(cases[some], plain[some], again, strict=True)]
        for case, output, parting in zip(cases, plain, found, strict=True):
            progress.guessed.enter(case.bench, len(output.token_ids), parting)
        for case, output, parting in zip(cases[some], plain[some], control, strict=True):
            progress.control.enter(case.bench, len(output.token_ids), parting)
        progress.guessed.verified += counts[0]
        progress.guessed.accepted += counts[1]
        progress.done += len(cases)
        progress.seconds += time.perf_counter() - start

    def plainly(self, cases: Sequence[Case], rows: int) -> list[Output]:
        return self.answers(cases, self._controller(BASELINE), rows)

    def answers(self, cases: Sequence[Case], controller: Controller, rows: int) -> list[Output]:
        with _at_the_engine(self.llm, controller, rows):
            outputs = self.llm.generate([case.encoded.token_ids for case in cases], self.params)
        failed = next((output for output in outputs if output.error), None)
        if failed is not None:
            raise ModelError(f"{controller.policy.name}: {failed.error}")
        return outputs

    def parting(self, case: Case, plain: Output, own: Output) -> Parting | None:
        """The first difference; its gap is that of plain decoding behind the very same tokens."""
        found = difference("", 0, plain.token_ids, own.token_ids)
        if found is None:
            return None
        context = [*case.encoded.token_ids, *plain.token_ids[: found.position]]
        gap = gap_at(self.llm, context, self.params, 0)
        return Parting(
            case.bench,
            case.encoded.prompt.id,
            found.position,
            found.plain_token,
            found.own_token,
            self._spelt(found.plain_token),
            self._spelt(found.own_token),
            gap,
            self.near is not None and gap < self.near,
        )

    def _spelt(self, token: int | None) -> str:
        tokenizer = self.llm.engine.parts.tokenizer
        return "" if token is None or tokenizer is None else tokenizer.decode([token], skip_special=False)


@contextmanager
def _at_the_engine(llm: LLM, controller: Controller, rows: int) -> Iterator[None]:
    """The engine with this controller and at most so many rows; plain decoding has no drafter at all."""
    engine = llm.engine
    own = engine.controller, engine.drafters, engine.runner.feature_layers, engine.scheduler.config
    engine.controller, engine.scheduler.config = controller, replace(own[3], max_rows=rows)
    if controller.policy.name == BASELINE:
        engine.drafters, engine.runner.feature_layers = {}, ()
    try:
        yield
    finally:
        engine.controller, engine.drafters, engine.runner.feature_layers, engine.scheduler.config = own


def read_cases(llm: LLM, path: Path, max_tokens: int, limit: int | None = None) -> list[Case]:
    """The prompts of a file; with a limit, so many of them spread over the whole of it."""
    prompts, benches = read_prompts(path), _benches(path)
    places = range(len(prompts))
    if limit is not None and limit < len(prompts):
        if limit < 1:
            raise ConfigError("limit", limit, "a whole number from 1")
        places = [i * len(prompts) // limit for i in range(limit)]  # type: ignore[assignment]
    encoded = encode(llm, [prompts[i] for i in places], max_tokens)
    return [Case(benches[i], one) for i, one in zip(places, encoded, strict=True)]


def _benches(path: Path) -> list[str]:
    """The benchmark that each row of a prompt file names."""
    opener: Any = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [str(json.loads(line).get("bench", "prompts")) for line in lines if line.strip()]


def run(
    comparer: Comparer, cases: Sequence[Case], progress: Progress, save: Callable[[Progress], None]
) -> None:
    """Compare what is left, batch by batch; `save` is called with the progress after each."""
    while not progress.finished:
        comparer.compare(cases[progress.done : progress.done + comparer.options.batch], progress)
        save(progress)


def resumed(path: Path, config: dict[str, object]) -> Progress:
    """What an earlier run with the same settings left. Raises InputError naming what differs."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        known, progress = record["config"], Progress.from_dict(record["data"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path.name} holds no run to go on with", field="resume") from error
    for name, value in config.items():
        if known.get(name) != value:
            raise InputError(f"the earlier run had {name} = {known.get(name)!r}, not {value!r}", "resume")
    return progress


def weights_digest(model: str, drafter: str | None) -> str:
    """One digest of the weights that decide the text, so that a run goes on with the same pair only."""
    digest = hashlib.sha256()
    for name in filter(None, (model, drafter)):
        folder = shipped_folder(name) or Path(name)
        for file in sorted(folder.glob("*.safetensors")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def show(progress: Progress, options: Options) -> None:
    for name, found in ((options.policy, progress.guessed), ("plain again", progress.control)):
        total = found.total
        print(
            f"{name}: {total.identical} of {total.prompts} texts identical ({total.tokens} tokens), "
            f"{total.near_ties} part at a near-tie, {total.different} without excuse"
        )
        for one in found.partings:
            verdict = "near-tie" if one.near_tie else "DIFFERENT"
            print(
                f"  {one.bench} {one.id} at token {one.position}: plainly {one.plain_token} "
                f"{one.plain_text!r}, here {one.own_token} {one.own_text!r}, gap {one.gap:.2e}: {verdict}"
            )
    print(f"guesses: {progress.guessed.verified} verified, {progress.guessed.accepted} accepted")


def tell(progress: Progress) -> None:
    """A line on stderr."""
    total = progress.guessed.total
    per_prompt = progress.seconds / max(progress.done, 1)
    left_min = per_prompt * (progress.total - progress.done) / 60
    print(
        f"{progress.done} of {progress.total} prompts: {total.identical} identical, "
        f"{total.near_ties} near-ties, {total.different} different; "
        f"{progress.seconds:.0f} s, about {left_min:.0f} min left",
        file=sys.stderr,
        flush=True,
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.exactness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help=".jsonl or .jsonl.xz")
    parser.add_argument("--limit", type=int, help="so many prompts, spread over the file")
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--drafter", help="as for wager generate [the model's own]")
    parser.add_argument("--threads", type=int, default=0)
    for one in fields(Options):
        flag = "--" + one.name.replace("_", "-")
        parser.add_argument(flag, type=type(one.default), default=one.default, help=f"[{one.default}]")
    parser.add_argument(
        "--json", type=Path, default=RESULT, help="result file [bench/results/exactness.json]"
    )
    parser.add_argument("--resume", action="store_true", help="go on with what the result file holds")
    return parser.parse_args(arguments)


def config_of(given: argparse.Namespace, options: Options, cases: Sequence[Case]) -> dict[str, object]:
    chats = sum(case.encoded.prompt.as_chat for case in cases)
    return {
        "model": Path(given.model).name,
        "drafter": Path(given.drafter).name if given.drafter else "auto",
        "weights_sha256": weights_digest(given.model, given.drafter or f"{given.model}/drafter"),
        "prompts": given.prompts.name,
        "prompts_sha256": hashlib.sha256(given.prompts.read_bytes()).hexdigest(),
        "limit": given.limit,
        "through_the_chat_template": chats,
        "as_written": len(cases) - chats,
        "cut_from_the_left": sum(case.encoded.cut > 0 for case in cases),
        **asdict(options),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    options = Options(**{one.name: getattr(given, one.name) for one in fields(Options)})
    # Without reuse every run reads its prompts itself, so that nothing is shared between the two sides.
    llm = LLM(given.model, given.drafter or "auto", prefix_reuse=False, threads=given.threads)
    llm.settle(print)
    cases = read_cases(llm, given.prompts, options.max_tokens, given.limit)
    config = config_of(given, options, cases)
    progress = resumed(given.json, config) if given.resume else Progress(len(cases))
    config["effective"] = {name: llm.notes[name] for name in ("dtype", "threads", "policy", "drafter")}
    print(
        f"{len(cases)} prompts: {config['through_the_chat_template']} through the chat template, "
        f"{config['as_written']} as written; {config['cut_from_the_left']} too long, cut from the left"
    )

    def save(found: Progress) -> None:
        part = given.json.with_suffix(".part")
        write_result("exactness", config, found.as_dict(), part).replace(given.json)
        tell(found)

    try:
        run(Comparer(llm, options), cases, progress, save)
    except KeyboardInterrupt:
        print(f"interrupted after {progress.done} prompts; --resume goes on", file=sys.stderr)
        return 130
    show(progress, options)
    return 1 if progress.guessed.total.different else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WagerError as error:
        sys.exit(f"bench.exactness: {error}")
