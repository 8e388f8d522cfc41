"""The default policy: known optima, limits, and what it does over many steps."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.policy.situations import (
    DRAFT_MS,
    FLAT,
    assert_closed,
    known_costs,
    nodes_of,
    share,
    step,
)
from wager.policy import (
    PLAIN,
    CostModel,
    Draft,
    Evidence,
    Experience,
    Offer,
    PassTime,
    Row,
    StepOutcome,
)
from wager.policy.auto import Auto
from wager.policy.auto_step import Step
from wager.policy.calibration import Calibrator
from wager.policy.cost import MAX_TOKENS
from wager.policy.stake import AutoConfig
from wager.policy.worth import Chosen

ROW = Row("r")


def path_probs(increments: np.ndarray) -> np.ndarray:
    """Probabilities of every path of a tree draft, best first, by listing them all."""
    depths, ranks = increments.shape
    paths = [path for depth in range(1, depths + 1) for path in product(range(ranks), repeat=depth)]
    scores = [sum(increments[d, rank] for d, rank in enumerate(path)) for path in paths]
    return np.sort(np.exp(scores))[::-1]


def best_value(probs: np.ndarray, costs: np.ndarray, rate: float) -> tuple[float, np.ndarray]:
    """The highest worth of any number of nodes, and the worth of each number from 0."""
    counts = np.arange(len(probs) + 1)
    values = np.concatenate(([0.0], np.cumsum(probs))) - rate * (costs[1 + counts] - costs[1])
    return float(values.max()), values


@st.composite
def situations(draw: st.DrawFn) -> tuple[np.ndarray, dict[int, float]]:
    """A draft, and a cost curve with a step up of any height at any size."""
    depths, ranks = draw(st.sampled_from([(15, 1), (4, 2), (3, 3), (2, 4)]))
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    sharpness = draw(st.sampled_from([0.3, 1.0, 4.0]))
    logits = random.normal(size=(depths, ranks + 1)) * sharpness
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rises = draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.1, 0.5, 2.0]), min_size=39, max_size=39))
    # Dearer than two and a half plain steps no first bet may be, whatever it is worth.
    times = 5.0 + np.minimum(np.concatenate(([0.0], np.cumsum(rises))), 7.0)
    return np.log(-np.sort(-probs[:, :ranks], axis=1)), {size + 1: float(t) for size, t in enumerate(times)}


@given(situations())
@settings(deadline=None, max_examples=120)
def test_the_bet_is_the_best_of_all_numbers_of_nodes(situation: tuple[np.ndarray, dict[int, float]]) -> None:
    logprobs, points = situation
    experience = known_costs(points)
    policy = Auto(experience)
    policy.offer([Row("r")])
    forest = policy.arrange([Row("r")], [Draft("draft", len(logprobs), logprobs)])
    costs = experience.costs.curve(1, 0)
    probs = path_probs(Calibrator().log_acceptance(logprobs))
    if logprobs.shape[1] == 1:
        probs = np.exp(np.cumsum(Calibrator().log_acceptance(logprobs)))
    best, values = best_value(probs, costs, 1.0 / costs[1])
    assert values[forest.num_nodes] == pytest.approx(best, abs=1e-9)
    assert np.exp(forest.score) == pytest.approx(probs[: forest.num_nodes])
    assert_closed(forest)


def test_a_stair_is_jumped_when_what_lies_behind_it_is_worth_it() -> None:
    """The first guess does not pay for the step up, all together do: stopping at a descent is wrong."""
    points = {n: 5.0 if n == 1 else 10.0 for n in range(1, 33)}
    experience = known_costs(points)
    likely = np.full((8, 1), np.log(0.8))
    assert policy_bet(Auto(experience), likely) == 8
    assert policy_bet(Auto(experience), likely[:1]) == 0


def test_free_places_of_a_bucket_are_filled() -> None:
    experience = Experience(CostModel(buckets=(1, 8, 16), warm_up=0))
    for size, time_ms in ((1, 5.0), (8, 6.0), (16, 12.0)):
        for _ in range(5):
            experience.costs.observe_pass(size, 1, 0, time_ms)
    policy = Auto(experience)
    policy.offer([Row("r")])
    forest = policy.arrange([Row("r")], [Draft("draft", 15, np.full((15, 1), np.log(0.6)))])
    assert forest.num_nodes == 7


def test_free_places_of_a_bucket_go_to_the_next_best_nodes_of_all_rows() -> None:
    """Two rows and six guesses fill the bucket of eight, whichever row they belong to."""
    experience = Experience(CostModel(buckets=(1, 2, 4, 8, 16), warm_up=0))
    experience.costs.load(
        [PassTime(size, 2, 0, ms) for size, ms in ((2, 5.0), (4, 5.1), (8, 6.0), (16, 12.0))]
    )
    policy = Auto(experience)
    rows = [Row("poor"), Row("rich")]
    policy.offer(rows)
    poor, rich = np.log(np.full((8, 1), 0.05)), np.log(np.full((8, 1), 0.9))
    forest = policy.arrange(rows, [Draft("draft", 8, poor), Draft("draft", 8, rich)])
    assert forest.num_nodes == 6
    assert np.bincount(forest.row).tolist() == [1, 5]


def test_what_was_learned_of_the_drafter_decides() -> None:
    """The policy's own calibration is the one that the same evidence gives a calibrator of its own."""
    experience = known_costs({n: 5.0 + 0.25 * n for n in range(1, 40)})
    policy, mirror = Auto(experience), Calibrator()
    claims = np.full((12, 1), np.log(0.9))
    lies = Evidence("draft", "", claims[:1], np.array([-1]))
    before = policy_bet(policy, claims)
    for _ in range(40):
        policy.offer([Row("r")])
        policy.learn(StepOutcome([share()], 1, 5.25, evidence=[lies]))
        mirror.learn(lies)
    policy.offer([Row("r")])
    forest = policy.arrange([Row("r")], [Draft("draft", 12, claims)])
    assert before > 4
    assert forest.num_nodes < before
    probs = np.exp(np.cumsum(mirror.log_acceptance(claims)))
    costs = experience.costs.curve(1, 0)
    best, values = best_value(probs, costs, 1.0 / costs[1])
    assert values[forest.num_nodes] == pytest.approx(best, abs=1e-9)


