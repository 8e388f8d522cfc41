"""Bet-Optimal Drafting as a policy: the zero outside it, chains and trees."""

import numpy as np
import pytest

from tests.policy.situations import FLAT, STEEP, World, bet, play, share, step
from wager.costs import CostModel
from wager.policy import PLAIN, Controller, Draft, Experience, Offer, Row
from wager.policy.bod import BODConfig
from wager.policy.bod.policy import BodPolicy
from wager.trace.costs import CostCurve


def bod(mode: str = "chain", points: dict[int, float] = FLAT) -> Controller:
    experience = Experience(CostModel(CostCurve(points).by_size, warm_up=0))
    experience.costs.observe_pass(1, 1, 0, points[1])
    return Controller("bod" if mode == "chain" else "bod:tree", experience)


def test_the_offer_asks_for_as_many_guesses_as_the_bet_has() -> None:
    controller = bod()
    offer = controller.plan([Row("r")]).offers[0]
    num_bet = controller.policy.controller.optimal_bet()
    assert offer == Offer("draft", num_bet - 1)
    assert bet(controller.policy, [Row("r")], [Draft("draft", 15)]).num_nodes == num_bet - 1


def test_a_tree_bet_counts_nodes_alone() -> None:
    controller = bod("tree")
    offer = controller.plan([Row("r")]).offers[0]
    assert offer == Offer("draft", 0)
    logprobs = np.log(np.random.default_rng(0).dirichlet(np.ones(9), 15)[:, :8])
    num_bet = controller.policy.controller.optimal_bet()
    assert bet(controller.policy, [Row("r")], [Draft("draft", 15, logprobs)]).num_nodes == num_bet


def test_rows_that_cannot_bet_stay_plain() -> None:
    offers = (
        bod().plan([Row("a", drafters=()), Row("b", max_depth=0), Row("c", max_nodes=0), Row("d")]).offers
    )
    assert offers[:3] == (PLAIN,) * 3
    assert offers[3].drafter == "draft"


@pytest.mark.parametrize("mode", ["chain", "tree"])
def test_a_worthless_drafter_is_left_alone_but_for_rare_probes(mode: str) -> None:
    controller = bod(mode, STEEP)
    world = World(CostCurve(STEEP), {"draft": 0.02}, depths=15)
    played = play(controller, world, 600)
    late = [one.drafters[0] for one in played[300:]]
    assert late.count("draft") <= 12
    assert late.count("draft") >= 2


def test_a_drafter_that_turns_good_is_found_again() -> None:
    controller = bod("chain", FLAT)
    play(controller, World(CostCurve(FLAT), {"draft": 0.0}, depths=15), 400)
    played = play(controller, World(CostCurve(FLAT), {"draft": 0.95}, depths=15, seed=1), 1500)
    assert np.mean([one.drafters[0] is not None for one in played[-300:]]) > 0.9


def test_on_flat_costs_and_sure_guesses_the_bet_is_long() -> None:
    controller = bod("chain", FLAT)
    played = play(controller, World(CostCurve(FLAT), {"draft": 0.95}, depths=15), 400)
    assert np.mean([one.num_nodes for one in played[200:]]) > 10
    assert np.mean([one.emitted for one in played[200:]]) > 5


def test_plain_steps_teach_the_controller_nothing() -> None:
    policy = bod().policy
    assert isinstance(policy, BodPolicy)
    policy.learn(step(share()))
    assert policy.controller.cycles == 0
    policy.learn(step(share(3, accepted=2), draft_ms=1.0))
    assert policy.controller.cycles == 1


def test_each_row_of_a_batch_is_an_observation_and_one_bet_serves_all() -> None:
    controller = bod()
    rows = [Row("a"), Row("b"), Row("c", max_depth=1)]
    plan = controller.plan(rows)
    assert len(set(plan.offers)) == 1
    forest = controller.arrange(plan, rows, [Draft("draft", 15)] * 3)
    counts = np.bincount(forest.row, minlength=3).tolist()
    assert counts[0] == counts[1] > counts[2] == 1
    controller.learn(step(*(share(n, accepted=0, row=row) for n, row in zip(counts, rows, strict=True))))
    assert controller.policy.controller.cycles == 3


def test_the_name_follows_the_configured_mode() -> None:
    assert BodPolicy(Experience(), config=BODConfig(mode="tree")).name == "bod:tree"
    assert BodPolicy(Experience()).name == "bod"


def test_the_prediction_is_for_the_bet_that_was_chosen() -> None:
    controller = bod()
    prediction = controller.plan([Row("a"), Row("b")]).prediction
    policy = controller.policy
    assert isinstance(policy, BodPolicy)
    num_bet = policy.controller.optimal_bet()
    assert prediction is not None
    assert prediction.tokens == pytest.approx(2 * policy.controller.gain.tokens(num_bet))
    assert prediction.time_ms == pytest.approx(policy.controller.costs.at(num_bet))
