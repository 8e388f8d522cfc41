"""Who drafts: what drafts were worth against what they cost, for few rows and in a crowd."""

import numpy as np
import pytest

from tests.policy.situations import FLAT, STEEP, gained, known_costs, share, step, under_way
from wager.policy import PLAIN, Coming, Controller, Draft, Evidence, Row
from wager.policy.auto import Auto
from wager.policy.base import MANY, crowd_of
from wager.policy.gain import TRIAL, TRIED

CROWD = [Row(i) for i in range(MANY)]
LARGE = TRIED + 4
LARGE_CROWD = [Row(i) for i in range(LARGE)]


def crowd_policy(gains: list[float]) -> Auto:
    """A policy to whose crowd drafts have been worth so much, row by row."""
    num_rows = len(gains)
    policy = Auto(known_costs({n: 5.0 + 0.001 * n for n in (num_rows, 32, 64, 128)}, rows=num_rows))
    rows = [Row(i) for i in range(num_rows)]
    under_way(policy, rows)
    for row, gain in zip(rows, gains, strict=True):
        gained(policy, row, gain, num_rows)
    policy._known.line("draft", "").probe(num_rows).interval = 9
    return policy


def due_policy(num_rows: int, draft_ms: float) -> Auto:
    """A policy whose crowd has seen no draft, thinks little of them, and is due for a look."""
    policy = crowd_policy([0.0] * num_rows)
    for row in range(num_rows):
        policy._known.gain(Row(row), "draft", num_rows).is_copy = True
    line = policy._known.line("draft", "")
    line.gain(crowd_of(num_rows)).value, line.probe(num_rows).interval = 0.0, 1
    for _ in range(200):
        policy.experience.costs.observe_draft("draft", num_rows, draft_ms)
    return policy


def test_drafts_are_made_for_the_rows_that_they_are_worth_most_to() -> None:
    """Each further row makes the draft dearer: those who gain little are left out."""
    rows = [Row(i) for i in range(8)]
    experience = known_costs({n: 5.0 + 0.001 * n for n in (8, 16, 32, 64)}, rows=8)
    for num_rows, draft_ms in ((1, 0.2), (2, 0.3), (4, 0.5), (8, 9.0)):
        for _ in range(20):
            experience.costs.observe_draft("draft", num_rows, draft_ms)
    policy = Auto(experience)
    under_way(policy, rows)
    for row in rows:
        gained(policy, row, 3.0 if row.request_id in (1, 3, 6) else 0.2, 8)
    looking = policy.offer(rows)
    assert all(offer.drafter for offer in looking), "nobody was looked at yet"
    policy._known.line("draft", "").probe(MANY).interval = 9
    drafting = [i for i, offer in enumerate(policy.offer(rows)) if offer.drafter]
    assert {1, 3, 6} <= set(drafting) and len(drafting) == 4


@pytest.mark.parametrize(("gains", "drafts"), [([1.0] * 8, True), ([7.0, *[0.0] * 7], False)])
def test_a_crowd_does_not_wait_for_one_of_its_rows(gains: list[float], drafts: bool) -> None:
    """Nearly as many tokens in all: but where one row has them, the other seven only wait."""
    policy = crowd_policy(gains)
    for num_rows in (1, 2, 4, 8):
        for _ in range(40):
            policy.experience.costs.observe_draft("draft", num_rows, 2.0)
    assert any(offer.drafter for offer in policy.offer(CROWD)) is drafts


def test_a_crowd_is_looked_at_when_its_answers_have_got_under_way() -> None:
    policy = Auto(known_costs(FLAT, rows=MANY))
    draft = Draft("draft", 2, np.full((2, 1), -0.1))
    waited = 0
    while policy.offer(CROWD) == [PLAIN] * MANY:
        policy.learn(step(*[share(row=row) for row in CROWD]))
        waited += 1
    assert waited == 8
    nodes = policy.arrange(CROWD, [draft] * MANY).num_nodes // MANY
    policy.learn(step(*[share(nodes, nodes, row=row) for row in CROWD], draft_ms=0.5))
    new = [*CROWD[1:], Row("new")]
    assert policy.offer(new)[-1] == PLAIN, "its answer has just begun"
    for _ in range(2):
        policy.arrange(new, [draft] * 7 + [None])
        policy.learn(step(*[share(nodes, nodes, row=row) for row in CROWD[1:]], share(row=new[-1])))
        offers = policy.offer(new)
    assert offers[-1].drafter, "by now the crowd is known, and whoever joins it drafts at once"


