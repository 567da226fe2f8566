"""When workers are started, again and for the first time."""

from gateway.runtime.workers.restarts import FIRST_S, FIRST_TRIES, MOST_S, STEADY_S, RestartSchedule


def serving(count: int) -> RestartSchedule:
    schedule = RestartSchedule(count, 0.0)
    for index in range(count):
        schedule.started(index)
        schedule.ready(index, 0.0)
    for index in range(count):
        schedule.started(index)
    return schedule


def test_the_others_wait_for_the_first() -> None:
    schedule = RestartSchedule(3, 5.0)
    assert (schedule.due(5.0), schedule.next_due_s()) == ([0], 5.0)
    schedule.started(0)
    assert (schedule.due(9.0), schedule.next_due_s(), schedule.began) == ([], None, False)
    schedule.ready(0, 9.0)
    assert (schedule.due(9.0), schedule.began) == ([1, 2], True)


def test_waits_double_up_to_the_most_and_begin_anew_after_a_steady_time() -> None:
    schedule, now, waits = serving(2), 0.0, []
    for _ in range(9):
        waits.append(schedule.ended(1, -9, now))
        now += waits[-1]
        assert schedule.due(now) == [1]
        schedule.started(1)
        schedule.ready(1, now)
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits[-1] == MOST_S
    assert schedule.ended(1, 1, now + STEADY_S) == FIRST_S
    assert schedule.verdict is None


def test_what_the_very_first_says_is_wrong_is_wrong_for_all() -> None:
    schedule = RestartSchedule(2, 0.0)
    schedule.started(0)
    schedule.ended(0, 2, 0.0)
    assert schedule.verdict == 2


def test_one_that_is_killed_before_any_served_gets_some_more_tries() -> None:
    schedule = RestartSchedule(2, 0.0)
    for attempt in range(1, FIRST_TRIES + 1):
        assert schedule.verdict is None
        schedule.started(0)
        schedule.ended(0, -9, float(attempt))
    assert schedule.verdict == 1


def test_once_one_has_served_no_error_is_final() -> None:
    schedule = serving(2)
    for _ in range(3 * FIRST_TRIES):
        schedule.ended(0, 2, 100.0)
    assert schedule.verdict is None
