"""Why `auto` drafts for nobody: each reason, and that there is none where it drafts."""

from tests.policy.situations import FLAT, STEEP, awake, claims, known_costs, taught
from wager.policy import Experience, Reason, Row
from wager.policy.auto import Auto

ROW = Row("r")


def declined_by(policy: Auto, row: Row = ROW) -> Reason | None:
    declined = policy.plan([row]).declined
    return None if declined is None else declined.reason


def poor(experience: Experience) -> Auto:
    """A policy whose drafts have proved worthless, and that may explore no more."""
    policy = awake(Auto(experience), 1)
    taught(policy, [ROW], claims(0.01))
    policy.exploration.credit_ms = 0.0
    return policy


def test_nothing_is_known_or_offered() -> None:
    assert declined_by(Auto(Experience())) is Reason.UNMEASURED
    policy = awake(Auto(known_costs(FLAT)), 1)
    assert declined_by(policy, ROW._replace(drafters=())) is Reason.NO_DRAFT
    assert declined_by(policy, ROW._replace(max_depth=0)) is Reason.NO_DRAFT


def test_a_draft_that_pays_is_not_declined() -> None:
    policy = awake(Auto(known_costs(FLAT)), 1)
    taught(policy, [ROW], claims(0.9))
    plan = policy.plan([ROW])
    assert plan.drafts and plan.declined is None


def test_a_draft_that_costs_more_than_it_gains() -> None:
    experience = known_costs(STEEP, draft_ms=4.0)
    experience.ledger.post("earlier", 100.0, 200.0, 40)
    declined = poor(experience).plan([ROW]).declined
    assert declined is not None and declined.reason is Reason.PRICE
    assert 0.0 <= declined.gain < 0.1 < 0.5 < declined.price < 1.0


def test_the_ledger_forbids_what_would_pay() -> None:
    experience = known_costs(FLAT)
    experience.ledger.post("earlier", 1000.0, 100.0, 20)
    policy = awake(Auto(experience), 1)
    taught(policy, [ROW], claims(0.9))
    assert declined_by(policy) is Reason.LEDGER


def test_a_plain_pass_is_timed_again() -> None:
    policy = awake(Auto(known_costs(FLAT)), 1)
    taught(policy, [ROW], claims(0.9))
    for _ in range(400):
        policy.experience.costs.observe_pass(9, 1, 0, FLAT[8], is_bare=False)
    policy.exploration.credit_ms = 1e6
    assert declined_by(policy) is Reason.TIMING