def test_a_crowd_of_young_answers_rests_while_no_look_is_due() -> None:
    policy = Auto(known_costs(FLAT, rows=MANY))
    policy._known.line("draft", "").probe(MANY).interval = 900
    assert policy.offer(CROWD) == [PLAIN] * MANY
    policy.learn(step(*[share(row=row) for row in CROWD]))
    assert policy.rests(Coming(MANY, MANY, ahead=500)), "not only until they have got under way"


def test_few_rows_draft_from_their_first_step_on() -> None:
    policy = Auto(known_costs(FLAT))
    assert [offer.drafter for offer in policy.offer([Row("r")])] == ["draft"]


@pytest.mark.parametrize(("draft_ms", "goes_on"), [(2.0, True), (30.0, False)])
def test_a_crowd_tries_all_of_its_rows_for_some_steps(draft_ms: float, goes_on: bool) -> None:
    policy, draft = due_policy(MANY, draft_ms), Draft("draft", 3, np.full((3, 1), -0.05))
    steps = 0
    while steps < 12 and all(offer.drafter for offer in policy.offer(CROWD)):
        steps += 1
        nodes = policy.arrange(CROWD, [draft] * MANY).num_nodes // MANY
        policy.learn(step(*[share(nodes, nodes, row=row) for row in CROWD], draft_ms=draft_ms))
    assert steps == (12 if goes_on else TRIAL)
    assert policy.rests(Coming(MANY, MANY)) is not goes_on


@pytest.mark.parametrize(("draft_ms", "ends"), [(0.5, True), (3.0, True), (30.0, False)])
def test_a_few_looks_speak_for_the_whole_crowd(draft_ms: float, ends: bool) -> None:
    """Four rows are looked at: what they gain would not pay for a draft of 3 ms, but what all would."""
    policy, draft = due_policy(LARGE, draft_ms), Draft("draft", 3, np.full((3, 1), -0.05))
    looked = [i for i, offer in enumerate(policy.offer(LARGE_CROWD)) if offer.drafter]
    assert len(looked) == 4 and policy.rests(Coming(LARGE, LARGE, ahead=1))
    policy.arrange(LARGE_CROWD, [draft if i in looked else None for i in range(LARGE)])
    shares = [share(3, 3, row=row) if i in looked else share(row=row) for i, row in enumerate(LARGE_CROWD)]
    policy.learn(step(*shares, draft_ms=draft_ms))
    assert policy.rests(Coming(LARGE, LARGE)) is not ends


def test_a_crowd_begins_to_draft_where_that_gains_something_worth_its_beginning() -> None:
    policy = crowd_policy([0.8] * MANY)
    for _ in range(200):
        policy.experience.costs.observe_draft("draft", MANY, 3.75)
    policy._worth.drafting = frozenset({"draft"})
    assert any(offer.drafter for offer in policy.offer(CROWD)), "it gains a little, and goes on"
    policy._worth.drafting = frozenset()
    assert policy.offer(CROWD) == [PLAIN] * MANY, "too little to begin with"


@pytest.mark.parametrize(("num_rows", "begins"), [(16, True), (64, False)])
def test_a_large_crowd_begins_only_where_it_gains_a_lot(num_rows: int, begins: bool) -> None:
    """Every row gains a tenth, net of what the draft takes."""
    rows = [Row(i) for i in range(num_rows)]
    policy = Auto(known_costs({n: 5.0 + 0.0001 * n for n in (num_rows, 128, 256)}, rows=num_rows))
    under_way(policy, rows)
    policy._known.line("draft", "").probe(num_rows).interval = 900
    for _ in range(200):
        policy.experience.costs.observe_draft("draft", num_rows, 2.5)
    for row in rows:
        gained(policy, row, 0.65, num_rows)
    assert any(offer.drafter for offer in policy.offer(rows)) is begins


