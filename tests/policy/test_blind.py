"""Bets before the draft is seen: what is expected of it, and what `auto` makes of that."""

import numpy as np
import pytest

from tests.policy.situations import DRAFT_MS, FLAT, STEEP, World, known_costs, play
from wager.policy import Controller, CostCurve, CostModel, Draft, Experience, Row
from wager.policy.auto_step import Room
from wager.policy.blind import MOST, Foresight, best_shares, blind_bet
from wager.policy.known import Known
from wager.policy.nodes import Nodes
from wager.trace.blindly import Blindly
from wager.tree import build_forest

ROW = Row("r")


def draft(*chances: float) -> Draft:
    return Draft("draft", len(chances), np.log(np.array([[one, (1.0 - one) / 4] for one in chances])))


def seen(foresight: Foresight, row: Row, *chances: float) -> None:
    own = draft(*chances)
    assert own.logprobs is not None
    foresight.learn([row], [own], build_forest(own.logprobs[None], MOST))


def free(places: int, price: float = 0.0) -> Room:
    return Room(places, price * np.arange(1, places + 1))


def test_nothing_is_foreseen_of_a_drafter_that_was_never_seen() -> None:
    foresight = Foresight()
    assert foresight.expected(ROW, draft(0.5)) is None
    seen(foresight, ROW, 0.5, 0.5)
    assert foresight.expected(ROW, draft(0.5, 0.5)) is not None
    assert foresight.expected(ROW, Draft("other", 2)) is None
    assert foresight.expected(Row("r", phase="thinking"), draft(0.5)) is None


def test_the_first_draft_is_all_there_is_to_go_by_and_later_ones_weigh_more_to_their_request() -> None:
    foresight = Foresight()
    seen(foresight, ROW, 0.5)
    curve = foresight.expected(ROW, draft(0.5))
    assert curve is not None and curve[0] == pytest.approx(0.5) and len(curve) == MOST
    assert curve[-1] == curve[1] == pytest.approx(0.625)  # two candidates are all it had
    for _ in range(10):
        seen(foresight, ROW, 0.9)
    own, other = foresight.expected(ROW, draft(0.9)), foresight.expected(Row("s"), draft(0.9))
    assert own is not None and other is not None
    assert 0.88 < own[0] < 0.9 and 0.5 < other[0] < 0.65
    foresight.forget("r")
    assert np.array_equal(foresight.expected(ROW, draft(0.9)), other)


def test_no_more_is_foreseen_than_a_draft_has_depths() -> None:
    foresight = Foresight()
    seen(foresight, ROW, 0.99, 0.99, 0.99, 0.99)
    curve = foresight.expected(ROW, Draft("draft", 2))
    assert curve is not None and curve.max() == 2.0


def test_a_row_near_its_end_teaches_nothing() -> None:
    foresight = Foresight()
    seen(foresight, ROW._replace(max_depth=1), 0.9, 0.9)
    assert foresight.expected(ROW, draft(0.9)) is None


def test_one_row_takes_what_is_worth_its_price() -> None:
    curve = np.array([0.5, 0.9, 1.2, 1.4])
    assert best_shares([curve], free(4)) == ([4], pytest.approx(1.4))
    assert best_shares([curve], free(4, 0.35)) == ([2], pytest.approx(0.2))
    assert best_shares([curve], free(1, 0.35))[0] == [1]
    assert best_shares([curve], free(4, 0.6)) == ([0], 0.0)
    assert best_shares([curve], free(0)) == ([0], 0.0)


def test_several_rows_share_by_the_logarithm_of_their_speed() -> None:
    good, poor = np.array([0.9, 1.7, 2.4]), np.array([0.5, 0.6, 0.65])
    # The poor row's first guess adds log(1.5) to its speed, the good one's second log(2.7 / 1.9).
    assert best_shares([good, poor], free(2))[0] == [1, 1]
    assert best_shares([good, poor], free(3))[0] == [2, 1]
    assert best_shares([good, np.empty(0)], free(6))[0] == [3, 0]


