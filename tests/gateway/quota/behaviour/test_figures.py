"""What budgets count by day and month, and how what is left is written."""

from datetime import UTC, datetime

import pytest

from gateway.domain.quotas import Rates
from gateway.quota import Spending
from gateway.quota.headers import duration, limit_headers
from gateway.quota.limit_state import LimitState
from gateway.quota.spending import Amounts
from gateway.storage import DailySpending
from tests.gateway.quota.spent import spend


def wall(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_a_month_begins_with_what_was_used_before_this_process_did() -> None:
    spending = Spending(wall("2026-11-21T23:59:59"))
    assert spending.month == "2026-11-01"
    spending.load(
        [DailySpending("a", "2026-11-01", 5, 0.5, 0.25), DailySpending("a", "2026-11-21", 7, 1.0, 1.0)]
    )
    spend(spending, "a", 1, 0.0, 0.0, wall("2026-11-21T23:59:59.5"))
    day, month = spending.of("a", wall("2026-11-21T23:59:59.9"))
    assert (day, month) == (Amounts(8, 1.0, 1.0), Amounts(13, 1.5, 1.25))


def test_days_and_months_end_at_midnight_utc_and_a_clock_set_back_ends_nothing() -> None:
    spending = Spending(wall("2026-12-31T12:00"))
    spend(spending, "a", 5, 0.0, 0.0, wall("2026-12-31T12:00"))
    assert spending.of("a", wall("2026-12-30T12:00"))[0].tokens == 5
    assert spending.of("a", wall("2027-01-01T00:00")) == (Amounts(), Amounts())
    assert (spending.day_ends_s, spending.month_ends_s) == (wall("2027-01-02"), wall("2027-02-01"))
    spend(spending, "a", 5, 0.0, 0.0, wall("2027-01-01T00:00"))
    assert [each.tokens for each in spending.of("a", wall("2027-01-02"))] == [0, 5]


def test_a_clock_that_was_ahead_for_a_while_neither_renews_a_budget_nor_keeps_it_from_being_renewed() -> None:
    now_s = wall("2026-11-21T12:00")
    spending = Spending(now_s)
    spend(spending, "a", 50, 0.5, 0.25, now_s)
    spend(spending, "b", 3, 0.0, 0.0, now_s)
    ahead_s = wall("2030-01-01T00:00")
    assert spending.of("a", ahead_s) == (Amounts(), Amounts())
    spend(spending, "a", 7, 0.0, 0.0, ahead_s)
    assert spending.of("a", now_s) == (Amounts(57, 0.5, 0.25), Amounts(57, 0.5, 0.25))
    assert spending.of("b", now_s)[0].tokens == 3
    assert spending.day_ends_s == wall("2026-11-22")
    assert [each.tokens for each in spending.of("a", wall("2026-11-22"))] == [0, 57]
    assert [each.tokens for each in spending.of("a", wall("2026-12-01"))] == [0, 0]


def test_a_clock_that_steps_over_midnight_and_back_forgets_nothing() -> None:
    late_s, early_s = wall("2026-11-30T23:59:59.9"), wall("2026-12-01T00:00:00.1")
    spending = Spending(late_s)
    for number in range(10):
        at_s = early_s if number % 2 else late_s
        spend(spending, "a", 5, 0.0, 0.0, at_s)
    assert [each.tokens for each in spending.of("a", late_s)] == [50, 50]


def test_what_was_used_by_a_clock_that_was_ahead_does_not_count_in_every_month_until_then() -> None:
    spending = Spending(wall("2026-11-21T12:00"))
    spending.load(
        [DailySpending("a", "2026-11-30", 5, 0.0, 0.0), DailySpending("a", "2030-01-01", 7, 0.0, 0.0)]
    )
    assert [each.tokens for each in spending.of("a", wall("2026-11-21T12:00"))] == [0, 5]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, b"0s"),
        (0.0004, b"1ms"),
        (0.012, b"12ms"),
        (1.0, b"1s"),
        (8.64, b"8.64s"),
        (59.9991, b"1m0s"),
        (90.5, b"1m30.5s"),
        (360.0, b"6m0s"),
        (3661.25, b"1h1m1.25s"),
        (86_400.0, b"24h0m0s"),
    ],
)
def test_times_are_written_as_openai_does(seconds: float, text: bytes) -> None:
    assert duration(seconds) == text


def test_of_two_limits_that_which_has_less_left_is_told() -> None:
    key, tenant = LimitState("key"), LimitState("tenant", "t")
    key.limit(Rates(rpm=10, tpm=500))
    tenant.limit(Rates(rpm=100))
    assert tenant.requests is not None
    for _ in range(95):
        tenant.requests.take(1, 5.0)
    assert dict(limit_headers((key, tenant), 5.5)) == {
        b"x-ratelimit-limit-requests": b"100",
        b"x-ratelimit-remaining-requests": b"5",
        b"x-ratelimit-reset-requests": b"59.5s",
        b"x-ratelimit-limit-tokens": b"500",
        b"x-ratelimit-remaining-tokens": b"500",
        b"x-ratelimit-reset-tokens": b"0s",
    }
    assert limit_headers((LimitState("key"),), 0.0) == []