def both_policy(rows: list[Row], copying: float, drafting: float) -> Auto:
    """To rows that may copy, or draft, each has been worth so much; both take a while."""
    num_rows, half = len(rows), len(rows) // 2
    policy = Auto(known_costs({n: 5.0 + 0.001 * n for n in (num_rows, 32, 64, 128)}, rows=num_rows))
    under_way(policy, rows)
    for drafter, draft_ms in (("copy", 3.0), ("block", 2.0)):
        policy._known.line(drafter, "").probe(num_rows).interval = 900
        for _ in range(40):
            policy.experience.costs.observe_draft(drafter, half, draft_ms)
            policy.experience.costs.observe_draft(drafter, num_rows, draft_ms)
    for row in rows:
        for drafter in row.drafters:
            gained(policy, row, copying if drafter == "copy" else drafting, num_rows, drafter)
    return policy


@pytest.mark.parametrize(("copying", "drafters"), [(0.0, set()), (4.0, {"copy", "block"})])
def test_a_draft_is_cheaper_in_a_step_that_takes_longer_anyway(copying: float, drafters: set[str]) -> None:
    """Two milliseconds more are two fifths of a plain step, and a quarter of one in which others copy."""
    few = [Row(i, drafters=("copy",) if i < 2 else ("block",)) for i in range(4)]
    policy = both_policy(few, copying, 0.9)
    assert {offer.drafter for offer in policy.offer(few) if offer.drafter} == drafters


def test_those_who_are_quick_do_not_make_time_dear_for_the_others() -> None:
    """Two of four copy a dozen tokens a step; a draft for the other two takes a third longer, and pays."""
    few = [Row(i, drafters=("copy",) if i < 2 else ("block",)) for i in range(4)]
    policy = both_policy(few, 12.0, 0.9)
    for _ in range(200):
        policy._known.enter({row.request_id: 13 if row.request_id in (0, 1) else 1 for row in few}, 1.6)
    assert policy._known.pace(few) > 2.0 * len(few)
    assert {offer.drafter for offer in policy.offer(few)} == {"copy", "block"}


def test_a_passage_that_copies_itself_does_not_make_time_dear_behind_it() -> None:
    """Thirty tokens a step there: two for a tenth of a step are still worth having here."""
    policy, row = Auto(known_costs(FLAT)), Row("r")
    for _ in range(200):
        policy._known.enter({"r": 31}, 1.1)
    gained(policy, row, 2.0)
    policy._known.line("draft", "").probe(1).interval = 9  # no look
    assert policy.offer([row])[0].drafter == "draft"
    gained(policy, row, 0.1)
    assert policy.offer([row])[0].drafter is None


def test_a_draft_that_is_under_way_has_been_paid_for() -> None:
    """Another drafter must be worth more than it, unless it is not worth its time at all."""
    policy, row = Auto(known_costs(FLAT, drafters=("draft", "copy"))), Row("r", drafters=("draft", "copy"))
    for _ in range(200):
        policy.experience.costs.observe_draft("draft", 1, 2.0)
    gained(policy, row, 2.0)
    gained(policy, row, 1.9, 1, "copy")
    assert policy._worth.drafters([row], 0.2) == [("copy",)]
    assert policy._worth.drafters([row], 0.2, {"draft"}) == [("draft",)]
    gained(policy, row, 0.3)
    gained(policy, row, 0.2, 1, "copy")
    assert policy._worth.drafters([row], 0.2, {"draft"}) == [("copy",)]


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_device_has_begun_the_draft_of_who_drafted_last(overlaps: bool) -> None:
    rows = [Row("r", drafters=("draft", "copy"))]
    policy = Auto(known_costs(FLAT, drafters=("draft", "copy")))
    for _ in range(200):
        policy.experience.costs.observe_draft("draft", 1, 2.0)
    gained(policy, rows[0], 2.0)
    gained(policy, rows[0], 1.0, 1, "copy")
    assert policy.offer(rows)[0].drafter == "draft"
    policy.learn(step(share(4, 2, row=rows[0]), draft_ms=0.5)._replace(overlaps=overlaps))
    gained(policy, rows[0], 2.0)
    gained(policy, rows[0], 1.9, 1, "copy")
    assert policy.offer(rows)[0].drafter == ("draft" if overlaps else "copy")


