"""What is to happen when, under the virtual clock."""

from gateway.tools.simulate.calendar import Calendar


def happen_all(calendar: Calendar) -> None:
    while calendar:
        happen, subject = calendar.take()
        happen(subject, calendar.now_s)


def test_events_come_in_order_of_their_times_then_of_their_planning() -> None:
    calendar, seen = Calendar(), list[tuple[str, float]]()
    for name, at_s in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        calendar.plan(at_s, lambda subject, now: seen.append((subject, now)), name)
    assert calendar.next_s == 1.0
    happen_all(calendar)
    assert seen == [("first", 1.0), ("second", 1.0), ("late", 2.0)]
    assert calendar.time() == 2.0


def test_timers_are_events_that_can_be_called_off() -> None:
    calendar, seen = Calendar(), list[float]()
    calendar.call_at(3.0, lambda: seen.append(calendar.time()))
    calendar.call_at(2.0, lambda: seen.append(-1.0)).cancel()
    calendar.call_soon(lambda: seen.append(calendar.time()))
    happen_all(calendar)
    assert seen == [0.0, 3.0]


def test_a_time_that_has_passed_is_now() -> None:
    calendar = Calendar()
    calendar.now_s = 5.0
    calendar.call_at(1.0, lambda: None)
    assert calendar.next_s == 5.0
