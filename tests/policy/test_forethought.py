"""The next bet, made while the pass before it is under way: the same that it would be later."""

from unittest.mock import patch

import numpy as np
import pytest

from tests.policy.situations import DRAFT_MS, FLAT, known_costs
from wager.policy import Blind, Draft, Offer, Row, RowOutcome, StepOutcome
from wager.policy.auto import Auto
from wager.policy.forethought import Forethought

DEPTHS = 8

Decided = tuple[Offer, Blind | None, int]


def outcome(row: Row, offer: Offer, num_nodes: int, accepted: int, verify_ms: float) -> StepOutcome:
    share = RowOutcome(row, offer, num_nodes, accepted, accepted + 1)
    return StepOutcome([share], 1 + num_nodes, verify_ms, DRAFT_MS if offer.drafter else 0.0)


def game(policy: Auto, num_steps: int, *, lookup_every: int = 3, kind: float = 0.8) -> list[Decided]:
    """One row whose steps are learned while the next pass runs, as on a device; everything it decided.

    A second drafter can propose at some steps, drafts and times differ, and quality falls off in the middle.
    """
    rng, decided = np.random.default_rng(5), list[Decided]()
    late: StepOutcome | None = None
    context_len = 100
    for count in range(num_steps):
        able = ("draft", "other") if count % lookup_every == 0 else ("draft",)
        row = Row("r", context_len, max_depth=2000 - context_len, max_nodes=64, drafters=able)
        [offer] = policy.offer([row])
        good = kind if not 100 < count < 160 else 0.05
        chances = np.clip(rng.normal(good, 0.1, DEPTHS), 0.01, 0.98)
        num_nodes = accepted = 0
        bet: Blind | None = None
        if offer.drafter is not None:
            bet = policy.blind([row], [Draft(offer.drafter, DEPTHS)])
            draft = Draft(offer.drafter, DEPTHS, np.log(np.stack((chances, (1.0 - chances) / 3), axis=1)))
            if bet is None:
                num_nodes = policy.arrange([row], [draft]).num_nodes
            else:
                num_nodes = bet.nodes[0]
                policy.saw([row], [draft], [num_nodes])
            accepted = min(num_nodes, int((rng.random(DEPTHS) < chances).cumprod().sum()))
        if late is not None:
            policy.learn(late)
        time_ms = 5.0 + 0.01 * num_nodes + rng.exponential(0.02)
        late = outcome(row, offer, num_nodes, accepted, time_ms)
        decided.append((offer, bet, num_nodes))
        context_len += accepted + 1
    return decided


def make() -> Auto:
    return Auto(known_costs(FLAT, drafters=("draft", "other")))


def test_bets_are_the_same_thought_over_before_or_not() -> None:
    with patch.object(Forethought, "think"):
        want = game(make(), 400)
    assert game(make(), 400) == want
    assert len({offer.drafter for offer, _, _ in want}) > 1, "it drafted, and at times it did not"


def test_most_steps_of_a_row_that_drafts_are_thought_over() -> None:
    with patch.object(Forethought, "take", autospec=True, side_effect=Forethought.take) as take:
        kept = []
        original = Forethought._holds

        def holds(self: Forethought, thought: object, row: Row) -> bool:
            kept.append(original(self, thought, row))  # type: ignore[arg-type]
            return kept[-1]

        with patch.object(Forethought, "_holds", holds):
            game(make(), 90)
    assert take.call_count == 90
    assert sum(kept) > 60


@pytest.fixture
def thinking() -> Auto:
    """A policy that has thought of the next step of its row."""
    policy = make()
    game(policy, 60, lookup_every=1000)
    assert policy._forethought._thought is not None
    return policy


def next_row(policy: Auto) -> Row:
    thought = policy._forethought._thought
    assert thought is not None
    return thought.row._replace(context_len=thought.row.context_len + 3, max_depth=500)


def test_a_thought_serves_once_and_only_the_row_that_it_is_of(thinking: Auto) -> None:
    row, forethought = next_row(thinking), thinking._forethought
    thought = forethought._thought
    for other in (
        row._replace(request_id="s"),
        row._replace(phase="thinking"),
        row._replace(num_pending=2),
        row._replace(max_nodes=3),
        row._replace(max_depth=0),
        row._replace(drafters=("other",)),
        row._replace(context_len=50_000),
    ):
        forethought._thought = thought
        assert forethought.take([other]) is None
        assert forethought.take([row]) is None, "it is gone"
    forethought._thought = thought
    assert forethought.take([row, row._replace(request_id="s")]) is None
    forethought._thought = thought
    assert forethought.take([]) is None
    forethought._thought = thought
    assert forethought.take([row]) is thought


def test_learning_ends_a_thought(thinking: Auto) -> None:
    row = next_row(thinking)
    [offer] = thinking.offer([row])
    assert offer.drafter == "draft"
    thinking.learn(outcome(row, offer, 4, 2, 5.0))
    assert thinking._forethought._thought is None


def test_the_step_is_the_one_that_is_made_without_thinking(thinking: Auto) -> None:
    row, thought = next_row(thinking), thinking._forethought._thought
    assert thought is not None
    thinking._forethought.drop()
    [offer] = thinking.offer([row])
    assert offer == thought.offer
    made, thought_of = thinking._step, thought.step
    for name in (
        "rate",
        "base_tokens",
        "base_ms",
        "plain_ms",
        "num_worthy",
        "depths",
        "drafts_ms",
        "probing",
    ):
        assert getattr(made, name) == getattr(thought_of, name), name
    assert made.room is not None and thought_of.room is not None
    assert made.room.places == thought_of.room.places
    assert np.array_equal(made.room.prices, thought_of.room.prices)