def policy_bet(policy: Auto, logprobs: np.ndarray, row: Row = ROW) -> int:
    policy.offer([row])
    return policy.arrange([row], [Draft("draft", len(logprobs), logprobs)]).num_nodes


def test_a_drafter_that_is_best_where_it_is_unsure_is_still_taken_best_first() -> None:
    policy, row = Auto(known_costs(FLAT)), Row("r")
    policy.offer([row])
    logprobs = np.log([[0.6, 0.3, 0.05], [0.5, 0.2, 0.1]])
    draft = Draft("draft", 2, logprobs)
    policy._known.line("draft", "").calibrator.weights = [0.0, -0.5, 0.0]
    forest = policy.arrange([row], [draft])
    assert forest.num_nodes and forest.rank[0] == 2
    assert (np.diff(forest.score) <= 0.0).all()
    assert_closed(forest)


def test_phases_are_learned_apart() -> None:
    policy = Auto(known_costs({n: 5.0 + 0.25 * n for n in range(1, 40)}))
    claims = np.full((12, 1), np.log(0.9))
    code, prose = Row("r", phase="code"), Row("r", phase="prose")
    assert policy_bet(policy, claims, code) == policy_bet(policy, claims, prose)
    for _ in range(60):
        policy.offer([prose])
        lies = Evidence("draft", "prose", claims[:1], np.array([-1]))
        policy.learn(StepOutcome([share(row=prose)], 1, 5.25, evidence=[lies]))
    assert policy_bet(policy, claims, code) > policy_bet(policy, claims, prose)


def test_the_faster_the_long_run_the_dearer_the_time() -> None:
    """Time spent on a doubtful guess is worth more where tokens come quickly anyway."""
    points = {n: 5.0 + 0.5 * n for n in range(1, 40)}
    doubtful = np.log(np.array([0.9, 0.6, 0.6, 0.6, 0.6, 0.6])[:, None])
    slow, quick = Auto(known_costs(points)), Auto(known_costs(points))
    before = policy_bet(slow, doubtful)
    for _ in range(200):
        quick.offer([Row("r")])
        quick.arrange([Row("r")], [Draft("draft", 6, np.full((6, 1), -0.01))])
        quick.learn(step(share(6, accepted=6), verify_ms=8.5, draft_ms=DRAFT_MS))
    assert 0 < policy_bet(quick, doubtful) < before


@pytest.mark.parametrize("logprob", [np.log(1e-6), np.log(0.01), -np.inf])
def test_a_worthless_draft_is_not_verified(logprob: float) -> None:
    policy = Auto(known_costs({n: 5.0 + 0.2 * n for n in range(1, 40)}))
    assert policy_bet(policy, np.full((6, 3), logprob)) == 0


def test_before_anything_was_measured_nothing_is_bet() -> None:
    policy = Auto(Experience())
    assert policy.offer([Row("r"), Row("s")]) == [PLAIN, PLAIN]
    assert policy.arrange([Row("r"), Row("s")], [None, None]).num_nodes == 0
    policy.learn(step(share()))


