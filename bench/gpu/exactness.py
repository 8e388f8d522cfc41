"""Compare the texts of policies with those of plain decoding on the device, token for token.

    python -m bench.gpu.exactness [--limit 10] [--policies auto,fixed:15,tree:32] [--max-tokens 64]

Texts are greedy and sampled. Passes of different sizes round differently, so in 16 bits texts differ from the
position on where plain decoding's own two best scores nearly tie. Every such parting is listed with that gap.
The control shows how often partings must be expected: plain decoding against itself at other batch sizes. A
policy is correct if its partings are about as frequent and its gaps about as small as the control's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from bench.exactness import Case, Comparer
from bench.exactness import Options as CompareOptions
from bench.gpu.grown import BenchSession
from bench.gpu.pair import engine_notes
from bench.gpu.script import Script, main
from bench.partings import Comparison, Parting
from wager.bench.figures import quantile
from wager.bench.runs import encode
from wager.bench.suites import first_of_each_kind
from wager.engine.assemble import build_controller
from wager.llm import Output


@dataclass(frozen=True)
class Options:
    """What is compared. `rows` and `plain_rows` are the numbers of requests that share a pass."""

    policies: tuple[str, ...] = ("auto", "fixed:4", "fixed:15", "tree:32")
    temperatures: tuple[float, ...] = (0.0, 0.8)
    limit: int = 10
    max_tokens: int = 64
    plain_rows: int = 16
    rows: int = 8
    control_rows: tuple[int, ...] = (1, 4, 50)
    seconds: float = 90.0


class PlainTexts:
    """The plain texts at one temperature, and comparisons with them."""

    def __init__(self, session: BenchSession, options: Options, temperature: float) -> None:
        self.options = options
        self.comparer = Comparer(session.llm, CompareOptions(max_tokens=options.max_tokens))
        self.comparer.params = replace(
            self.comparer.params, temperature=temperature, seed=0 if temperature else None, ignore_eos=True
        )
        prompts = first_of_each_kind(session.prompts, options.limit)
        encoded = encode(session.llm, prompts, options.max_tokens)
        self.cases = [Case(one.prompt.kind, one) for one in encoded]
        self.plain = self.comparer.plainly(self.cases, options.plain_rows)

    def series(self) -> Iterator[tuple[str, Callable[[], Comparison]]]:
        """All comparisons, the controls first."""
        for rows in self.options.control_rows:
            yield f"plain at {rows} rows", partial(self.control, rows)
        for name in self.options.policies:
            yield name, partial(self.policy, name)

    def policy(self, name: str) -> Comparison:
        llm = self.comparer.llm
        controller = build_controller(llm.config, llm.engine.parts.make_costs())
        controller.set_policy(name)
        telemetry = llm.engine.telemetry
        before = telemetry.verified, telemetry.accepted
        own = self.comparer.answers(self.cases, controller, self.options.rows)
        counts = telemetry.verified - before[0], telemetry.accepted - before[1]
        found = self.compared(self.cases, self.plain, own)
        found.verified, found.accepted = counts
        return found

    def control(self, rows: int) -> Comparison:
        """Plain decoding at another batch size; one row is slow and takes every fifth text only."""
        some = slice(None, None, 5 if rows == 1 else 1)
        again = self.comparer.plainly(self.cases[some], rows)
        return self.compared(self.cases[some], self.plain[some], again)

    def compared(self, cases: Sequence[Case], plain: Sequence[Output], own: Sequence[Output]) -> Comparison:
        found = Comparison()
        for one in zip(cases, plain, own, strict=True):
            found.enter(one[0].bench, len(one[1].token_ids), self.comparer.parting(*one))
        return found


def comparison_figures(found: Comparison) -> dict[str, Any]:
    """The figures of a comparison."""
    total, gaps = found.total, [one.gap for one in found.partings]
    # After a parting texts cannot be compared, so each text counts up to its parting.
    comparable = compared_tokens(total.tokens, total.prompts, found.partings)
    return {
        "texts": total.prompts,
        "identical": total.identical,
        "tokens_compared": comparable,
        "partings_per_1000_tokens": 1e3 * len(gaps) / max(comparable, 1),
        "gaps": {"median": quantile(gaps, 0.5), "largest": max(gaps)} if gaps else None,
        "verified": found.verified,
        "accepted": found.accepted,
        "partings": [parting_entry(one) for one in found.partings],
    }


def parting_entry(parting: Parting) -> dict[str, Any]:
    """A parting without `near_tie`, because in 16 bits no fixed gap separates ties from errors."""
    return {name: value for name, value in asdict(parting).items() if name != "near_tie"}


def compared_tokens(num_tokens: int, num_texts: int, partings: Sequence[Parting]) -> int:
    """The number of tokens up to and including each text's parting; all texts are equally long."""
    each = num_tokens // max(num_texts, 1)
    return num_tokens - sum(each - one.position - 1 for one in partings)


def run(session: BenchSession, options: Options) -> None:
    deadline = session.elapsed + options.seconds
    found: dict[str, dict[str, Any]] = {}
    described = {"options": asdict(options), "notes": engine_notes(session)}
    for temperature in options.temperatures:
        label = "greedy" if temperature == 0.0 else f"T={temperature:g}"
        own = found.setdefault(label, {})
        with session.case(label):
            for name, compare in PlainTexts(session, options, temperature).series():
                if session.elapsed > deadline:
                    session.say(f"{label}, {name}: left out, the time is up")
                    continue
                with session.case(f"{label}, {name}"):
                    own[name] = comparison_figures(compare())
                    session.save("exactness", described, found)
                    session.say(f"{label}, {name}: {format_figures(own[name])}")


def format_figures(figures: dict[str, Any]) -> str:
    gaps = figures["gaps"]
    how = f", gaps: median {gaps['median']:.3g}, largest {gaps['largest']:.3g}" if gaps else ""
    return (
        f"{figures['identical']} of {figures['texts']} texts identical, "
        f"{figures['partings_per_1000_tokens']:.2f} partings in 1,000 tokens{how}"
    )


TINY: dict[str, Any] = {
    "limit": 1,
    "max_tokens": 8,
    "policies": ("auto", "tree:8"),
    "control_rows": (1, 4),
    "seconds": 600.0,
}
SCRIPT = Script("exactness", __doc__ or "", Options, TINY, run)

if __name__ == "__main__":
    main(SCRIPT)
