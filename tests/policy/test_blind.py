"""Bets before the draft is seen: what is expected of it, and what `auto` makes of that."""

import numpy as np
import pytest

from tests.policy.situations import (
    FLAT,
    STEEP,
    World,
    awake,
    bet,
    calibrator,
    claims,
    known_costs,
    play,
    speedup,
    taught,
)
from wager.policy import Blind, Controller, Draft, Policy, Row
from wager.policy.auto import Auto, AutoConfig
from wager.trace.blindly import Blindly
from wager.trace.costs import CostCurve

ROW = Row("r")
SLOPED = {n: 5.0 + 0.1 * n for n in range(1, 80)}


def blind_bet(policy: Policy, rows: list[Row], drafts: list[Draft | None]) -> Blind | None:
    return policy.blind_bet(policy.plan(rows), rows, drafts)


def test_a_blind_bet_is_the_best_number_of_nodes_of_the_expected_curve() -> None:
    policy = Auto(known_costs(SLOPED))
    taught(policy, [ROW], claims(0.8), 200)
    blind = blind_bet(policy, [ROW], [Draft("draft", 8)])
    costs = policy.experience.costs.curve(1, 0)
    curve = np.minimum(policy.yields.mean_curve(ROW, "draft"), 8.0)
    nets = curve - (costs[2 : 2 + len(curve)] - costs[1]) / costs[1]
    assert blind is not None and not blind.is_chain
    assert list(blind.nodes) == [int(nets.argmax()) + 1]
    assert blind.weights[0] == tuple(calibrator(policy.yields).weights)


def test_nothing_is_bet_blindly_where_nothing_pays() -> None:
    policy = Auto(known_costs(STEEP))
    taught(policy, [ROW], claims(0.3), 100)
    blind = blind_bet(policy, [ROW], [Draft("draft", 8)])
    assert blind is None or sum(blind.nodes) == 0


def test_a_drafter_that_was_never_seen_is_looked_at() -> None:
    policy = Auto(known_costs(FLAT))
    assert blind_bet(policy, [ROW], [Draft("draft", 8)]) is None
    taught(policy, [ROW], claims(0.8), 1)
    assert blind_bet(policy, [ROW], [Draft("draft", 8)]) is not None
    assert blind_bet(policy, [ROW], [Draft("other", 8)]) is None


def test_a_drafter_that_holds_the_unlikely_for_likely_is_looked_at() -> None:
    policy = Auto(known_costs(FLAT))
    taught(policy, [ROW], claims(0.8))
    calibrator(policy.yields).weights[1] = -0.2
    assert blind_bet(policy, [ROW], [Draft("draft", 8)]) is None


def test_no_more_is_expected_than_a_draft_has_depths() -> None:
    policy = Auto(known_costs({n: 5.0 + 0.4 * n for n in range(1, 80)}))
    taught(policy, [ROW], claims(0.97, 16), 200)
    long, short = (blind_bet(policy, [ROW], [Draft("draft", depths)]) for depths in (16, 3))
    assert long is not None and short is not None
    assert short.nodes[0] <= 4 < long.nodes[0]


@pytest.mark.parametrize("stands", [6, 4])
def test_copies_at_hand_are_bet_by_how_such_ones_survived(stands: int) -> None:
    """Their guesses have come, so that no more nodes are verified than they have."""
    policy, rows = Auto(known_costs(FLAT, drafters=("copy",))), [Row("s", drafters=("copy",))]
    copy = Draft("copy", 6, has_come=True)
    for _ in range(30):
        policy.experience.survival.observe(stands, 6, ("copy", ""))
    blind = blind_bet(policy, rows, [copy])
    assert blind is not None and blind.weights == [None]
    assert 4 <= blind.nodes[0] <= 6
    capped = blind_bet(policy, [rows[0]._replace(max_nodes=2)], [copy])
    assert capped is not None and capped.nodes[0] == 2
    assert blind_bet(policy, rows, [Draft("copy", 6)]) is None, "in flight nobody knows what it is like"


def test_rows_with_and_without_a_draft_share_a_pass() -> None:
    rows = [Row(0), Row(1), Row(2, drafters=())]
    policy = awake(Auto(known_costs({3 * n: ms for n, ms in FLAT.items()}, rows=3)), 3)
    taught(policy, rows[:1], claims(0.9), 60)
    taught(policy, rows[1:2], claims(0.2), 60)
    draft = Draft("draft", 8)
    blind = blind_bet(policy, rows, [draft, draft, None])
    assert blind is not None
    assert blind.nodes[0] >= blind.nodes[1] and blind.nodes[2] == 0
    assert blind.weights[2] is None and blind.weights[0] is not None


def test_the_configured_ceiling_holds_for_every_row() -> None:
    rows = [Row(0), Row(1)]
    config = AutoConfig(max_nodes=3, max_batch_nodes=5)
    policy = awake(Auto(known_costs({2: 5.0, 80: 5.01}, rows=2), config), 2)
    taught(policy, rows[:1], claims(0.95), 60)
    taught(policy, rows[1:], claims(0.3), 60)
    blind = blind_bet(policy, rows, [Draft("draft", 8)] * 2)
    assert blind is not None and list(blind.nodes) == [3, 2]


def test_auto_looks_first_and_bets_blindly_once_it_knows_what_to_expect() -> None:
    controller = Blindly("auto", known_costs(FLAT))
    play(controller, World(CostCurve(FLAT)), 60)
    assert controller.looked <= 12 and controller.unread >= 40


def test_drafts_that_are_all_alike_make_the_same_game_seen_or_unseen() -> None:
    games = [
        play(kind("auto", known_costs(FLAT)), World(CostCurve(FLAT), claims=0.7), 60)
        for kind in (Controller, Blindly)
    ]
    sizes = [[one.num_nodes for one in game[20:]] for game in games]
    assert np.mean(sizes[1]) == pytest.approx(np.mean(sizes[0]), rel=0.1)


def test_a_seen_bet_is_worth_no_less_than_a_blind_one() -> None:
    games = [
        speedup(play(kind("auto", known_costs(SLOPED)), World(CostCurve(SLOPED), {"draft": 0.7}), 400))
        for kind in (Controller, Blindly)
    ]
    assert games[0] > 0.98 * games[1]
    assert games[1] > 1.5


def test_what_a_request_asked_for_and_what_fixed_policies_bet() -> None:
    one = claims(0.5, 1)
    rows = [ROW, Row("s", max_nodes=2), Row("t", drafters=())]
    assert blind_by("fixed:3", [ROW._replace(nodes=2)], [one]) is None
    blind = blind_by("fixed:3", rows, [one, one, None])
    assert blind is not None and (list(blind.nodes), blind.is_chain) == ([3, 2, 0], True)
    assert blind_by("ar", [ROW], [one]) is None
    tree = blind_by("ema+tree:9", [ROW], [one])
    assert tree is not None and (list(tree.nodes), tree.is_chain, list(tree.weights)) == ([9], False, [None])


def blind_by(name: str, rows: list[Row], drafts: list[Draft | None]) -> Blind | None:
    controller = Controller(name)
    return controller.blind_bet(controller.plan(rows), rows, drafts)


def test_a_blind_bet_and_a_look_agree_on_drafts_that_are_alike() -> None:
    policy, draft = Auto(known_costs(SLOPED)), claims(0.8)
    taught(policy, [ROW], draft, 2000)
    blind = blind_bet(policy, [ROW], [Draft("draft", 8)])
    assert blind is not None
    assert abs(blind.nodes[0] - bet(policy, [ROW], [draft]).num_nodes) <= 1
