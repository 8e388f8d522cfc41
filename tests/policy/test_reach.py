"""How deep to draft: shares learned from whole drafts, the choice, and when a whole one is due."""

import numpy as np
import pytest

from wager.policy import Controller, Offer
from wager.policy.cost import CostModel
from wager.policy.reach import Reach, best_draft, options
from wager.trace import Trace, replay, step_costs


def taught(whole: float, half: float, quarter: float, times: int = 1) -> Reach:
    reach = Reach()
    for _ in range(times):
        reach.learn(15, {15: whole, 8: half, 4: quarter})
    return reach


@pytest.mark.parametrize(
    ("full", "found"), [(15, (8, 4)), (8, (4, 2)), (4, (2,)), (3, (2,)), (2, ()), (1, ()), (0, ())]
)
def test_options(full: int, found: tuple[int, ...]) -> None:
    assert options(full) == found


def test_shares_of_a_whole_draft() -> None:
    reach = taught(2.0, 1.8, 1.0)
    assert (reach.share(0), reach.share(8), reach.share(4)) == pytest.approx((1.0, 0.9, 0.5))
    for _ in range(400):
        reach.learn(15, {15: 1.0, 8: 1.0, 4: 0.01})
    assert reach.share(8) == pytest.approx(1.0, abs=1e-6)
    assert reach.share(4) == 0.2, "a part that small would blow up what a whole one is thought to be worth"
    reach.learn(7, {7: 1.0, 4: 0.5, 2: 0.25})
    assert reach.full == 7 and reach.share(4) == pytest.approx(0.5), "another drafter under the same name"


def test_worth_nothing_is_no_reason_for_a_short_draft() -> None:
    assert taught(0.0, 0.0, 0.0).share(4) == 1.0


@pytest.mark.parametrize(
    ("prices", "depth"),
    [((1.0, 1.0, 1.0), 0), ((1.0, 0.7, 0.6), 8), ((1.0, 0.9, 0.2), 4), ((9.0, 8.8, 8.6), 8)],
)
def test_the_best_draft(prices: tuple[float, float, float], depth: int) -> None:
    by_depth = dict(zip((0, 8, 4), prices, strict=True))
    reaches, gains = [taught(2.0, 1.8, 1.0), taught(2.0, 2.0, 2.0)], [1.0, 0.5]
    best = best_draft(reaches, gains, lambda depth, _: by_depth[depth])
    worth = {0: 1.5, 8: 1.4, 4: 1.0}
    assert best.depth == depth and best.net == pytest.approx(worth[depth] - by_depth[depth])


@pytest.mark.parametrize(
    ("per_row", "num_rows"), [(0.1, 5), (0.35, 4), (0.7, 2), (0.9, 1)], ids=["all", "most", "two", "one"]
)
def test_the_best_rows_alone(per_row: float, num_rows: int) -> None:
    """Rows come best first; where a draft's time grows with its rows, the last ones are not worth theirs."""
    gains = [2.0, 0.8, 0.5, 0.4, 0.2]
    best = best_draft([taught(1.0, 1.0, 1.0) for _ in gains], gains, lambda _, rows: 0.1 + per_row * rows)
    assert best.num_rows == num_rows
    assert best.net == pytest.approx(sum(gains[:num_rows]) - 0.1 - per_row * num_rows)


def test_whole_drafts_come_back() -> None:
    reach, depths = taught(1.0, 1.0, 1.0), []
    for _ in range(20):
        depths.append(best_draft([reach], [1.0], lambda depth, _: 0.1 * (depth or 15)).depth)
        reach.drafted(depths[-1], to_its_end=False)
    assert depths == ([4] * 8 + [0]) * 2 + [4] * 2
    reach.drafted(4, to_its_end=True)
    assert reach.wants_whole, "all of it stood: more might have"
    assert Reach().wants_whole and not taught(1.0, 1.0, 1.0).copy().wants_whole


def test_a_look_is_paid_by_what_short_drafts_are_worth() -> None:
    """A whole draft alone would not pay here: that is no reason to stop drafting when a look is due."""
    reach, prices = taught(1.0, 1.0, 1.0), {0: 1.5, 8: 0.9, 4: 0.4}
    reach.drafted(4, to_its_end=True)
    assert best_draft([reach], [1.0], lambda depth, _: prices[depth]) == (0, 1, pytest.approx(0.6))
    assert best_draft([reach], [0.3], lambda depth, _: prices[depth]).net < 0.0, (
        "nothing pays: no look either"
    )


def test_probes_find_out_what_short_drafts_cost() -> None:
    """A whole draft does not pay, and the price of a short one is only a guess: it must be tried."""
    asked = depths_asked({4: 0.8, 8: 4.0, 15: 12.0}, chance=0.5)
    assert np.mean([depth == 4 for depth in asked[40:]]) > 0.7


def test_times_by_depth() -> None:
    costs = CostModel()
    costs.observe_draft("block", 1, 4.0)
    assert costs.draft_ms("block", 1, 0, 4) == pytest.approx(3.2), "a guess until it was timed"
    costs.observe_draft("block", 1, 1.5, 4)
    assert costs.draft_ms("block", 1, 0, 4) == pytest.approx(1.5) == costs.draft_ms("block", 8, 0, 4)
    assert costs.draft_ms("block", 1, 0) == pytest.approx(4.0)
    costs.observe_draft("only short", 1, 2.0, 4)
    assert costs.draft_ms("only short", 1, 0) == pytest.approx(2.0)
    assert costs.drafts_ms({Offer("block"): 1, Offer("only short", 4): 2}, 0) == pytest.approx(6.0)


def steady(chance: float) -> Trace:
    """Drafts of 15 depths, each of which stands with this chance whatever came before, and says so."""
    random, shape = np.random.default_rng(0), (4, 200, 15, 4)
    probs = np.full(shape, (1.0 - chance) / 4)
    probs[..., 0] = chance
    ranks = np.where(random.random(shape[:3]) < chance, 0, -1).astype(np.int16)
    return Trace("code", "t0", np.log(probs).astype(np.float32), ranks)


def depths_asked(draft_ms: dict[int, float], chance: float) -> list[int]:
    """What `auto` asks for when every depth stands with this chance and a draft costs so much."""
    trace = steady(chance)
    controller, asked = Controller("auto"), []
    offer = controller.offer

    def listen(rows: object) -> list[Offer]:
        found = offer(rows)  # type: ignore[arg-type]
        asked.extend(one.depth for one in found if one.drafter)
        return found

    controller.offer = listen  # type: ignore[method-assign, assignment]
    replay(trace, step_costs("made up", draft_ms, {1: 5.0, 33: 6.0}), controller)
    return asked


def test_short_drafts_where_deep_guesses_fail_and_cost() -> None:
    dear = depths_asked({4: 0.5, 8: 2.0, 15: 4.0}, chance=0.5)
    assert np.mean([depth == 4 for depth in dear[40:]]) > 0.7


def test_whole_drafts_where_depth_is_free_or_pays() -> None:
    free = depths_asked({4: 1.0, 8: 1.0, 15: 1.0}, chance=0.5)
    assert np.mean([depth == 0 for depth in free[40:]]) > 0.9
    good = depths_asked({4: 0.9, 8: 1.0, 15: 1.1}, chance=0.97)
    assert np.mean([depth == 0 for depth in good[40:]]) > 0.9
