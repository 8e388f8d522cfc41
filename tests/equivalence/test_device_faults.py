"""A drafter's device part that fails: the texts are those of plain decoding, and only bets are lost."""

from collections.abc import Callable

import pytest

from tests.equivalence.kernel_engines import MARKS, engine_of, jobs
from tests.equivalence.world import World, alone, drive, is_clean
from tests.nn.kernels import interpreter
from wager.draft.block_prelaunch import BlockPrelaunch

pytestmark = MARKS
assert interpreter


def fail(*_: object) -> None:
    raise ValueError("injected")


def refuse(*_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("start", fail),
        ("begin_unread", fail),
        ("begin_unread", refuse),
        ("follow", fail),
        ("follow", refuse),
        ("confirm", fail),
    ],
)
def test_a_device_that_fails_costs_bets_alone(
    world: World, on_kernels: None, monkeypatch: pytest.MonkeyPatch, method: str, fault: Callable[..., None]
) -> None:
    engine, asked = engine_of(world, "tree:6"), jobs(0.0)[:1]
    monkeypatch.setattr(BlockPrelaunch, method, fault)
    run = drive(engine, {0: list(enumerate(asked))}, {})
    plain = alone(engine_of(world, "ar", kernels="off"), asked)
    assert [run.tokens(0)] == plain
    assert not engine.telemetry.failed_requests and is_clean(engine)
    # A draft that cannot be begun unread is asked for in the usual way, which may well succeed.
    if fault is refuse or method == "begin_unread":
        assert not engine.telemetry.drafter_failures and run.verified > 0
