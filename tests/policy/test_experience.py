"""What is learned whatever the policy."""

import numpy as np
import pytest

from tests.policy.situations import DRAFT_MS, FLAT, known_costs, share, step
from wager.costs import CostModel, DraftShape
from wager.policy import Controller, Evidence, Experience, Row, StepOutcome
from wager.policy.experience import leading_hits, shape_of_rows


def test_a_plain_step_leaves_the_account_even_whatever_it_took() -> None:
    experience = known_costs(FLAT)
    experience.learn(step(share(), verify_ms=9.0))
    assert experience.ledger.total.balance_ms == 0.0
    assert experience.ledger.total.elapsed_ms == 9.0
    assert experience.ledger.account("r").tokens == 1


def test_a_drafted_step_is_set_against_plain_decoding() -> None:
    experience = known_costs(FLAT)
    experience.learn(step(share(4, accepted=3), verify_ms=5.0, draft_ms=1.0))
    assert experience.ledger.total.balance_ms == pytest.approx(4 * 5.0 - 6.0, abs=0.05)
    experience.learn(step(share(4, accepted=0), verify_ms=5.0, draft_ms=1.0))
    assert experience.ledger.total.balance_ms == pytest.approx(5 * 5.0 - 12.0, abs=0.1)


def test_tokens_behind_an_end_do_not_count() -> None:
    experience = known_costs(FLAT)
    ended = share(4, accepted=4)._replace(emitted=2)
    experience.learn(step(ended, verify_ms=5.0))
    assert experience.ledger.account("r").tokens == 2
    assert experience.ledger.total.plain_ms == pytest.approx(10.0, abs=0.05)


def test_a_draft_that_was_not_verified_is_paid_for_too() -> None:
    experience = known_costs(FLAT)
    experience.learn(step(share(0, drafter="draft"), verify_ms=5.0, draft_ms=1.0))
    assert experience.ledger.total.balance_ms == pytest.approx(-1.0, abs=0.05)


def test_time_is_shared_by_tokens_in_the_pass() -> None:
    experience = known_costs({2: 6.0, 8: 6.0}, rows=2)
    heavy, light = share(5, accepted=1, row=Row("heavy")), share(0, row=Row("light"))
    experience.learn(step(heavy, light, verify_ms=6.0, draft_ms=1.0))
    accounts = experience.ledger.requests
    assert accounts["heavy"].elapsed_ms == pytest.approx(6.0)
    assert accounts["light"].elapsed_ms == pytest.approx(1.0)
    assert accounts["heavy"].plain_ms == pytest.approx(6.0, rel=0.02)
    assert accounts["light"].plain_ms == pytest.approx(3.0, rel=0.02)
    assert experience.ledger.total.elapsed_ms == pytest.approx(7.0)


def test_no_account_pays_for_a_machine_that_stood_still() -> None:
    experience = known_costs(FLAT)
    experience.learn(step(share(4, accepted=0), verify_ms=505.0, draft_ms=DRAFT_MS))
    assert experience.stalled_ms == pytest.approx(500.0, abs=1.0)
    assert experience.ledger.total.balance_ms == pytest.approx(-DRAFT_MS, abs=0.1)


def test_a_machine_does_not_stand_still_all_the_time() -> None:
    """Where every step that drafts is that late, it is what they take: somebody has to pay."""
    experience, late = known_costs(FLAT), step(share(4, accepted=0), verify_ms=105.0, draft_ms=DRAFT_MS)
    for _ in range(2):
        assert experience.learn(late)[0].verify_ms < 60.0
    assert experience.learn(late) == [late]
    assert experience.ledger.total.balance_ms < -50.0
    usual = step(share(4, accepted=0), verify_ms=5.0, draft_ms=DRAFT_MS)
    assert experience.learn(usual) == [usual]
    far = step(share(4, accepted=0), verify_ms=5000.0, draft_ms=DRAFT_MS)
    assert experience.learn(far)[0].verify_ms < 500.0, "again, and not in a row"


