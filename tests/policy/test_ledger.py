"""The account against plain decoding."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.errors import ConfigError
from wager.policy.ledger import ALONE_LOSS, LARGEST_LOSS, START_ALLOWANCE, Account, Ledger

POSTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(0, 50), st.floats(0, 50), st.integers(0, 9)), max_size=40
)


def test_an_account_is_plain_time_less_time_spent() -> None:
    account = Account()
    assert account.speedup is None
    account.post(spent_ms=6.0, plain_ms=5.0, tokens=1)
    assert (account.balance_ms, account.lowest_ms) == (-1.0, -1.0)
    account.post(spent_ms=6.0, plain_ms=15.0, tokens=3)
    assert (account.balance_ms, account.lowest_ms, account.tokens) == (8.0, -1.0, 4)
    assert account.speedup == pytest.approx(20.0 / 12.0)


@given(POSTS)
@settings(deadline=None, max_examples=60)
def test_the_total_is_the_sum_of_all_requests_ended_ones_too(
    posts: list[tuple[str, float, float, int]],
) -> None:
    ledger = Ledger()
    for index, (request, spent, plain, tokens) in enumerate(posts):
        ledger.post(request, spent, plain, tokens)
        if index == 10:
            ledger.close("a")
    assert ledger.total.elapsed_ms == pytest.approx(sum(post[1] for post in posts))
    assert ledger.total.plain_ms == pytest.approx(sum(post[2] for post in posts))
    assert ledger.total.tokens == sum(post[3] for post in posts)
    assert ledger.total.balance_ms == pytest.approx(ledger.total.plain_ms - ledger.total.elapsed_ms)
    own = [post for post in posts if post[0] == "b"]
    assert ledger.account("b").balance_ms == pytest.approx(sum(p[2] - p[1] for p in own), abs=1e-9)


def test_closing_hands_the_account_out_and_forgets_it() -> None:
    ledger = Ledger()
    ledger.post("a", 4.0, 6.0, 2)
    assert ledger.close("a").balance_ms == 2.0
    assert ledger.account("a") == Account()
    assert ledger.close("a") == Account()
    assert not ledger.requests


def test_asking_for_an_account_does_not_open_one() -> None:
    ledger = Ledger()
    ledger.account("a").post(1.0, 1.0, 1)
    assert not ledger.requests
    assert ledger.total == Account()


def test_the_allowance_is_the_floor_and_the_steps_of_a_start() -> None:
    ledger, start_ms = Ledger(floor=0.01), 5.0 * START_ALLOWANCE
    assert ledger.allowance_ms(Account(), 5.0) == start_ms
    ledger.post("a", spent_ms=1000.0, plain_ms=990.0, tokens=9)
    assert ledger.allowance_ms(ledger.total, 5.0) == pytest.approx(start_ms)
    ledger.post("a", spent_ms=10.0, plain_ms=0.0, tokens=0)
    assert ledger.allowance_ms(ledger.total, 5.0) == pytest.approx(start_ms - 9.9)


def test_gains_do_not_pay_for_losses_of_any_size() -> None:
    """However much was gained, from its highest point an account loses no more than a few plain steps."""
    ledger = Ledger(floor=0.01)
    ledger.post("a", spent_ms=1000.0, plain_ms=5000.0, tokens=9)
    assert ledger.allowance_ms(ledger.total, 5.0) == LARGEST_LOSS * 5.0
    ledger.post("a", spent_ms=30.0, plain_ms=0.0, tokens=0)
    assert ledger.allowance_ms(ledger.total, 5.0) == pytest.approx(LARGEST_LOSS * 5.0 - 29.7)
    more_ms = ledger.allowance_ms(ledger.total, 5.0, num_rows=1) - ledger.allowance_ms(ledger.total, 5.0)
    assert more_ms == pytest.approx((ALONE_LOSS - LARGEST_LOSS) * 5.0), "a row that is alone may lose more"
    for _ in range(1000):
        ledger.post("a", spent_ms=5.0, plain_ms=5.0, tokens=1)
    assert ledger.allowance_ms(ledger.total, 5.0) == pytest.approx(LARGEST_LOSS * 5.0), (
        "plain steps give it back"
    )


@pytest.mark.parametrize("floor", [-0.01, 1.01, float("nan")])
def test_a_floor_that_is_no_fraction_is_refused(floor: float) -> None:
    with pytest.raises(ConfigError) as caught:
        Ledger(floor)
    assert caught.value.field == "ledger_floor"
