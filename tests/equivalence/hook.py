"""A thinking budget done by hand, to judge the engine's: plain decoding, cut at the budget, then plain again.

Plain decoding runs without any limit, so nothing of the state machine is used. The noise of a position is a
function of seed and position, so what is decoded behind a close that was put into the prompt is what must be
written behind one that was forced.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.equivalence.world import Job, Run, World, alone, make_engine
from wager.engine.sequence import Origin
from wager.records import CloseKind, SamplingParams, ThinkingLimit

KNOWN_TOKENS = 7


def with_block(world: World, size: int) -> World:
    """The world with another size of block, its drafter trained, so it says, with several known tokens."""
    folder = shutil.copytree(world.block, f"{world.block}-{size}")
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["block_size"] = size
    config["dflash_config"]["max_known_tokens"] = KNOWN_TOKENS
    path.write_text(json.dumps(config), encoding="utf-8")
    return replace(world, block=str(folder))


class Asked(NamedTuple):
    """A request without its limit."""

    prompt: list[int]
    seed: int = 7
    choice: tuple[tuple[str, float], ...] = ()

    def job(self, count: int, **more: Any) -> Job:
        values: dict[str, Any] = {"ignore_eos": True, **dict(self.choice), **more}
        return Job(self.prompt, SamplingParams(max_tokens=count, seed=self.seed, **values))


class Plain:
    """Plain decoding without any hook, remembered."""

    def __init__(self, world: World) -> None:
        self._engine = make_engine(world, prefix_reuse=False)
        self._known: dict[tuple[object, ...], list[int]] = {}

    def text(self, asked: Asked, count: int) -> list[int]:
        key = (*asked.prompt, asked.seed, asked.choice)
        known = self._known.get(key, [])
        if len(known) < count:
            (known,) = alone(self._engine, [asked.job(count)])
            self._known[key] = known
        return known[:count]


class Wanted(NamedTuple):
    """A request, and what it must write."""

    job: Job
    tokens: list[int]
    forced: range
    """Where the forced close stands."""
    kind: CloseKind
    num_thinking: int


def hooked(plain: Plain, asked: Asked, limit: ThinkingLimit, total: int) -> Wanted:
    """What `total` tokens under a limit without soft closes must be."""
    assert limit.budget is not None and limit.soft_ratio is None
    text = plain.text(asked, max(total, 70))[:total]
    job = asked.job(total, thinking=limit)
    opened = 0 if limit.starts_open else first(limit.open_ids, text)
    if opened is None:
        return Wanted(job, text, range(0), CloseKind.NONE, 0)
    inside = opened if limit.starts_open else opened + len(limit.open_ids)
    stop = inside + limit.budget
    natural = first(limit.natural_ids, text[:stop], inside)
    if natural is not None:
        return Wanted(job, text, range(0), CloseKind.NATURAL, natural - inside)
    if stop > total or (stop == total and total > 0):
        return Wanted(job, text, range(0), CloseKind.NONE, len(text) - inside)
    return closed_at(plain, asked, job, stop, inside, CloseKind.HARD)


def closed_at(plain: Plain, asked: Asked, job: Job, stop: int, inside: int, kind: CloseKind) -> Wanted:
    """The text with the close forced behind `stop` tokens, `inside` being where the span began."""
    limit, total = job.params.thinking, job.params.max_tokens
    assert limit is not None
    head = [*plain.text(asked, stop), *limit.close_ids]
    behind = asked._replace(prompt=[*asked.prompt, *head])
    rest = plain.text(behind, total - len(head)) if total > len(head) else []
    forced = range(stop, min(stop + len(limit.close_ids), total))
    return Wanted(job, [*head, *rest][:total], forced, kind, stop - inside)


def first(mark: Sequence[int], text: Sequence[int], start: int = 0) -> int | None:
    """Where the mark stands first, at or behind `start`."""
    places = range(start, len(text) - len(mark) + 1)
    return next((i for i in places if list(text[i : i + len(mark)]) == list(mark)), None)


def foreign(text: Sequence[int], count: int, vocab: int = 64) -> tuple[int, ...]:
    """Tokens that do not stand in the text."""
    found = [token for token in range(vocab) if token not in text][:count]
    assert len(found) == count, "the world has changed: its text uses nearly every token"
    return tuple(found)


def check(run: Run, number: object, want: Wanted) -> None:
    """The tokens, where the forced ones stand, what is reported, and that the stream said the same."""
    last = run.last(number)
    assert last.sequence is not None and last.close is not None
    assert run.tokens(number) == want.tokens
    forced = [place for place, origin in enumerate(last.sequence.origins) if origin is Origin.FORCED]
    assert forced == list(want.forced)
    assert last.close[:2] == (want.kind, want.num_thinking)
    streamed = [origin for event in run.events if event.request_id == number for origin in event.origins]
    assert streamed == last.sequence.origins