def test_a_policy_is_not_told_of_a_machine_that_stood_still() -> None:
    """Else one look that took a second would keep a crowd from looking again for thousands of steps."""
    told: list[StepOutcome] = []
    controller = Controller("fixed:4", known_costs(FLAT))
    controller.policy.learn = told.append  # type: ignore[method-assign]
    controller.learn(step(share(4, accepted=0), verify_ms=505.0, draft_ms=DRAFT_MS))
    assert told[0].verify_ms + told[0].draft_ms == pytest.approx(5.0 + DRAFT_MS, abs=0.5)


def test_a_dear_step_is_no_stall() -> None:
    experience = known_costs(FLAT)
    experience.learn(step(share(4, accepted=0), verify_ms=12.0, draft_ms=DRAFT_MS))
    assert experience.stalled_ms == 0.0
    assert experience.ledger.total.balance_ms == pytest.approx(5.0 - 12.5, abs=0.1)


TWO_ROWS = {2: 5.0, 4: 5.2, 8: 5.6, 16: 6.4}


@pytest.mark.parametrize("overlaps", [True, False])
def test_of_several_rows_on_a_device_all_but_the_pass_is_the_drafts(overlaps: bool) -> None:
    """The host spent three of nine milliseconds while the pass ran: where, says nothing of either."""
    experience = known_costs(TWO_ROWS, rows=2)
    rows = [share(7, accepted=2, row=Row(name)) for name in "ab"]
    for _ in range(40):
        (told,) = experience.learn(step(*rows, verify_ms=3.4, draft_ms=5.6)._replace(overlaps=overlaps))
    assert told.verify_ms + told.draft_ms == pytest.approx(9.0)
    pass_ms = float(experience.costs.curve(2, 0)[16])
    assert (pass_ms == pytest.approx(6.4, rel=0.02)) is overlaps, "elsewhere it is what was measured"
    assert experience.costs.draft_ms("draft", DraftShape(2)) == pytest.approx(
        2.6 if overlaps else 5.6, rel=0.05
    )


def test_on_a_device_too_a_larger_pass_than_any_is_taken_at_its_word() -> None:
    experience = known_costs({2: 5.0, 4: 5.2}, rows=2)
    rows = [share(7, accepted=2, row=Row(name)) for name in "ab"]
    experience.learn(step(*rows, verify_ms=8.0, draft_ms=1.0)._replace(overlaps=True))
    assert experience.costs.largest_seen(2, 0) == 16


def test_drafters_that_run_together_are_timed_together() -> None:
    """The time that both take is divided between them, more of it corrected where less is known."""
    experience = known_costs(TWO_ROWS, rows=2, drafters=())
    costs, alone = experience.costs, DraftShape(1)
    for _ in range(20):
        costs.observe_drafts({"block": alone}, 2.0)
    rows = [share(7, row=Row(name), drafter=name) for name in ("block", "copy")]
    for _ in range(20):
        experience.learn(step(*rows, verify_ms=6.4, draft_ms=2.5))
    assert costs.draft_ms("block", alone) == pytest.approx(2.0, rel=0.15)
    assert costs.draft_ms("block", alone) + costs.draft_ms("copy", alone) == pytest.approx(2.5, rel=0.1)


def test_a_step_is_judged_by_what_was_known_before_it() -> None:
    """Had the costs learned first, a slow step would have made plain decoding look slow as well."""
    experience = Experience(CostModel(warm_up=0))
    experience.learn(step(share(), verify_ms=5.0))
    experience.learn(step(share(1, accepted=0), verify_ms=8.0, draft_ms=1.0))
    assert experience.ledger.total.balance_ms == pytest.approx(5.0 - 9.0)


def test_before_anything_was_measured_nothing_is_won_or_lost() -> None:
    experience = Experience()
    experience.learn(step(share(4, accepted=4), verify_ms=500.0, draft_ms=100.0))
    assert experience.ledger.total.balance_ms == 0.0


def test_costs_learn_from_every_step() -> None:
    experience = Experience(CostModel(warm_up=0))
    experience.learn(step(share(), verify_ms=5.0))
    experience.learn(step(share(7, accepted=1), verify_ms=7.0, draft_ms=0.7))
    assert experience.costs.curve(1, 0)[8] == pytest.approx(7.0)
    assert 0.7 < experience.costs.draft_ms("draft", DraftShape(1)) < 0.95, "a fifth of a pass until then"


