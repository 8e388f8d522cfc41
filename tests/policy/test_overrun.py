"""What drafting costs a crowd beyond passes and drafts."""

import numpy as np
import pytest

from tests.policy.situations import FLAT, known_costs, share, step, under_way
from wager.policy import Draft, Row
from wager.policy.auto import Auto
from wager.policy.base import MANY
from wager.policy.overrun import Overrun


def test_it_follows_what_steps_took_and_forgets_slowly() -> None:
    overrun = Overrun()
    assert overrun.of(64) == 0.0
    overrun.learn(64, 12.0, 8.0, 5.0)
    assert overrun.of(64) == overrun.of(40) == 4.0
    assert overrun.of(32) == 0.0, "another crowd"
    overrun.learn(64, 8.0, 9.0, 5.0)
    assert overrun.of(64) == pytest.approx(2.8), "earlier than expected counts as in time"


def test_few_rows_have_none() -> None:
    overrun = Overrun()
    overrun.learn(4, 12.0, 8.0, 5.0)
    assert overrun.of(4) == 0.0


def test_a_machine_that_stood_still_says_little() -> None:
    overrun = Overrun()
    overrun.learn(64, 900.0, 8.0, 5.0)
    assert overrun.of(64) == 15.0


def test_the_first_draft_behind_plain_steps_is_a_matter_of_its_own() -> None:
    overrun = Overrun()
    overrun.learn(64, 20.0, 8.0, 5.0, is_first=True)
    assert overrun.of(64) == 6.0 and overrun.of_first(64) == 12.0, "half of it is the host's, for many rows"
    overrun.learn(64, 10.0, 8.0, 5.0)
    assert overrun.of(64) == 2.0 and overrun.of_first(64) == 12.0
    overrun.learn(16, 20.0, 8.0, 5.0, is_first=True)
    assert overrun.of(16) == 0.0, "of few it is what they read in"


def test_looks_that_lose_let_it_fade() -> None:
    overrun = Overrun()
    overrun.fade(64)
    assert overrun.of(64) == 0.0
    overrun.learn(64, 18.0, 8.0, 5.0)
    for _ in range(2):
        overrun.fade(64)
    assert overrun.of(64) == pytest.approx(6.4)


def drafting(policy: Auto, rows: list[Row]) -> int:
    policy._rest.cut(len(rows))
    return sum(offer.drafter is not None for offer in policy.offer(rows))


@pytest.mark.parametrize("num_rows", [1, MANY])
def test_a_crowd_bets_only_where_that_pays_for_what_its_steps_take(num_rows: int) -> None:
    """The same drafts, the same gains: where the step took far longer than passes and drafts, no more."""
    policy = Auto(known_costs(FLAT))
    rows = [Row(i, drafters=("draft",)) for i in range(num_rows)]
    draft = Draft("draft", 2, np.full((2, 1), -0.5))
    under_way(policy, rows)
    for _ in range(2):  # the first says nothing of those behind it
        assert drafting(policy, rows) == num_rows
        nodes = policy.arrange(rows, [draft] * num_rows).num_nodes // num_rows
        assert nodes
        policy.learn(step(*[share(nodes, 1, row=row) for row in rows], verify_ms=30.0, draft_ms=0.5))
        policy._known.line("draft", "").probe(num_rows).interval = 9
    assert drafting(policy, rows) == (num_rows if num_rows < MANY else 0)


def test_a_crowd_begins_only_where_its_account_bears_the_beginning() -> None:
    policy = Auto(known_costs(FLAT, rows=MANY))
    rows = [Row(i) for i in range(MANY)]
    under_way(policy, rows)
    assert drafting(policy, rows) == MANY
    policy._overrun.learn(MANY, 12.0, 5.0, 5.0, is_first=True)
    assert drafting(policy, rows) == 0
    policy.experience.ledger.total.balance_ms = 50.0
    assert drafting(policy, rows) == MANY