def test_what_drafts_of_one_grade_are_worth_says_little_of_another() -> None:
    """Copies behind long tails have been worth a dozen tokens: one behind a short tail is none of them."""
    policy = both_policy([Row("r", drafters=("copy", "block"), grades=("/long", ""))], 12.0, 0.9)
    short = Row("r", drafters=("copy", "block"), grades=("", ""))
    gained(policy, short, 0.1, 1, "copy")
    assert policy.offer([Row("r", drafters=("copy", "block"), grades=("/long", ""))])[0].drafter == "copy"
    assert policy.offer([short])[0].drafter == "block"


CROWD_OF_BOTH = [Row(i, drafters=("copy", "block") if i < 8 else ("block",)) for i in range(16)]


@pytest.mark.parametrize(
    ("copying", "drafting", "runs"), [(4.0, 0.6, "copy"), (4.0, 3.0, "block"), (0.1, 0.1, None)]
)
def test_a_crowd_runs_one_drafter(copying: float, drafting: float, runs: str | None) -> None:
    """The one that is worth most to all of its rows together, few or many of which may use it."""
    policy = both_policy(CROWD_OF_BOTH, copying, drafting)
    offers = policy.offer(CROWD_OF_BOTH)
    assert {offer.drafter for offer in offers} - {None} == ({runs} if runs else set())


@pytest.mark.parametrize("runs", ["copy", "block"])
def test_a_crowd_stays_with_its_drafter_while_another_is_hardly_better(runs: str) -> None:
    policy = both_policy(CROWD_OF_BOTH, 4.0, 0.957)
    policy._worth.drafting = frozenset({runs})
    assert {offer.drafter for offer in policy.offer(CROWD_OF_BOTH)} - {None} == {runs}


def test_a_crowd_looks_at_another_drafter_when_it_is_time() -> None:
    policy = both_policy(CROWD_OF_BOTH, 0.2, 3.0)
    policy._known.line("copy", "").probe(16).interval = 1
    offers = policy.offer(CROWD_OF_BOTH)
    assert [offer.drafter for offer in offers].count("copy") == 4
    assert [offer.drafter for offer in offers].count("block") == 12


def test_a_drafter_that_joins_others_begins() -> None:
    """What it reads in of contexts that it has missed is no step's lateness but the first one's."""
    policy = both_policy(CROWD_OF_BOTH, 4.0, 3.0)
    policy._worth.drafting = frozenset({"copy"})
    policy.offer(CROWD_OF_BOTH)
    policy.arrange(CROWD_OF_BOTH, [Draft("block", 2, np.full((2, 1), -0.5))] * 16)
    policy.learn(step(*[share(1, 1, row=row, drafter="block") for row in CROWD_OF_BOTH], draft_ms=12.0))
    assert policy._overrun.of(16) == 0.0 and policy._overrun.of_first(16) > 0.0


