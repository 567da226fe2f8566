"""Times of day as text in UTC, for lines of logs of which many are written in one second. Pure."""

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=16)
def text_of_second(second: int) -> str:
    """``2026-11-21T20:30:00``, of whole seconds since 1970."""
    return datetime.fromtimestamp(second, UTC).isoformat()[:-6]


def to_microseconds(time_ns: int) -> str:
    """``2026-11-21T20:30:00.123456Z`` of nanoseconds since 1970, cut there; in a whole second without a
    fraction."""
    second = time_ns // 1_000_000_000
    microseconds = time_ns // 1000 - second * 1_000_000
    text = text_of_second(second)
    return f"{text}.{microseconds:06d}Z" if microseconds else f"{text}Z"


_last_milliseconds = (-1, "")
"""What :func:`to_milliseconds` was asked last, since 1970, and its text: many lines are of one moment."""


def to_milliseconds(time_s: float) -> str:
    """``2026-11-21T20:30:00.123Z`` of seconds since 1970. Sorts as time does."""
    global _last_milliseconds
    milliseconds = round(time_s * 1e6) // 1000
    last = _last_milliseconds
    if milliseconds == last[0]:
        return last[1]
    second = milliseconds // 1000
    text = f"{text_of_second(second)}.{milliseconds - second * 1000:03d}Z"
    _last_milliseconds = milliseconds, text
    return text
