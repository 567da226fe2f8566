"""Which time of day counts for what is deleted."""

from gateway.observability.audit.trusted_time import SLACK_S, TRIAL_S, TrustedTime
from tests.gateway.observability.audit.logs import DAY_S, NOON_S


def test_a_clock_that_was_set_back_is_believed_at_once() -> None:
    trusted_time = TrustedTime(NOON_S).after(3600.0, NOON_S - 90 * DAY_S)
    assert trusted_time == TrustedTime(NOON_S - 90 * DAY_S)
    assert trusted_time.after(3600.0, NOON_S + 3600).time_s == NOON_S - 90 * DAY_S + 3600


def test_a_day_may_have_passed_while_nothing_ran() -> None:
    assert TrustedTime(NOON_S).after(0.0, NOON_S + SLACK_S) == TrustedTime(NOON_S + SLACK_S)
    assert TrustedTime(NOON_S).after(0.0, NOON_S + SLACK_S + 1).time_s == NOON_S


def test_a_clock_that_jumps_again_is_tried_anew() -> None:
    trusted_time = TrustedTime(NOON_S).after(0.0, NOON_S + 500 * DAY_S)
    for ahead_s in (500 * DAY_S, 900 * DAY_S, 500 * DAY_S):
        trusted_time = trusted_time.after(TRIAL_S - 1, trusted_time.time_s + TRIAL_S - 1 + ahead_s)
        assert trusted_time.ahead_s
    assert not trusted_time.after(TRIAL_S, trusted_time.time_s + TRIAL_S + 500 * DAY_S).ahead_s