@pytest.mark.parametrize(("copying", "drafts"), [(16, True), (4, False)])
def test_the_many_do_not_pay_for_the_few(copying: int, drafts: bool) -> None:
    """Whoever copies has eight tokens in a step that takes twice as long: good for all, not for a quarter."""
    rows = [Row(i, drafters=("copy",) if i < copying else ()) for i in range(16)]
    policy = Auto(known_costs({16: 5.0, 16 + 7 * copying: 10.0, 256: 10.0}, rows=16, drafters=("copy",)))
    under_way(policy, rows)
    for row in rows:
        gained(policy, row, 9.0, 16, "copy")
    for _ in range(60):
        policy._rest.cut(len(rows))
        offers = policy.offer(rows)
        if not any(offer.drafter for offer in offers):
            break
        policy.arrange(rows, [Draft("copy", 7) if offer.drafter else None for offer in offers])
        shares = [share(7, 7, row=row, drafter="copy") if row.drafters else share(row=row) for row in rows]
        policy.learn(step(*shares, verify_ms=10.0, draft_ms=0.5))
    policy._known.line("copy", "").probe(16).interval = 900
    policy._rest.cut(len(rows))
    assert any(offer.drafter for offer in policy.offer(rows)) is drafts


@pytest.mark.parametrize("num_rows", [4, MANY])
def test_in_a_crowd_the_account_of_all_decides(num_rows: int) -> None:
    """A row that is behind: of few it bets no more, in a crowd it would wait for the others all the same."""
    rows = [Row(i) for i in range(num_rows)]
    policy = Auto(known_costs(FLAT, rows=num_rows))
    under_way(policy, rows)
    for row in rows:
        gained(policy, row, 3.0, num_rows)
    policy.experience.ledger.post(0, 100.0, 10.0, 1, shared=False)
    drafting = [offer.drafter is not None for offer in policy.offer(rows)]
    assert drafting == [num_rows >= MANY, *[True] * (num_rows - 1)]
    policy.experience.ledger.total.balance_ms = -1000.0
    policy._rest.cut(len(rows))
    assert not any(offer.drafter for offer in policy.offer(rows))


@pytest.mark.parametrize(("stood", "chosen"), [(9, "copy"), (1, "draft")])
def test_what_was_only_watched_tells_who_drafts(stood: int, chosen: str) -> None:
    """Nobody has bet on a copy, of which half a token is expected at first, where drafts are worth two."""
    controller = Controller("auto", known_costs(FLAT, drafters=("draft", "copy")))
    row, policy = Row("r", drafters=("draft", "copy")), controller.policy
    assert isinstance(policy, Auto)
    gained(policy, row, 2.0)
    seen = Evidence("copy", "", None, np.array([0] * stood + [-1]), watched="r")
    assert controller.offer([row])[0].drafter == "draft"
    for _ in range(20):
        controller.learn(step(share(4, 2, row=row), draft_ms=0.5)._replace(evidence=[seen]))
        controller.offer([row])
    assert controller.offer([row])[0].drafter == chosen
    other = Row("other", drafters=("draft", "copy"))
    gained(policy, other, 2.0)
    assert controller.offer([other])[0].drafter == chosen, "what one has shown others know"


def test_a_chain_that_would_not_have_been_verified_is_worth_nothing() -> None:
    """Where guesses are dear, what would have stood had it been bet on is no reason to draft."""
    controller = Controller("auto", known_costs(STEEP, drafters=("copy",)))
    policy = controller.policy
    assert isinstance(policy, Auto)
    for _ in range(20):
        controller.offer([Row("r", drafters=("copy",))])
        seen = Evidence("copy", "", None, np.array([0, 0, -1]), watched="r")
        controller.learn(step(share(), verify_ms=5.0)._replace(evidence=[seen]))
    assert 0.0 <= policy._known.line("copy", "").gain(0).value < 0.1
    assert not policy._known.line("copy", "").gain(0).is_copy


def test_a_pass_that_began_early_is_no_price_of_looking() -> None:
    """Plain passes that were planned one by one are; those of drafts have a price of their own."""
    policy = Auto(known_costs(FLAT))
    for num_nodes, waking in ((4, 0.0), (0, 2.0)):
        policy.offer([Row("r")])
        if num_nodes:
            policy.arrange([Row("r")], [Draft("draft", 4, np.log(np.full((4, 1), 0.9)))])
        policy.learn(step(share(num_nodes), verify_ms=7.0)._replace(is_typical=False))
        assert policy._lessons._waking_ms == pytest.approx(waking, abs=0.1)
