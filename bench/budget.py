"""What a thinking budget costs: the speed-up over plain decoding with one, against that without.

    python -m bench.budget [--limit N] [--budgets 16,64] [--efforts medium] [--rounds 1] [--max-tokens 192]

The demo pair on its own prompts, each asked to think. Variants: free (no limit), every effort and every fixed
budget. For each prompt and variant plain decoding and the policy answer the same request in the order ABBA,
in one process; variants move on by one with every prompt. A speed-up is the sum of plain times over the sum
of the policy's.

A budget changes the text, and texts differ in how well they can be guessed. So every text with a forced close
is also written without any budget, in two requests: the thinking, then what follows the close. Times behind
the first tokens of both ways are compared as `against_same_text`; `against_free` compares the whole requests.
Writes bench/results/budget.json; exit status 1 where a budget keeps less than --bar of the same text's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from bench.results import write_result
from wager.bench.plan import BASELINE
from wager.bench.records import Answer
from wager.bench.runs import PolicyContender
from wager.bench.suites import BenchPrompt, read_prompts
from wager.errors import ModelError, WagerError
from wager.llm import LLM
from wager.records import SamplingParams

FREE = "free"
PROMPTS = Path(__file__).parents[1] / "wager" / "bench" / "prompts" / "demo.jsonl"


@dataclass(frozen=True)
class Options:
    """What is compared."""

    policy: str = "auto"
    max_tokens: int = 192
    temperature: float = 0.0
    rounds: int = 1
    kinds: tuple[str, ...] = ("math", "chat")
    efforts: tuple[str, ...] = ("medium",)
    budgets: tuple[int, ...] = (16, 64)
    bar: float = 0.95


class Variant(NamedTuple):
    """How a request is limited."""

    name: str
    budget: int | None = None
    effort: str | None = None


@dataclass
class Times:
    """Seconds of plain decoding and of the policy."""

    plain_s: float = 0.0
    policy_s: float = 0.0

    @property
    def speedup(self) -> float:
        return self.plain_s / self.policy_s

    def add(self, plain: Sequence[Answer], policy: Sequence[Answer]) -> None:
        self.plain_s += sum(one.timing.decode_s for one in plain)
        self.policy_s += sum(one.timing.decode_s for one in policy)


@dataclass
class Tally:
    """One variant's sums over all prompts."""

    requests: int = 0
    plain_s: float = 0.0
    policy_s: float = 0.0
    tokens: int = 0
    steps: int = 0
    speculative_steps: int = 0
    closes: dict[str, int] = field(default_factory=dict)
    forced: Times = field(default_factory=lambda: Times())
    """Of the requests whose close was forced, behind their first tokens,"""
    unforced: Times = field(default_factory=lambda: Times())
    """and of the same texts in requests without a budget."""

    @property
    def speedup(self) -> float:
        return self.plain_s / self.policy_s

    @property
    def against_same_text(self) -> float | None:
        """None where no close was forced."""
        return self.forced.speedup / self.unforced.speedup if self.unforced.policy_s else None

    def as_dict(self, free: Tally) -> dict[str, object]:
        return {
            **asdict(self),
            "speedup": self.speedup,
            "against_free": self.speedup / free.speedup,
            "against_same_text": self.against_same_text,
            "tokens_per_step": self.tokens / max(self.steps, 1),
            "speculative_share": self.speculative_steps / max(self.steps, 1),
        }


def variants(options: Options) -> list[Variant]:
    return [
        Variant(FREE),
        *(Variant(f"effort {word}", effort=word) for word in options.efforts),
        *(Variant(f"budget {count}", budget=count) for count in options.budgets),
    ]


def asked(llm: LLM, prompt: BenchPrompt, variant: Variant, options: Options, seed: int) -> Asked:
    """The prompt as a chat that begins inside thinking, and its parameters."""
    ids = llm.encode([{"role": "user", "content": question_of(prompt.text)}], {"enable_thinking": True})
    params = SamplingParams(
        max_tokens=options.max_tokens, temperature=options.temperature, seed=seed, ignore_eos=True
    )
    if variant.name != FREE:
        params = llm.limit_thinking(ids, params, variant.budget, variant.effort)
    return Asked(ids, params)


def question_of(text: str) -> str:
    """What the user says first in a conversation that is written out with its marks."""
    return text.removeprefix("<|user|>\n").partition("\n<|")[0]


class Asked(NamedTuple):
    """A request."""

    prompt_ids: list[int]
    params: SamplingParams


class Pair:
    """Plain decoding and the policy; what the last answers of each came to."""

    def __init__(self, llm: LLM, policy: str) -> None:
        self.plain, self.policy = PolicyContender(llm, BASELINE), PolicyContender(llm, policy)

    def warm(self, request: Asked) -> None:
        for one in (self.plain, self.policy):
            one.answer(*request)

    def abba(self, request: Asked) -> tuple[list[Answer], list[Answer]]:
        """Two answers of each. Raises ModelError where they are not of one length."""
        plain, policy = [self.plain.answer(*request)], [self.policy.answer(*request)]
        policy.append(self.policy.answer(*request))
        plain.append(self.plain.answer(*request))
        if len({len(one.token_ids) for one in (*plain, *policy)}) > 1:
            raise ModelError("the answers differ in length: they cannot be compared")
        return plain, policy


