"""The order of answers: plain decoding around everybody, there and back, nobody favoured."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.bench.plan import BASELINE, RunOptions, check_peers, prompt_order, sets, turns
from wager.errors import ConfigError, RequestError

NAMES = st.lists(st.sampled_from("bcdefghi"), unique=True, max_size=8)


def test_one_contender_is_abba() -> None:
    assert turns(["X"]) == ("ar", "X", "X", "ar")
    assert turns(["X"], shift=5) == ("ar", "X", "X", "ar")


def test_several_share_plain_decoding_in_groups() -> None:
    assert turns(["X", "Y"]) == ("ar", "X", "Y", "Y", "X", "ar")
    assert turns(["X", "Y"], shift=1) == ("ar", "Y", "X", "X", "Y", "ar")
    assert turns(list("WXYZ")) == ("ar", "W", "X", "Y", "Y", "X", "W", "ar", "Z", "Z", "ar")
    assert turns([]) == ("ar", "ar")


@given(names=NAMES, shift=st.integers(0, 20))
@settings(deadline=None, max_examples=60)
def test_everybody_twice_and_as_far_from_both_ends_of_its_group(names: list[str], shift: int) -> None:
    order = turns(names, shift)
    assert all(order.count(name) == 2 for name in names)
    assert order[0] == order[-1] == BASELINE
    plain = [place for place, name in enumerate(order) if name == BASELINE]
    for name in names:
        first = order.index(name)
        second = order.index(name, first + 1)
        before = max(place for place in plain if place < first)
        after = min(place for place in plain if place > second)
        assert first - before == after - second, "drift would weigh on one side"
        assert BASELINE not in order[first:second]
        assert after - before <= 7


@given(names=NAMES.filter(bool))
@settings(deadline=None, max_examples=30)
def test_everybody_stands_everywhere_once(names: list[str]) -> None:
    orders = [turns(names, shift) for shift in range(len(names))]
    for place, name in enumerate(orders[0]):
        if name != BASELINE:
            assert {order[place] for order in orders} == set(names)


@given(kinds=st.lists(st.sampled_from("abc"), max_size=12), order=st.sampled_from(("mixed", "by-kind")))
@settings(deadline=None, max_examples=60)
def test_every_prompt_once(kinds: list[str], order: str) -> None:
    assert sorted(prompt_order(kinds, order)) == list(range(len(kinds)))


def test_orders_of_prompts() -> None:
    kinds = ["a", "a", "a", "b", "c", "c"]
    assert prompt_order(kinds) == [0, 3, 4, 1, 5, 2]
    assert prompt_order(["b", "a", "b"], "by-kind") == [0, 2, 1]


def test_rounds_go_over_everything_and_rotate_on() -> None:
    plan = sets(["a", "b", "a"], ["X", "Y"], rounds=2)
    assert [(one.round, one.prompt) for one in plan] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [one.turns[1] for one in plan] == ["X", "Y", "X", "Y", "X", "Y"]


def test_the_same_request_for_everybody() -> None:
    options = RunOptions(max_tokens=9, temperature=0.8, seed=5)
    params = options.params(2)
    assert (params.max_tokens, params.temperature, params.seed, params.ignore_eos) == (9, 0.8, 7, True)
    assert options.params(2, 4).max_tokens == 4
    assert options.params(3).seed != params.seed


@pytest.mark.parametrize(
    "values", [{"max_tokens": 1}, {"rounds": 0}, {"warmup_tokens": 0}, {"prompt_order": "random"}]
)
def test_bad_options(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        RunOptions(**values)  # type: ignore[arg-type]


def test_a_bad_temperature() -> None:
    with pytest.raises(RequestError, match="temperature"):
        RunOptions(temperature=-1.0)


def test_unknown_peers() -> None:
    check_peers(["assisted", "transformers"])
    with pytest.raises(ConfigError, match="prompt-lookup"):
        check_peers(["vllm"])