def test_guesses_that_have_come_are_worth_what_such_ones_were() -> None:
    foresight, experience = Foresight(), Experience()
    known = Known(0.5, 48)
    nodes = Nodes(experience, known, 64)
    rows, copy = [ROW, Row("s", drafters=("copy",))], Draft("copy", 6, has_come=True)
    seen(foresight, ROW, 0.9, 0.9, 0.9)

    def shares(price: float, **changes: int) -> list[int]:
        asked = [rows[0], rows[1]._replace(**changes)]
        room = free(20, price)
        bet, _ = blind_bet(asked, [Draft("draft", 3), copy], room, foresight, known, nodes.chain_worth)
        assert bet is not None and bet.weights[1] is None
        return list(bet.nodes)

    assert shares(0.0)[1] == 6
    assert shares(0.0, max_nodes=2)[1] == 2
    assert shares(0.2)[1] == 1, "half of them stand, as far as is known"
    for _ in range(30):
        experience.survival.observe(6, 6, ("copy", ""))
    assert shares(0.2)[1] > 2
    assert nodes.chain_worth(rows[1], copy)[-1] > 5.0
    unknown = Draft("copy", 6)  # under way: nobody knows what it is like
    found = blind_bet(rows, [Draft("draft", 3), unknown], free(20), foresight, known, nodes.chain_worth)
    assert found == (None, 0.0)


def test_auto_looks_first_and_bets_blindly_once_it_knows_what_to_expect() -> None:
    controller = Blindly("auto", known_costs(FLAT))
    play(controller, World(CostCurve(FLAT)), 60)
    assert controller.looked <= 12 and controller.unseen >= 40


def test_drafts_that_are_all_alike_make_the_same_game_seen_or_unseen() -> None:
    games = [
        play(kind("auto", known_costs(FLAT)), World(CostCurve(FLAT), claims=0.7), 60)
        for kind in (Controller, Blindly)
    ]
    sizes = [[one.num_nodes for one in game[20:]] for game in games]
    assert np.mean(sizes[1]) == pytest.approx(np.mean(sizes[0]), rel=0.1)


@pytest.mark.parametrize("points", [FLAT, STEEP, {1: 5.0, 8: 7.0, 16: 12.5, 32: 15.0}])
@pytest.mark.parametrize("stands", [0.0, 0.1, 0.5, 0.9])
def test_never_slower_than_plain_decoding(points: dict[int, float], stands: float) -> None:
    """As of bets after a look: below 1 % of the time by no more than the one step that went wrong."""
    controller = Blindly("auto", Experience(CostModel(warm_up=0)))
    world, total = World(CostCurve(points), {"draft": stands}, claims=0.8), controller.experience.ledger.total
    most = 0.0
    for _ in range(400):
        (played,) = play(controller, world, 1)
        most = max(most, world.verify(1 + played.num_nodes) + DRAFT_MS)
        assert total.balance_ms >= -(0.01 * total.elapsed_ms + points[1] + most)


def test_what_is_asked_for_by_a_request_or_only_looked_at_is_not_bet_blindly() -> None:
    controller = Controller("fixed:3")
    assert controller.blind([ROW._replace(nodes=2)], [draft(0.5)]) is None
    bet = controller.blind([ROW, Row("s", max_nodes=2), Row("t")], [draft(0.5), draft(0.5), None])
    assert bet is not None and (bet.nodes, bet.is_chain) == ([3, 2, 0], True)
    assert Controller("ar").blind([ROW], [draft(0.5)]) is None
    tree = Controller("ema+tree:9").blind([ROW], [draft(0.5)])
    assert tree is not None and (tree.nodes, tree.is_chain, tree.weights) == ([9], False, [None])


def test_a_drafter_that_holds_the_unlikely_for_likely_is_looked_at() -> None:
    controller = Blindly("auto", known_costs(FLAT))
    play(controller, World(CostCurve(FLAT)), 30)
    policy = controller.policy
    calibrator = policy._known.line("draft", "").calibrator  # type: ignore[attr-defined]
    controller.offer([ROW])
    assert controller.blind([ROW], [Draft("draft", 8)]) is not None
    calibrator.weights[1] = -0.2
    assert controller.blind([ROW], [Draft("draft", 8)]) is None
