"""Policies by name."""

import numpy as np
import pytest

from tests.policy.situations import FLAT, known_costs
from wager.errors import ConfigError
from wager.policy import Draft, Experience, Row, make_policy, needs_target_p1
from wager.policy.names import ALLOWED, GATES, POLICIES

PLAIN_NAMES = ["auto", "ar", "fixed:0", "fixed:1", "fixed:1024", "tree:1", "tree:64", "bod", "bod:tree"]
NAMES = [*PLAIN_NAMES, *(f"{gate}+{name}" for gate in ("ema", "entropy") for name in PLAIN_NAMES)]


@pytest.mark.parametrize("name", [*NAMES, "ema+entropy+auto"])
def test_a_name_builds_a_policy_of_that_name(name: str) -> None:
    policy = make_policy(name, Experience())
    assert policy.name == name
    assert make_policy(policy.name, Experience()).name == name


def test_every_registered_name_is_documented() -> None:
    assert all(name in ALLOWED for name in [*POLICIES, *GATES])


def test_spellings_of_the_same_policy() -> None:
    assert make_policy("bod:chain", Experience()).name == "bod"
    assert make_policy("fixed:007", Experience()).name == "fixed:7"


BAD = [
    "",
    "Auto",
    "best",
    "auto:3",
    "ar:1",
    "fixed",
    "fixed:",
    "fixed:-1",
    "fixed:1.5",
    "fixed:1025",
    "fixed:x",
    "fixed: 3",
    "tree",
    "tree:1e3",
    "bod:forest",
    "ema",
    "ema+",
    "ema+best",
    "best+auto",
    "+auto",
    "auto+ema",
    "two\nlines",
]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_policy(name, Experience())
    assert caught.value.field == "policy"
    assert "\n" not in str(caught.value)
    assert "expected" in str(caught.value)


def test_an_endless_number_is_refused_like_any_other() -> None:
    with pytest.raises(ConfigError):
        make_policy("fixed:" + "9" * 5000, Experience())


@pytest.mark.parametrize(
    ("name", "needs"),
    [("entropy+auto", True), ("ema+entropy+bod", True), ("ema+auto", False), ("auto", False)],
)
def test_who_needs_the_targets_confidence(name: str, needs: bool) -> None:
    assert needs_target_p1(name) == needs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("logprobs", [None, np.full((3, 1), -0.1), np.full((3, 4), -1.5, np.float16)])
def test_every_policy_arranges_every_kind_of_draft(name: str, logprobs: np.ndarray | None) -> None:
    """A lookup's chain without probabilities, a chain with them and a tree, and a row without any."""
    policy = make_policy(name, known_costs(FLAT, rows=2))
    rows = [Row("a", target_p1=0.99, max_depth=2), Row("b", target_p1=0.99)]
    plan = policy.plan(rows)
    assert len(plan.offers) == 2
    forest = policy.arrange(plan, rows, [Draft("draft", 3, logprobs), None])
    assert set(forest.row.tolist()) <= {0}
    assert max(forest.depth, default=0) <= 2
    assert policy.arrange(plan, rows, [None, None]).num_nodes == 0