def test_rows_that_cannot_bet_stay_plain() -> None:
    policy = Auto(known_costs(FLAT, rows=4))
    rows = [Row("a", drafters=()), Row("b", max_depth=0), Row("c", max_nodes=0), Row("d")]
    assert policy.offer(rows) == [PLAIN, PLAIN, PLAIN, Offer("draft")]
    sure = Draft("draft", 4, np.full((4, 2), -0.7))
    forest = policy.arrange(rows, [None, None, None, sure])
    assert set(forest.row.tolist()) == {3}


def test_a_prompt_chunk_that_yields_nothing_is_not_drafted_for() -> None:
    policy = Auto(known_costs(FLAT, rows=2))
    assert policy.offer([Row("prompt", num_pending=30, emits=False), Row("r")]) == [PLAIN, Offer("draft")]
    assert policy.prediction.tokens == 1.0


def test_a_prompt_chunk_that_fills_the_table_leaves_no_room() -> None:
    policy = Auto(known_costs(FLAT))
    row = Row("r", num_pending=2 * MAX_TOKENS)
    assert policy_bet(policy, np.full((4, 1), -0.01), row) == 0


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 20),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_every_ceiling_is_kept(
    limits: list[tuple[int, int, bool]], max_nodes: int, max_batch_nodes: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    num_rows = len(limits)
    experience = known_costs({num_rows: 5.0, num_rows + 60: 5.01}, rows=num_rows)
    policy = Auto(experience, AutoConfig(max_nodes=max_nodes, max_batch_nodes=max_batch_nodes))
    rows = [Row(i, max_nodes=most, max_depth=deep) for i, (most, deep, _) in enumerate(limits)]
    drafts = [
        Draft("draft", 5, np.log(random.dirichlet(np.ones(4), 5)[:, :3])) if has_draft else None
        for *_, has_draft in limits
    ]
    policy.offer(rows)
    forest = policy.arrange(rows, drafts)
    assert_closed(forest)
    assert forest.num_nodes <= max_batch_nodes
    for i, (most, deep, has_draft) in enumerate(limits):
        own = forest.depth[forest.row == i]
        assert len(own) <= min(most, max_nodes) * has_draft
        assert max(own, default=0) <= deep


@pytest.mark.parametrize(("claims", "refreshed"), [(0.03, True), (0.9, False)])
def test_the_cost_of_plain_decoding_is_refreshed_where_that_costs_little(
    claims: float, refreshed: bool
) -> None:
    """Every bet is measured against it: after long without, a bet that is worth little gives way."""
    experience = known_costs(FLAT)
    logprobs = np.full((2, 1), np.log(claims))
    assert policy_bet(Auto(experience), logprobs) > 0
    for _ in range(3000):
        experience.costs.observe_pass(4, 1, 0, FLAT[4])
    assert (policy_bet(Auto(experience), logprobs) == 0) == refreshed


def test_a_pass_grows_by_doubling_beyond_what_was_measured() -> None:
    policy = Auto(known_costs({1: 5.0, 4: 5.0}))
    assert policy_bet(policy, np.full((15, 1), -0.001)) <= 7


@given(st.integers(0, 999), st.integers(2, 6))
@settings(deadline=None, max_examples=50)
def test_no_drafted_row_of_a_batch_starves(seed: int, num_rows: int) -> None:
    random = np.random.default_rng(seed)
    experience = known_costs({num_rows: 5.0, num_rows + 200: 25.0}, rows=num_rows)
    policy = Auto(experience)
    quality = random.uniform(0.05, 5.0, num_rows)
    drafts = [Draft("draft", 6, np.full((6, 1), -q)) for q in quality]
    rows = [Row(i) for i in range(num_rows)]
    policy.offer(rows)
    forest = policy.arrange(rows, drafts)
    assume(forest.num_nodes >= num_rows)
    assert (np.bincount(forest.row, minlength=num_rows) >= 1).all()


def test_without_a_floor_a_hopeless_row_gets_nothing() -> None:
    rows, drafts = (
        [Row(0), Row(1)],
        [
            Draft("draft", 6, np.full((6, 1), -0.01)),
            Draft("draft", 6, np.full((6, 1), -9.0)),
        ],
    )
    points = {2: 5.0, 40: 8.0}
    for floor, counts in ((0, [6, 0]), (1, [5, 1])):
        policy = Auto(known_costs(points, rows=2), AutoConfig(row_floor=floor))
        policy.offer(rows)
        assert np.bincount(policy.arrange(rows, drafts).row, minlength=2).tolist() == counts


def test_a_spine_draft_keeps_to_its_spine() -> None:
    policy = Auto(known_costs(FLAT))
    policy.offer([Row("r")])
    logprobs = np.log(np.full((3, 2), 0.45))
    forest = policy.arrange([Row("r")], [Draft("draft", 3, logprobs, spine_only=True)])
    assert forest.num_nodes == 6
    parents = [forest.rank[parent] for parent in forest.parent.tolist() if parent >= 0]
    assert parents == [0] * 4


def test_a_row_with_a_short_draft_shares_a_pass_with_a_tree() -> None:
    policy = Auto(known_costs({2: 5.0, 60: 5.1}, rows=2))
    rows = [Row("a", drafters=("lookup",)), Row("b")]
    policy.offer(rows)
    tree = Draft("draft", 3, np.log(np.array([[0.6, 0.3], [0.6, 0.3], [0.6, 0.3]])))
    forest = policy.arrange(rows, [Draft("lookup", 2), tree])
    assert [node for node in nodes_of(forest) if node[0] == 0] == [(0, 1, 0), (0, 2, 0)]
    assert sum(node[0] == 1 for node in nodes_of(forest)) == 2 + 4 + 8


def test_a_request_that_is_behind_does_not_bet() -> None:
    experience = known_costs(FLAT, rows=2)
    experience.ledger.post("rich", 100.0, 400.0, 80)
    experience.ledger.post("poor", 100.0, 60.0, 12)
    policy = Auto(experience)
    assert policy.offer([Row("rich"), Row("poor")]) == [Offer("draft"), PLAIN]


def test_a_server_that_is_behind_does_not_bet_for_anyone() -> None:
    experience = known_costs(FLAT)
    experience.ledger.post("gone", 1000.0, 900.0, 180)
    experience.ledger.close("gone")
    assert Auto(experience).offer([Row("new")]) == [PLAIN]


def test_the_prediction_is_of_the_step_that_was_arranged() -> None:
    experience = known_costs(FLAT)
    policy = Auto(experience)
    logprobs = np.full((4, 1), np.log(0.5))
    assert policy_bet(policy, logprobs) == 4
    expected = 1.0 + np.exp(np.cumsum(Calibrator().log_acceptance(logprobs))).sum()
    assert policy.prediction.tokens == pytest.approx(expected)
    assert policy.prediction.time_ms == pytest.approx(experience.costs.curve(1, 0)[5] + DRAFT_MS)
    policy.offer([Row("r")])
    assert policy.prediction == (1.0, experience.costs.plain_ms(1, 0))


def test_every_row_of_a_probe_pays_the_same_for_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows alike in a step that only looks: what the look costs is no part of their gains."""
    rows = [Row("a"), Row("b")]
    policy = Auto(known_costs({n: 5.0 + 0.1 * n for n in range(1, 40)}, rows=2))

    def look(under_way: Step, _rows: list[Row], by_drafter: dict[str, list[int]]) -> list[Chosen]:
        under_way.probing.update(by_drafter["draft"])
        return [Chosen("draft", 0, by_drafter["draft"])]

    monkeypatch.setattr(policy._worth, "weigh", look)
    offers = policy.offer(rows)
    assert [offer.drafter for offer in offers] == ["draft", "draft"]
    claims = Draft("draft", 6, np.full((6, 1), np.log(0.9)))
    num_nodes = policy.arrange(rows, [claims, claims]).num_nodes // 2
    gains: list[float] = []
    monkeypatch.setattr("wager.policy.gain.SteadyMean.add", lambda _self, sample: gains.append(sample))
    policy.learn(step(share(num_nodes, 1, row=rows[0]), share(num_nodes, 1, row=rows[1]), draft_ms=0.5))
    assert num_nodes > 0
    assert gains[0] == pytest.approx(gains[1])


def test_no_draft_is_made_where_a_prompt_takes_all_places() -> None:
    policy = Auto(known_costs(FLAT, rows=2))
    reading = Row("new", num_pending=2000, emits=False)
    assert policy.offer([Row("r"), reading]) == [PLAIN, PLAIN]
    assert policy.offer([Row("r"), Row("new")]) != [PLAIN, PLAIN]


def test_a_step_may_be_learned_from_after_the_next_was_offered() -> None:
    """Where a device waits for the host, learning comes a step late: it is of the step that it is about."""
    first, second = Row("r", context_len=0), Row("r", context_len=5)
    claims = Draft("draft", 6, np.full((6, 1), np.log(0.9)))
    early, late = Auto(known_costs(FLAT)), Auto(known_costs(FLAT))
    for policy in (early, late):
        policy.offer([first])
        num_nodes = policy.arrange([first], [claims]).num_nodes
    outcome = step(share(num_nodes, 2, row=first), draft_ms=0.5)
    early.learn(outcome)
    early.offer([second])
    late.offer([second])
    late.learn(outcome)
    assert num_nodes > 0
    gains = [policy._known.gain(first, "draft", 1).value for policy in (early, late)]
    assert gains[0] == gains[1] != 0.5
    assert late.arrange([second], [claims]).num_nodes == early.arrange([second], [claims]).num_nodes
