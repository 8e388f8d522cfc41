"""The object that applies a policy."""

import pytest

from tests.policy.situations import FLAT, World, known_costs, play, share, step
from wager.errors import ConfigError
from wager.policy import (
    PLAIN,
    Account,
    Controller,
    Draft,
    Offer,
    Row,
    RowOutcome,
    StepOutcome,
)
from wager.trace.costs import CostCurve
from wager.trace.decisions import record_decisions

FIELDS = {
    "step",
    "policy",
    "rows",
    "drafters",
    "bet",
    "pending",
    "declined",
    "best_gain",
    "best_price",
    "predicted_tokens",
    "predicted_ms",
    "actual_tokens",
    "actual_ms",
    "ledger_ms",
}


def test_auto_is_the_default() -> None:
    assert Controller().policy.name == "auto"


def test_an_unknown_policy_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError):
        Controller("best")


@pytest.mark.parametrize("name", ["ar", "fixed:3", "bod", "ema+auto"])
def test_changing_the_policy_keeps_what_was_learned(name: str) -> None:
    controller = Controller("auto", known_costs(FLAT))
    play(controller, World(CostCurve(FLAT)), 50)
    experience = controller.experience
    balance, plain_ms, steps = (
        experience.ledger.total.balance_ms,
        experience.costs.plain_ms(1, 0),
        experience.stats.steps,
    )
    controller.set_policy(name)
    assert controller.policy.name == name
    assert controller.experience is experience
    assert experience.ledger.total.balance_ms == balance
    assert experience.costs.plain_ms(1, 0) == plain_ms
    assert experience.stats.steps == steps
    play(controller, World(CostCurve(FLAT)), 5)
    assert experience.stats.steps == steps + 5


def test_a_new_policy_reads_what_the_old_one_measured() -> None:
    controller = Controller("ar", known_costs(FLAT))
    assert controller.plan([Row("r")]).offers == (PLAIN,)
    controller.set_policy("auto")
    assert controller.plan([Row("r")]).offers == (Offer("draft"),)


def test_an_unknown_name_keeps_the_old_policy() -> None:
    controller = Controller("fixed:3")
    before = controller.policy
    with pytest.raises(ConfigError):
        controller.set_policy("fixed:many")
    assert controller.policy is before


@pytest.mark.parametrize("name", ["auto", "bod", "ema+auto", "entropy+auto", "ar", "tree:4"])
def test_a_step_in_flight_survives_a_change_of_policy(name: str) -> None:
    """Planned by one policy, learned by the next: also by one that wants to know what was not measured."""
    controller = Controller("fixed:2", known_costs(FLAT))
    plan = controller.plan([Row("r")])
    controller.set_policy(name)
    outcome = step(RowOutcome(Row("r"), plan.offers[0], 2, 1, 2, draft=Draft("draft", 2)), draft_ms=0.5)
    controller.learn(outcome._replace(plan=plan))
    assert controller.experience.stats.steps == 1
    assert len(controller.plan([Row("r", target_p1=1.0)]).offers) == 1


def test_a_decision_per_step() -> None:
    decisions: list[dict[str, object]] = []
    controller = Controller("fixed:3", known_costs(FLAT))
    record_decisions(controller, decisions.append)
    rows = [Row("a"), Row("b")]
    plan = controller.plan(rows)
    controller.arrange(plan, rows, [Draft("draft", 3)] * 2)
    shares = [RowOutcome(row, offer, 3, 2, 3) for row, offer in zip(rows, plan.offers, strict=True)]
    controller.learn(StepOutcome(shares, 8, 5.25, 0.5, plan=plan))
    controller.learn(step(share()))
    assert [set(one) for one in decisions] == [FIELDS, FIELDS]
    first, second = decisions
    assert (first["step"], second["step"]) == (1, 2)
    assert first["policy"] == "fixed:3"
    assert (first["rows"], first["bet"], first["drafters"]) == (2, 6, ["draft"])
    assert (first["actual_tokens"], first["actual_ms"]) == (6, 5.75)
    assert first["ledger_ms"] == 0.0
    assert second["ledger_ms"] == pytest.approx(controller.experience.ledger.total.balance_ms, abs=1e-4)
    assert (second["bet"], second["drafters"], second["actual_tokens"]) == (0, [], 1)


@pytest.mark.parametrize("name", ["auto", "bod", "ar", "tree:8", "ema+auto"])
def test_every_policy_leaves_a_prediction(name: str) -> None:
    decisions: list[dict[str, object]] = []
    controller = Controller(name, known_costs(FLAT))
    record_decisions(controller, decisions.append)
    play(controller, World(CostCurve(FLAT)), 20)
    assert len(decisions) == 20
    for one in decisions:
        assert isinstance(one["predicted_tokens"], float) and one["predicted_tokens"] >= 1.0
        assert isinstance(one["predicted_ms"], float) and one["predicted_ms"] > 0.0


def test_predictions_of_auto_come_true_on_average() -> None:
    decisions: list[dict[str, object]] = []
    controller = Controller("auto", known_costs(FLAT))
    record_decisions(controller, decisions.append)
    play(controller, World(CostCurve(FLAT)), 600)
    late = decisions[200:]
    for kind in ("tokens", "ms"):
        predicted = sum(float(str(one[f"predicted_{kind}"])) for one in late)
        actual = sum(float(str(one[f"actual_{kind}"])) for one in late)
        assert predicted == pytest.approx(actual, rel=0.1)


def test_whoever_listens_changes_nothing() -> None:
    """Decisions with and without a receiver of decisions are the same."""
    games = []
    for is_watched in (False, True):
        controller = Controller("auto", known_costs(FLAT))
        if is_watched:
            record_decisions(controller, list[dict[str, object]]().append)
        games.append(play(controller, World(CostCurve(FLAT), noise=0.1), 200))
    assert games[0] == games[1]


def test_forgetting_a_request_returns_its_account() -> None:
    controller = Controller("entropy+ar", known_costs(FLAT))
    controller.learn(step(share(row=Row("a", target_p1=1.0)), verify_ms=5.0))
    account = controller.forget("a")
    assert (account.tokens, account.elapsed_ms) == (1, 5.0)
    assert controller.forget("a") == Account()


def test_plain_rows_are_offered_plain() -> None:
    assert Controller("ar").plan([Row("a")]).offers == (PLAIN,)
