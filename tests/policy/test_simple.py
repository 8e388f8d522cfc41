"""The policies that do not adapt."""

import numpy as np
import pytest

from tests.policy.situations import bet, nodes_of, share, step
from wager.policy import PLAIN, Coming, Draft, Experience, Inquiry, Offer, Row
from wager.policy.simple import Fixed, Plain

ROWS = [Row("a"), Row("b", drafters=()), Row("c", max_depth=0), Row("d", max_nodes=0), Row("e", max_depth=2)]
DRAFT = Draft("draft", 4, np.log(np.array([[0.6, 0.3], [0.7, 0.2], [0.7, 0.2], [0.7, 0.2]])))


def test_plain_decoding_never_guesses() -> None:
    policy = Plain(Experience())
    assert policy.name == "ar"
    assert policy.plan(ROWS).offers == (PLAIN,) * 5
    assert bet(policy, [Row("a")], [DRAFT]).num_nodes == 0
    policy.learn(step(share()))
    policy.forget("a")


def test_who_is_asked_what_could_be_proposed() -> None:
    assert not Plain(Experience()).inquire(Coming(1, 1)).asks
    assert Fixed(Experience(), 3, chain=True).inquire(Coming(1, 1)) == Inquiry(True, first_suffices=True)
    assert not Fixed(Experience(), 0, chain=True).inquire(Coming(1, 1)).asks


@pytest.mark.parametrize(("chain", "depth"), [(True, 3), (False, 0)])
def test_rows_that_cannot_bet_are_not_drafted_for(chain: bool, depth: int) -> None:
    plan = Fixed(Experience(), 3, chain=chain).plan(ROWS)
    assert plan.offers == (Offer("draft", depth), PLAIN, PLAIN, PLAIN, Offer("draft", depth))


def test_a_fixed_chain() -> None:
    policy = Fixed(Experience(), 3, chain=True)
    assert policy.name == "fixed:3"
    forest = bet(policy, [Row("a"), Row("e", max_depth=2)], [DRAFT, DRAFT])
    assert sorted(nodes_of(forest)) == [(0, 1, 0), (0, 2, 0), (0, 3, 0), (1, 1, 0), (1, 2, 0)]


def test_a_fixed_tree() -> None:
    policy = Fixed(Experience(), 5, chain=False)
    assert policy.name == "tree:5"
    forest = bet(policy, [Row("a")], [DRAFT])
    assert np.exp(forest.score) == pytest.approx([0.6, 0.42, 0.3, 0.294, 0.21])


def test_a_fixed_bet_of_zero_is_plain_decoding() -> None:
    for chain in (True, False):
        policy = Fixed(Experience(), 0, chain=chain)
        assert policy.plan([Row("a")]).offers == (PLAIN,)
        assert bet(policy, [Row("a")], [None]).num_nodes == 0


def test_the_first_drafter_of_a_row_is_taken() -> None:
    policy = Fixed(Experience(), 2, chain=True)
    assert policy.plan([Row("a", drafters=("lookup", "draft"))]).offers == (Offer("lookup", 2),)
