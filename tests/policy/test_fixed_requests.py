"""Rows that size their own bets, beside rows that leave it to the policy."""

import numpy as np
import pytest

from wager.policy import PLAIN, Controller, Draft, Offer, Row, RowOutcome, StepOutcome
from wager.policy.base import fixed_forest
from wager.policy.fixed_requests import joined, without_own
from wager.tree import row_trees

DEPTHS, RANKS = 6, 3


def draft(seed: int = 0) -> Draft:
    scores = np.log(np.random.default_rng(seed).dirichlet(np.ones(RANKS + 2), DEPTHS))
    return Draft("draft", DEPTHS, -np.sort(-scores, axis=1)[:, :RANKS])


ROWS = [Row("auto", 5), Row("fixed", 5, nodes=3), Row("also", 5), Row("longer", 5, nodes=5)]


@pytest.mark.parametrize("policy", ["ar", "fixed:2", "tree:4", "bod", "auto", "ema+fixed:2"])
def test_their_chain_is_what_they_asked_for(policy: str) -> None:
    controller = Controller(policy)
    for _ in range(6):
        plan = controller.plan(ROWS)
        offers = plan.offers
        assert offers[1] == Offer("draft", 3) and offers[3] == Offer("draft", 5)
        drafts = [None if offer == PLAIN else draft(i) for i, offer in enumerate(offers)]
        forest = controller.arrange(plan, ROWS, drafts)
        tokens = np.arange(4 * DEPTHS * RANKS).reshape(4, DEPTHS, RANKS)
        trees = row_trees(forest, forest.num_nodes, tokens)
        for i, nodes in ((1, 3), (3, 5)):
            trees[i].validate()
            assert trees[i].token_ids.tolist() == tokens[i, :nodes, 0].tolist() and trees[i].is_chain
        if policy in ("fixed:2", "tree:4"):
            assert [trees[0].num_nodes, trees[2].num_nodes] == [int(policy[-1])] * 2
        shares = [
            RowOutcome(row, offer, tree.num_nodes, min(tree.num_nodes, 1), 1, draft=one)
            for row, offer, tree, one in zip(ROWS, offers, trees, drafts, strict=True)
        ]
        controller.learn(StepOutcome(shares, 4 + forest.num_nodes, 10.0, 1.0, plan=plan))


def test_limits_hold_for_them_too() -> None:
    controller = Controller("auto")
    rows = [Row("deep", 5, max_depth=2, nodes=5), Row("full", 5, max_nodes=1, nodes=5)]
    forest = controller.arrange(controller.plan(rows), rows, [draft(), draft()])
    assert np.bincount(forest.row).tolist() == [2, 1]
    nothing = [Row("end", max_depth=0, nodes=5), Row("unable", drafters=(), nodes=5)]
    assert controller.plan(nothing).offers == (PLAIN, PLAIN)


def test_the_others_get_what_they_would_get_beside_plain_rows() -> None:
    for policy in ("tree:4", "auto"):
        mixed, apart = Controller(policy), Controller(policy)
        for controller in (mixed, apart):
            _warm(controller)
        plain = [ROWS[0], ROWS[2]._replace(num_pending=1)]
        found = mixed.arrange(mixed.plan(ROWS[:3]), ROWS[:3], [draft(0), draft(1), draft(2)])
        beside = [plain[0], Row("fixed", 5, num_pending=4, drafters=()), plain[1]]
        want = apart.arrange(apart.plan(beside), beside, [draft(0), None, draft(2)])
        for row in (0, 2):
            assert found.score[found.row == row].tolist() == want.score[want.row == row].tolist()
        assert (found.row == 0).sum() > 0


def _warm(controller: Controller) -> None:
    """Enough steps for costs to be known, of rows without any wish."""
    rows = [Row("auto", 5), Row("also", 5), Row("third", 5)]
    for nodes in (0, 3, 9, 24):
        plan = controller.plan(rows)
        shares = [RowOutcome(row, Offer("draft"), nodes, nodes // 2, nodes // 2 + 1) for row in rows]
        controller.learn(StepOutcome(shares, 3 * (1 + nodes), 10.0 + 0.01 * nodes, 0.1, plan=plan))


def test_their_losses_are_their_own() -> None:
    controller = Controller("fixed:2")
    _warm(controller)
    before = controller.experience.ledger.total.balance_ms
    row = Row("fixed", 5, nodes=8)
    plan = controller.plan([row])
    controller.learn(StepOutcome([RowOutcome(row, Offer("draft", 8), 8, 0, 1)], 9, 11.0, 3.0, plan=plan))
    assert controller.experience.ledger.total.balance_ms == before
    assert controller.forget("fixed").balance_ms < 0


def test_the_policy_learns_as_if_they_were_plain() -> None:
    shares = [
        RowOutcome(Row("a"), Offer("draft"), 4, 2, 3),
        RowOutcome(Row("b", nodes=6), Offer("draft", 6), 6, 5, 6),
    ]
    seen = without_own(StepOutcome(shares, 12, 10.0, 1.0))
    assert seen.rows[0] == shares[0] and seen.num_tokens == 6
    assert seen.rows[1][1:5] == (PLAIN, 0, 0, 1)


def test_forests_of_different_rows_join() -> None:
    rows = [Row("a"), Row("b")]
    first = fixed_forest(rows, [draft(0), None], 4, chain=False)
    second = fixed_forest(rows, [None, draft(1)], 3, chain=True)
    tokens = np.arange(2 * DEPTHS * RANKS).reshape(2, DEPTHS, RANKS)
    whole = joined(first, second)
    trees = row_trees(whole, whole.num_nodes, tokens)
    assert trees[0] == row_trees(first, 4, tokens)[0]
    assert trees[1] == row_trees(second, 3, tokens)[1]
