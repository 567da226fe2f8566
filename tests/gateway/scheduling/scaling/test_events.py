"""When events are, and what they want."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from gateway.scheduling.scaling.events import KnownEvent, demand_at, is_unusual

BERLIN = ZoneInfo("Europe/Berlin")


def s(*when: int) -> float:
    return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


ONCE = KnownEvent(
    "launch", datetime(2026, 3, 27, 9, tzinfo=UTC), datetime(2026, 3, 27, 10, tzinfo=UTC), factor=3
)


def test_an_event_is_from_its_start_until_its_end() -> None:
    assert ONCE.at(s(2026, 3, 27, 8, 59)) is None
    assert ONCE.at(s(2026, 3, 27, 9)) == s(2026, 3, 27, 9)
    assert ONCE.at(s(2026, 3, 27, 10)) is None


def test_one_of_every_day_stays_at_its_hour_when_the_clocks_change() -> None:
    begins, ends = datetime(2026, 3, 27, 9, tzinfo=BERLIN), datetime(2026, 3, 27, 10, tzinfo=BERLIN)
    daily = KnownEvent(
        "opening", begins, ends, replicas=2, every_days=1, until=datetime(2026, 4, 1, tzinfo=UTC)
    )
    assert daily.at(s(2026, 3, 28, 8, 30)) == s(2026, 3, 28, 8)
    assert daily.at(s(2026, 3, 30, 7, 30)) == s(2026, 3, 30, 7), "an hour earlier in UTC"
    assert daily.at(s(2026, 3, 30, 8, 30)) is None
    assert daily.at(s(2026, 3, 26, 8, 30)) is None
    assert daily.at(s(2026, 4, 2, 7, 30)) is None


def test_one_of_every_week_may_last_over_midnight() -> None:
    begins, ends = datetime(2026, 3, 27, 22, tzinfo=UTC), datetime(2026, 3, 28, 4, tzinfo=UTC)
    weekly = KnownEvent("batch", begins, ends, factor=2.0, every_days=7)
    assert weekly.at(s(2026, 4, 4, 3)) == s(2026, 4, 3, 22)
    assert weekly.at(s(2026, 4, 3, 3)) is None


def test_what_several_want_together() -> None:
    some = KnownEvent("more", ONCE.starts, ONCE.ends, ["llama*"], ["l4"], factor=2.0, replicas=4)
    other = KnownEvent("kept", ONCE.starts, ONCE.ends, replicas=2)
    found = demand_at([ONCE, some, other], "llama-3", "l4", s(2026, 3, 27, 9, 30))
    assert (found.factor, found.of_class, found.together) == (6.0, 4, 2)
    assert found.names == ("launch", "more", "kept")
    assert demand_at([some], "qwen", "l4", s(2026, 3, 27, 9, 30)).began_s is None
    assert demand_at([some], "llama", "h100", s(2026, 3, 27, 9, 30)).factor == 1.0


def test_only_what_is_not_repeated_and_changes_the_load_is_no_pattern() -> None:
    at_s = s(2026, 3, 27, 9, 30)
    assert is_unusual([ONCE], "m", "l4", at_s)
    assert not is_unusual([KnownEvent("kept", ONCE.starts, ONCE.ends, replicas=2)], "m", "l4", at_s)
    daily = KnownEvent("daily", ONCE.starts, ONCE.ends, factor=2.0, every_days=1)
    assert not is_unusual([daily], "m", "l4", at_s)
