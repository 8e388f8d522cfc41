"""Planning changes nothing: a policy may be asked early, twice, or for rows that never come."""

import copy
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import pytest

from tests.policy.situations import FLAT, Played, World, known_costs, play
from wager.policy import Coming, Controller, Draft, Experience, Policy, Row, make_policy
from wager.trace.costs import CostCurve

NAMES = ["auto", "ar", "fixed:3", "tree:8", "bod", "bod:tree", "ema+auto", "entropy+auto", "ema+entropy+bod"]
SEEN = [Row("a", 10, target_p1=0.9), Row("b", 20, target_p1=0.9)]
UNSEEN = [
    Row("c", 5000, "code", max_nodes=3, max_depth=2, target_p1=0.2),
    Row("d", drafters=(), target_p1=1.0),
]


def state_of(thing: object, seen: frozenset[int] = frozenset()) -> Any:
    """All that an object holds, as lists and numbers."""
    if thing is None or isinstance(thing, bool | int | float | str | bytes | type):
        return thing
    if isinstance(thing, np.ndarray | np.generic):
        return str(thing.dtype), thing.tolist()
    if isinstance(thing, FunctionType | MethodType | BuiltinFunctionType):
        return thing.__qualname__
    if id(thing) in seen:
        return "listed above"
    seen = seen | {id(thing)}
    if isinstance(thing, dict):
        return [(state_of(key, seen), state_of(value, seen)) for key, value in thing.items()]
    if isinstance(thing, set | frozenset):
        return sorted(repr(state_of(one, seen)) for one in thing)
    if isinstance(thing, list | tuple) or type(thing).__name__ == "deque":
        return [state_of(one, seen) for one in thing]  # type: ignore[attr-defined]
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
    fields |= getattr(thing, "__dict__", {})
    return [(name, state_of(value, seen)) for name, value in sorted(fields.items())]


def ask_everything(policy: Policy, rows: list[Row], coming: Coming) -> list[object]:
    """Every question that a policy answers without learning, and the answers."""
    plan = policy.plan(rows)
    drafts = [
        Draft(offer.drafter, 3, np.log(np.full((3, 2), 0.4))) if offer.drafter else None
        for offer in plan.offers
    ]
    described = [draft and Draft(draft.drafter, draft.num_depths) for draft in drafts]
    return [
        policy.inquire(coming),
        plan,
        policy.blind_bet(plan, rows, described),
        policy.arrange(plan, rows, drafts),
    ]


def learned(name: str, steps: int = 60) -> Controller:
    controller = Controller(name, known_costs(FLAT, rows=2))
    play(controller, World(CostCurve(FLAT)), steps, SEEN)
    return controller


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [0, 60])
def test_questions_change_nothing(name: str, steps: int) -> None:
    policy = learned(name, steps).policy
    for rows, coming in ((SEEN, Coming(2, 2, 9)), (UNSEEN, Coming(2, 2, 9, num_plain=1))):
        first = ask_everything(policy, rows, coming)  # fills caches, which are no part of the state
        before = copy.deepcopy(state_of(policy))
        again = ask_everything(policy, rows, coming)
        assert state_of(policy) == before
        assert state_of(again) == state_of(first)


@pytest.mark.parametrize("name", NAMES)
def test_a_game_is_the_same_whatever_was_asked_in_between(name: str) -> None:
    """Also by questions about rows, phases and contexts of which nothing is known yet."""

    def game(ask: Callable[[Controller, int], None]) -> list[Played]:
        controller = Controller(name, Experience())
        world, played = World(CostCurve(FLAT), noise=0.05), list[Played]()
        for turn in range(150):
            phase = "" if turn < 50 else "code"
            rows = [Row(i, 15 * turn, phase, target_p1=0.9) for i in range(1 + turn // 75)]
            ask(controller, turn)
            played += play(controller, world, 1, rows)
        return played

    def ask_a_lot(controller: Controller, turn: int) -> None:
        if turn:
            ask_everything(controller.policy, SEEN, Coming(2, 2, 9, num_plain=turn % 2))
            ask_everything(controller.policy, UNSEEN, Coming(1, 1, 9))
        if turn % 3 == 0:
            controller.prepare(SEEN, [Draft("draft", 3)] * 2)

    assert game(ask_a_lot) == game(lambda _controller, _turn: None)


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_learned_nothing_answers_as_a_new_one(name: str) -> None:
    experience = known_costs(FLAT, rows=2)
    asked, fresh = make_policy(name, experience), make_policy(name, experience)
    for _ in range(3):
        ask_everything(asked, UNSEEN, Coming(2, 2))
    answers = [state_of(ask_everything(policy, SEEN, Coming(2, 2))) for policy in (asked, fresh)]
    assert answers[0] == answers[1]
