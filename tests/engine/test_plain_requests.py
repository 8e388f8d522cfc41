"""Requests that never draft: drafters do not hear of them, their passes collect no features."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.equivalence.world import Job, World, alone, drive, is_clean, make_engine, prompt
from wager.draft.base import Drafter
from wager.engine.engine import Engine
from wager.records import SamplingParams

PLAIN = SamplingParams(max_tokens=24, speculation="off")
METHODS = ("can_propose", "grade", "propose", "keep", "adopt", "forget", "prepare_sharing", "copy_pages")


class Watched:
    """Counts the calls of an engine's drafters and the tokens whose features were collected."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.kept: set[object] = set()
        self.feature_tokens = 0
        for drafter in engine.drafters.values():
            for name in METHODS:
                monkeypatch.setattr(drafter, name, self._counted(drafter, name))
        forward = engine.runner.decoder.forward

        def counted_forward(batch: Any, pool: Any, feature_layers: Sequence[int] = ()) -> Any:
            found = forward(batch, pool, feature_layers)
            self.feature_tokens += 0 if found.features is None else len(found.features)
            return found

        monkeypatch.setattr(engine.runner.decoder, "forward", counted_forward)

    def _counted(self, drafter: Drafter, name: str) -> Any:
        method = getattr(drafter, name)

        def call(*args: Any) -> Any:
            self.calls[name] += 1
            if name == "keep":
                self.kept |= {item.request_id for item in args[0]}
            return method(*args)

        return call


@pytest.mark.parametrize("policy", ["auto", "fixed:4", "ar"])
@pytest.mark.parametrize("drafter", ["block", "chain", "lookup"])
def test_nothing_of_a_drafter_is_computed(
    world: World, drafter: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job(prompt(i, 20), PLAIN) for i in range(2)]
    want = alone(make_engine(world), jobs)
    engine = make_engine(world, drafter, policy)
    watched = Watched(engine, monkeypatch)
    run = drive(engine, {0: list(enumerate(jobs))}, {})
    assert [run.tokens(i) for i in range(2)] == want and is_clean(engine)
    assert not watched.calls and watched.feature_tokens == 0


def test_other_requests_in_the_same_steps_draft_as_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, drafting = (
        Job(prompt(3, 20), SamplingParams(max_tokens=24, speculation=s)) for s in ("off", None)
    )
    (want,) = alone(make_engine(world), [drafting])
    engine = make_engine(world, "block", "fixed:4", prefix_reuse=False)
    watched = Watched(engine, monkeypatch)
    run = drive(engine, {0: [("plain", plain), ("drafting", drafting)]}, {})
    assert run.tokens("plain") == run.tokens("drafting") == want
    assert run.verified > 20 and watched.kept == {"drafting"}
    assert watched.calls["forget"] == watched.calls["adopt"] + 2, "of two drafters, for one request"


def test_a_plain_request_takes_over_pages_without_a_drafters_context(world: World) -> None:
    """A request that drafts cannot: it reads its prompt again, and its pages replace the others."""
    first, again = Job(prompt(5, 40), PLAIN), Job(prompt(5, 40), SamplingParams(max_tokens=24))
    engine = make_engine(world, "block", "fixed:4")
    drive(engine, {0: [("first", first)]}, {})
    plain = drive(engine, {0: [("plain", first)]}, {})
    assert plain.last("plain").sequence.num_reused == 32
    drafting = drive(engine, {0: [("drafting", again)]}, {})
    assert drafting.last("drafting").sequence.num_reused == 0 and drafting.verified > 20
    shared = drive(engine, {0: [("shared", again)]}, {})
    assert shared.last("shared").sequence.num_reused == 32 and shared.verified > 20
    assert plain.tokens("plain") == drafting.tokens("drafting") == shared.tokens("shared")
    engine.check()


def test_preempted_plain_requests_come_back(world: World) -> None:
    jobs = [Job(prompt(i, 20), SamplingParams(max_tokens=30, speculation="off")) for i in range(4)]
    engine = make_engine(world, "block", "fixed:3", num_pages=20, page_size=4)
    run = drive(engine, {0: list(enumerate(jobs))}, {})
    assert engine.scheduler.num_preemptions > 0 and is_clean(engine)
    assert [run.tokens(i) for i in range(4)] == alone(make_engine(world), jobs)
