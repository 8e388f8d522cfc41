"""The next bet, made while the pass before it is under way: the same that it would be later."""

from unittest.mock import patch

import numpy as np
import pytest

from tests.policy.situations import DRAFT_MS, FLAT, known_costs
from wager.policy import Blind, Coming, Draft, Offer, Row, RowOutcome, StepOutcome
from wager.policy.auto import Auto
from wager.policy.forethought import Forethought
from wager.policy.gain import Probe

DEPTHS = 8

Decided = tuple[list[Offer], Blind | None, list[int]]


def outcome(
    rows: list[Row], offers: list[Offer], nodes: list[int], accepted: list[int], ms: float
) -> StepOutcome:
    shares = [RowOutcome(*one, one[-1] + 1) for one in zip(rows, offers, nodes, accepted, strict=True)]
    draft_ms = DRAFT_MS if any(offer.drafter for offer in offers) else 0.0
    return StepOutcome(shares, len(rows) + sum(nodes), ms, draft_ms)


def game(
    policy: Auto, num_steps: int, *, num_rows: int = 1, lookup_every: int = 3, kind: float = 0.8
) -> list[Decided]:
    """Rows whose steps are learned while the next pass runs, as on a device; everything that was decided.

    A second drafter can propose at some steps, drafts and times differ, and quality falls off in the middle.
    """
    rng, decided = np.random.default_rng(5), list[Decided]()
    late: StepOutcome | None = None
    lens = [100 + i for i in range(num_rows)]
    for count in range(num_steps):
        able = [
            ("draft", "other") if (count + i) % lookup_every == 0 else ("draft",) for i in range(num_rows)
        ]
        rows = [
            Row(f"r{i}", length, max_depth=4000 - length, max_nodes=64, drafters=able[i])
            for i, length in enumerate(lens)
        ]
        offers = policy.offer(rows)
        good = kind if not 100 < count < 160 else 0.05
        drafts, stood = list[Draft | None](), list[int]()
        for offer in offers:
            chances = np.clip(rng.normal(good, 0.1, DEPTHS), 0.01, 0.98)
            stood.append(int((rng.random(DEPTHS) < chances).cumprod().sum()))
            scores = np.log(np.stack((chances, (1.0 - chances) / 3), axis=1))
            drafts.append(None if offer.drafter is None else Draft(offer.drafter, DEPTHS, scores))
        nodes, bet = [0] * num_rows, None
        if any(drafts):
            bet = policy.blind(rows, [draft and Draft(draft.drafter, DEPTHS) for draft in drafts])
            if bet is None:
                forest = policy.arrange(rows, drafts)
                nodes = [int((forest.row[: forest.num_nodes] == i).sum()) for i in range(num_rows)]
            else:
                nodes = list(bet.nodes)
                policy.saw(rows, drafts, nodes)
        if late is not None:
            policy.learn(late)
        time_ms = 5.0 + 0.01 * sum(nodes) + rng.exponential(0.02)
        accepted = [min(pair) for pair in zip(nodes, stood, strict=True)]
        late = outcome(rows, offers, nodes, accepted, time_ms)
        decided.append((offers, bet, nodes))
        lens = [length + took + 1 for length, took in zip(lens, accepted, strict=True)]
    return decided


def make() -> Auto:
    return Auto(known_costs(FLAT, drafters=("draft", "other")))


@pytest.mark.parametrize(("num_rows", "every"), [(1, 3), (3, 3), (3, 1000), (12, 1000)])
def test_bets_are_the_same_thought_over_before_or_not(num_rows: int, every: int) -> None:
    with patch.object(Forethought, "think"):
        want = game(make(), 400, num_rows=num_rows, lookup_every=every)
    assert game(make(), 400, num_rows=num_rows, lookup_every=every) == want
    assert any(offer.drafter for offers, _, _ in want for offer in offers)
    assert len({sum(nodes) for _, _, nodes in want}) > 1, "it bets now more, now less"


@pytest.mark.parametrize("num_rows", [1, 3, 12])
def test_most_steps_of_rows_that_draft_are_thought_over(num_rows: int) -> None:
    with patch.object(Forethought, "take", autospec=True, side_effect=Forethought.take) as take:
        kept = []
        original = Forethought._holds

        def holds(self: Forethought, thought: object, rows: list[Row]) -> bool:
            kept.append(original(self, thought, rows))  # type: ignore[arg-type]
            return kept[-1]

        with patch.object(Forethought, "_holds", holds):
            game(make(), 90, num_rows=num_rows)
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
    [row] = thought.rows
    return row._replace(context_len=row.context_len + 3, max_depth=500)


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


def test_a_look_that_is_due_ends_a_thought_and_others_are_counted(thinking: Auto) -> None:
    row, forethought = next_row(thinking), thinking._forethought
    thought = forethought._thought
    assert thought is not None
    waits = Probe()
    waits.interval = 3
    thought.step.probes.append(waits)
    for takes, left in ((True, 2), (True, 1), (False, 1)):
        forethought._thought = thought
        assert (forethought.take([row]) is thought) is takes
        assert waits.left == left


def test_a_crowd_hears_the_drafter_that_it_is_thought_to_run_and_all_at_times() -> None:
    policy, heard = make(), list[bool]()
    for _ in range(16):
        game(policy, 40, num_rows=12)
        assert policy._forethought._thought is not None
        heard.append(policy.suffices("draft", Coming(12, 12)))
        assert not policy.suffices("other", Coming(12, 12))
        assert not policy.suffices("draft", Coming(11, 11)), "it is thought of other rows"
        policy._forethought._num_steps += 1
    assert heard.count(False) == 2
    game(policy, 40, num_rows=3)
    assert not policy.suffices("draft", Coming(3, 3)), "few rows may have several drafters"


def test_learning_ends_a_thought(thinking: Auto) -> None:
    row = next_row(thinking)
    [offer] = thinking.offer([row])
    assert offer.drafter == "draft"
    thinking.learn(outcome([row], [offer], [4], [2], 5.0))
    assert thinking._forethought._thought is None


def test_the_step_is_the_one_that_is_made_without_thinking(thinking: Auto) -> None:
    row, thought = next_row(thinking), thinking._forethought._thought
    assert thought is not None
    thinking._forethought.drop()
    [offer] = thinking.offer([row])
    assert [offer] == thought.offers
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
