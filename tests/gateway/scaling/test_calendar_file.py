"""The calendar is read, read again when it changes, and never lost to a mistake."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from gateway.scaling.calendar_file import BadCalendar, CalendarFile, read_calendar

GOOD = b"""
zone = "Europe/Berlin"
[[event]]
name = "launch"
starts = 2026-12-01T09:00:00
ends = 2026-12-01T18:00:00
models = ["llama*"]
factor = 3.0
[[event]]
name = "every Monday"
starts = 2026-12-07T08:00:00Z
ends = 2026-12-07T10:00:00Z
classes = ["l4"]
replicas = 4
every = "week"
until = 2027-03-01T00:00:00Z
"""


def test_times_are_of_the_zone_unless_they_name_one() -> None:
    launch, weekly = read_calendar(GOOD)
    assert launch.starts == datetime(2026, 12, 1, 8, tzinfo=UTC)
    assert (launch.factor, launch.replicas, launch.models, launch.every_days) == (3.0, None, ["llama*"], None)
    assert weekly.starts == datetime(2026, 12, 7, 8, tzinfo=UTC)
    assert (weekly.every_days, weekly.classes, weekly.replicas) == (7, ["l4"], 4)
    assert read_calendar(b"") == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[[event", "no TOML"),
        (b"\xff", "no TOML"),
        (b'zone = "Moon/Base"', "zone: no time zone is called 'Moon/Base'"),
        (GOOD.replace(b"factor = 3.0", b""), "event 1: .*neither factor nor replicas"),
        (GOOD.replace(b"factor", b"faktor"), "event 1 faktor: Extra inputs"),
        (GOOD.replace(b"factor = 3.0", b"factor = -1"), "event 1 factor: .*greater than 0"),
        (GOOD.replace(b"T18:00", b"T08:00"), r"event 1 \(launch\): it ends before it starts"),
        (GOOD.replace(b'"week"', b'"month"'), "event 2 every: "),
        (GOOD.replace(b'every = "week"', b""), "event 2: .*every is missing"),
        (
            GOOD.replace(b"2026-12-07T10", b"2026-12-17T10"),
            r"event 2 \(every .*\): it is longer than a week",
        ),
        (GOOD.replace(b"2026-12-01T09:00:00", b'"at nine"'), "event 1 starts: "),
    ],
)
def test_a_mistake_is_told_with_its_place(data: bytes, says: str) -> None:
    with pytest.raises(BadCalendar, match=says):
        read_calendar(data)


def test_it_is_read_again_when_it_changes_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "calendar.toml"
    path.write_bytes(GOOD)
    calendar = CalendarFile(path)
    assert len(calendar.read() or ()) == 2
    assert calendar.read() is None
    with structlog.testing.capture_logs() as logs:
        path.write_bytes(b"[[event")
        assert (calendar.read(), calendar.read()) == (None, None)
        path.unlink()
        assert (calendar.read(), calendar.read()) == (None, None)
        path.write_bytes(GOOD)
        os.utime(path, (1.0, 1.0))
        assert len(calendar.read() or ()) == 2
    assert [each["event"] for each in logs] == [
        "scaling_calendar_unusable",
        "scaling_calendar_unusable",
        "scaling_calendar_read",
    ]
