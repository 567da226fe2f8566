"""Which time of day counts for what is deleted."""

from gateway.observability.audit.believed_time import SLACK_S, TRIAL_S, BelievedTime
from tests.gateway.observability.audit.logs import DAY_S, NOON_S


def test_a_clock_that_was_set_back_is_believed_at_once() -> None:
    believed = BelievedTime(NOON_S).after(3600.0, NOON_S - 90 * DAY_S)
    assert believed == BelievedTime(NOON_S - 90 * DAY_S)
    assert believed.after(3600.0, NOON_S + 3600).time_s == NOON_S - 90 * DAY_S + 3600


def test_a_day_may_have_passed_while_nothing_ran() -> None:
    assert BelievedTime(NOON_S).after(0.0, NOON_S + SLACK_S) == BelievedTime(NOON_S + SLACK_S)
    assert BelievedTime(NOON_S).after(0.0, NOON_S + SLACK_S + 1).time_s == NOON_S


def test_a_clock_that_jumps_again_is_tried_anew() -> None:
    believed = BelievedTime(NOON_S).after(0.0, NOON_S + 500 * DAY_S)
    for ahead_s in (500 * DAY_S, 900 * DAY_S, 500 * DAY_S):
        believed = believed.after(TRIAL_S - 1, believed.time_s + TRIAL_S - 1 + ahead_s)
        assert believed.ahead_s
    assert not believed.after(TRIAL_S, believed.time_s + TRIAL_S + 500 * DAY_S).ahead_s