def test_a_draft_time_of_two_unknown_drafters_is_shared_alike() -> None:
    experience = known_costs(FLAT, rows=2, drafters=())
    both = share(1, row=Row(1), drafter="a"), share(1, row=Row(2), drafter="b")
    for _ in range(10):
        experience.learn(step(*both, verify_ms=5.0, draft_ms=3.0))
    times = [experience.costs.draft_ms(name, DraftShape(1)) for name in ("a", "b")]
    assert times == pytest.approx([1.5, 1.5], rel=0.1)


def test_evidence_feeds_survival_by_drafter_and_phase() -> None:
    experience = known_costs(FLAT)
    item = Evidence("lookup", "code", None, np.array([0, 0, -1]))
    for _ in range(30):
        experience.learn(StepOutcome([share()], 1, 5.0, evidence=[item]))
    rates = experience.survival.rates(3, ("lookup", "code"))
    assert rates[1] > 0.8
    assert rates[2] < 0.2
    assert experience.survival.rates(3, ("lookup", "")).tolist() == [0.5] * 3


def test_a_prompt_chunk_shares_the_pass_and_yields_nothing() -> None:
    experience = known_costs({2: 6.0, 16: 6.0}, rows=2)
    chunk = share(row=Row("prompt", num_pending=8, emits=False))._replace(emitted=0)
    experience.learn(step(chunk, share(4, accepted=2), verify_ms=6.0, draft_ms=0.5))
    prompt, request = experience.ledger.account("prompt"), experience.ledger.account("r")
    assert (prompt.tokens, request.tokens) == (0, 3)
    assert experience.stats.steps == 1
    # Plain decoding would have run the pass without the nodes, then two plain steps more.
    assert experience.ledger.total.plain_ms == pytest.approx(6.0 + 2 * 6.0, rel=0.05)
    assert experience.ledger.total.elapsed_ms == pytest.approx(6.5)


def test_statistics_count_every_row() -> None:
    experience = known_costs(FLAT)
    experience.learn(step(share(4, accepted=3), verify_ms=5.0))
    experience.learn(step(share(), verify_ms=5.0))
    stats = experience.stats
    assert (stats.steps, stats.drafted_steps, stats.accepted, stats.drafted) == (2, 1, 3, 4)


def test_a_step_without_rows_is_nothing() -> None:
    experience = Experience()
    experience.learn(StepOutcome([], 0, 5.0))
    assert experience.ledger.total.elapsed_ms == 0.0


def test_small_things() -> None:
    assert [leading_hits(ranks) for ranks in ([], [0, 0], [0, 1, 0], [-1])] == [0, 2, 1, 0]
    mixed = [Row(1, context_len=3, native=True), Row(2, context_len=9)]
    assert shape_of_rows(mixed) == (2, 9, False) and shape_of_rows(mixed[:1]) == (1, 3, True)
    assert shape_of_rows([]) == (1, 0, False)


def test_a_prompt_of_any_size_is_no_loss_of_those_who_draft_beside_it() -> None:
    """Times of passes that large are not kept: a draft beside one costs its own time and nothing else."""
    experience = known_costs({1: 5.0, 64: 6.0})
    reading = Row("new", num_pending=2000, emits=False)
    outcome = step(share(row=Row("r"), drafter="draft"), share(row=reading), verify_ms=90.0, draft_ms=0.5)
    experience.learn(outcome._replace(rows=[outcome.rows[0], outcome.rows[1]._replace(emitted=0)]))
    assert experience.ledger.total.balance_ms == pytest.approx(-0.5)


def test_a_pass_without_guesses_is_plain_decoding_s_own() -> None:
    experience = known_costs({1: 5.0, 64: 6.0})
    experience.learn(step(share(drafter="draft"), verify_ms=7.0, draft_ms=0.5))
    assert experience.ledger.total.balance_ms == pytest.approx(-0.5)