def measure(llm: LLM, prompts: Sequence[BenchPrompt], options: Options) -> dict[str, Tally]:
    """Every prompt in every variant."""
    kinds = variants(options)
    tallies = {variant.name: Tally() for variant in kinds}
    pair = Pair(llm, options.policy)
    for prompt in prompts[:2]:
        pair.warm(asked(llm, prompt, kinds[-1], options, 0))
    for number, (prompt, turn) in enumerate(_plan(prompts, options.rounds)):
        for variant in [*kinds[turn % len(kinds) :], *kinds[: turn % len(kinds)]]:
            request, tally = asked(llm, prompt, variant, options, number), tallies[variant.name]
            plain, policy = pair.abba(request)
            _add(tally, request, plain, policy)
            for piece in without_budget(request, policy[0].token_ids):
                tally.unforced.add(*pair.abba(piece))
        print(f"{number + 1} of {len(prompts) * options.rounds}", file=sys.stderr)
    return tallies


def _plan(prompts: Sequence[BenchPrompt], rounds: int) -> Iterator[tuple[BenchPrompt, int]]:
    for turn in range(rounds):
        for number, prompt in enumerate(prompts):
            yield prompt, turn + number


def _add(tally: Tally, request: Asked, plain: Sequence[Answer], policy: Sequence[Answer]) -> None:
    tally.requests += 1
    tally.plain_s += sum(one.timing.wall_s for one in plain)
    tally.policy_s += sum(one.timing.wall_s for one in policy)
    for one in policy:
        assert one.counts is not None
        tally.tokens += len(one.token_ids)
        steps = sum(one.counts.bets.values())
        tally.steps += steps
        tally.speculative_steps += steps - one.counts.bets[0]
    kind = close_kind(request, policy[0].token_ids)
    tally.closes[kind] = tally.closes.get(kind, 0) + 1
    if kind == "hard":
        tally.forced.add(plain, policy)


def without_budget(request: Asked, tokens: Sequence[int]) -> list[Asked]:
    """Requests without a budget that write the same text: the thinking, then what follows a forced close."""
    limit = request.params.thinking
    if limit is None or limit.budget is None or close_kind(request, tokens) != "hard":
        return []
    free, closed = replace(request.params, thinking=None), limit.budget + len(limit.close_ids)
    pieces = []
    if limit.budget > 1:
        pieces.append(Asked(request.prompt_ids, replace(free, max_tokens=limit.budget)))
    if len(tokens) - closed > 1:
        prompt = [*request.prompt_ids, *tokens[:closed]]
        pieces.append(Asked(prompt, replace(free, max_tokens=len(tokens) - closed)))
    return pieces


def close_kind(request: Asked, tokens: Sequence[int]) -> str:
    """Read from the text: forced where the whole close stands right behind the budget."""
    limit = request.params.thinking
    if limit is None or limit.budget is None:
        return "unlimited"
    forced = tuple(tokens[limit.budget : limit.budget + len(limit.close_ids)]) == limit.close_ids
    before = tokens[: limit.budget]
    return "natural" if limit.natural_ids[0] in before else "hard" if forced else "none"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    options = Options(
        given.policy,
        given.max_tokens,
        given.temperature,
        given.rounds,
        budgets=_numbers(given.budgets),
        efforts=tuple(word for word in given.efforts.split(",") if word),
        bar=given.bar,
    )
    llm = LLM(given.model, policy=options.policy)
    llm.settle(print)
    prompts = [one for one in read_prompts(PROMPTS) if one.kind in options.kinds]
    tallies = measure(llm, prompts[: given.limit] if given.limit else prompts, options)
    found = {name: tally.as_dict(tallies[FREE]) for name, tally in tallies.items()}
    path = write_result("budget", {"model": given.model, **asdict(options)}, found, given.out)
    for name, values in found.items():
        same = values["against_same_text"]
        shown = "" if same is None else f"  of the same text's {same:.3f}"
        print(f"{name:<16} speed-up {values['speedup']:.3f}  of free {values['against_free']:.3f}{shown}")
    print(f"wrote {path}")
    kept = [tally.against_same_text or 1.0 for tally in tallies.values()]
    return 0 if min(kept) >= options.bar else 1


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.budget", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--policy", default=Options.policy)
    parser.add_argument("--limit", type=int, default=0, help="only so many prompts")
    parser.add_argument("--rounds", type=int, default=Options.rounds)
    parser.add_argument("--max-tokens", type=int, default=Options.max_tokens)
    parser.add_argument("--temperature", type=float, default=Options.temperature)
    parser.add_argument("--budgets", default="16,64")
    parser.add_argument("--efforts", default="medium")
    parser.add_argument("--bar", type=float, default=Options.bar)
    parser.add_argument("--out", type=Path, default=None)
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WagerError as error:
        sys.exit(f"bench.budget: {error}")
