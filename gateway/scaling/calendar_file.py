"""The calendar of known events: a TOML file, read again when it changes. A bad one changes nothing.

::

    zone = "Europe/Berlin"          # of times that name none; else UTC

    [[event]]
    name = "launch"
    starts = 2026-12-01T09:00:00    # or with Z, or +01:00
    ends = 2026-12-01T18:00:00
    models = ["llama*"]             # else all
    factor = 3.0                    # so many times as much as is usual
    replicas = 8                    # at least so many
    every = "week"                  # or "day"; else it is once
    until = 2027-03-01T00:00:00
"""

import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.scheduling.scaling.events import KnownEvent

MOST_BYTES = 1 << 20
MOST_EVENTS = 1000
_DAYS = {"day": 1, "week": 7}
_log = structlog.get_logger(__name__)

_Name = Annotated[str, Field(min_length=1, max_length=500)]


class BadCalendar(Exception):
    """What is wrong with the file, and where."""


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    starts: datetime
    ends: datetime
    models: Annotated[list[_Name], Field(min_length=1, max_length=100)] = ["*"]
    classes: Annotated[list[_Name] | None, Field(min_length=1, max_length=100)] = None
    factor: Annotated[float | None, Field(gt=0, le=1000)] = None
    replicas: Annotated[int | None, Field(ge=1, le=100_000)] = None
    every: Literal["day", "week"] | None = None
    until: datetime | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "_Event":
        if self.factor is None and self.replicas is None:
            raise ValueError("it has neither factor nor replicas")
        if self.until is not None and self.every is None:
            raise ValueError("until is of events that are repeated: every is missing")
        return self


class _Calendar(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    zone: str = "UTC"
    event: Annotated[list[_Event], Field(max_length=MOST_EVENTS)] = []


def read_calendar(data: bytes) -> list[KnownEvent]:
    """Raises BadCalendar."""
    try:
        said = _Calendar.model_validate(tomllib.loads(data.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadCalendar(f"it is no TOML: {error}") from None
    except ValidationError as error:
        raise BadCalendar("; ".join(_mistake(each) for each in error.errors()[:5])) from None
    zone = _zone(said.zone)
    return [_known(number, each, zone) for number, each in enumerate(said.event, 1)]


class CalendarFile:
    """Used from one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._missing = False

    def read(self) -> Sequence[KnownEvent] | None:
        """The events where the file has changed since it was read last; None: it has not, or cannot be used,
        which is logged once. What was read before then stays. Waits for the disk."""
        try:
            about = self._path.stat()
            seen = (about.st_mtime_ns, about.st_size, about.st_ino)
            if seen == self._seen:
                return None
            if about.st_size > MOST_BYTES:
                raise BadCalendar(f"it has more than {MOST_BYTES:,} bytes")
            data = self._path.read_bytes()
            self._seen, self._missing = seen, False
            events = read_calendar(data)
        except OSError as error:
            if not self._missing:
                _log.warning("scaling_calendar_unusable", path=str(self._path), error=error.strerror)
            self._missing, self._seen = True, None
            return None
        except BadCalendar as error:
            self._seen = seen
            _log.warning("scaling_calendar_unusable", path=str(self._path), error=str(error))
            return None
        _log.info("scaling_calendar_read", path=str(self._path), events=len(events))
        return events


def _known(number: int, said: _Event, zone: tzinfo) -> KnownEvent:
    where = f"event {number} ({said.name})"
    starts, ends = (_zoned(each, zone) for each in (said.starts, said.ends))
    if ends <= starts:
        raise BadCalendar(f"{where}: it ends before it starts")
    days = None if said.every is None else _DAYS[said.every]
    if days is not None and (ends - starts).total_seconds() > days * 86_400:
        raise BadCalendar(f"{where}: it is longer than a {said.every}, after which it is repeated")
    until = None if said.until is None else _zoned(said.until, zone)
    about = (said.factor, said.replicas, days, until)
    return KnownEvent(said.name, starts, ends, said.models, said.classes, *about)


def _zoned(when: datetime, zone: tzinfo) -> datetime:
    return when if when.tzinfo is not None else when.replace(tzinfo=zone)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadCalendar(f"zone: no time zone is called {name[:100]!r} here") from None


def _mistake(error: object) -> str:
    assert isinstance(error, dict)
    places = [each + 1 if isinstance(each, int) else each for each in error["loc"]]
    where = " ".join(str(each) for each in places)
    return f"{where}: {error['msg']}" if where else str(error["msg"])
