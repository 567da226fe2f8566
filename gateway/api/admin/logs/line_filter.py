"""Which lines of a log are wanted. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from shared.process.logs import LEVELS

MOST_LINES = 10_000
"""That are told of what was before."""

USUAL_LINES = 100
TEXT_CHARS = 200

_MEMBERS = {"id": "id", "trace_id": "trace_id", "agent": "agent", "model": "model", "process": "process"}
"""Parameters that are members of a line, and compared as they are."""

SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "level": {"type": "string", "enum": list(LEVELS)},
    "logger": {"type": "string", "maxLength": TEXT_CHARS},
    **{name: {"type": "string", "maxLength": TEXT_CHARS} for name in _MEMBERS},
    "text": {"type": "string", "maxLength": TEXT_CHARS},
    "since": {"type": "number", "minimum": 0},
    "lines": {"type": "integer", "minimum": 0, "maximum": MOST_LINES},
    "follow": {"type": "string", "enum": ["true", "false"]},
}
"""What a query may hold."""

_OF_PROCESSES = b'"path":"/cluster/'
"""In the lines of requests with which processes of the gateway ask each other, also for these lines."""


class BadLineFilter(ValueError):
    """A parameter that is none, or its value. The message says what is wrong."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


@dataclass(frozen=True)
class LineFilter:
    """What a line has to have; nothing: each is wanted."""

    least: int = 0
    """Its level, of :data:`shared.process.logs.LEVELS`, at least."""
    logger: str = ""
    """Its logger, or what begins with it and a dot."""
    members: tuple[tuple[str, str], ...] = ()
    """These members have these values."""
    text: str = ""
    """This is somewhere in it, regardless of case."""
    since_s: float | None = None
    """Seconds since 1970."""
    lines: int = USUAL_LINES
    """So many of those that were before."""
    follow: bool = False

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "LineFilter":
        """Raises BadLineFilter."""
        for name, value in query.items():
            if name not in SCHEMAS:
                raise BadLineFilter(name[:100], f"there is no parameter {name[:100]!r} here")
            if len(value) > TEXT_CHARS:
                raise BadLineFilter(name, f"it may have {TEXT_CHARS} characters")
        level, follow = query.get("level", "debug"), query.get("follow", "false")
        if level not in LEVELS:
            raise BadLineFilter("level", f"it is one of {', '.join(LEVELS)}")
        if follow not in ("true", "false"):
            raise BadLineFilter("follow", "it is true or false")
        return cls(
            0 if level == "debug" else LEVELS[level],
            query.get("logger", ""),
            tuple((member, query[name]) for name, member in _MEMBERS.items() if name in query),
            query.get("text", "").casefold(),
            _number(query, "since"),
            _lines(query),
            follow == "true",
        )

    def takes(self, line: bytes) -> bool:
        """Whether a line, which is JSON, is wanted."""
        if _OF_PROCESSES in line and b'"status":200' in line:
            return False
        if not (self.least or self.logger or self.members or self.text or self.since_s is not None):
            return True
        if self.text and self.text not in line.decode(errors="replace").casefold():
            return False
        facts = orjson.loads(line)
        if self.least and LEVELS.get(facts.get("level"), self.least) < self.least:
            return False
        if self.logger and not f"{facts.get('logger', '')}.".startswith(f"{self.logger}."):
            return False
        if self.since_s is not None and time_of(facts) < self.since_s:
            return False
        return all(_has(facts, member, value) for member, value in self.members)


def _has(facts: Mapping[str, Any], member: str, value: str) -> bool:
    """An agent or a model is also that of the line's deployment or alias."""
    if facts.get(member) == value:
        return True
    if member == "agent":
        return str(facts.get("deployment", "")).partition("/")[0] == value
    if member == "model":
        return value in (facts.get("alias"), facts.get("target"))
    return False


def time_of(facts: Mapping[str, Any]) -> float:
    """When a line was written, in seconds since 1970; 0 where it does not say."""
    try:
        return datetime.fromisoformat(str(facts.get("timestamp"))).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _number(query: Mapping[str, str], name: str) -> float | None:
    if name not in query:
        return None
    try:
        value = float(query[name])
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise BadLineFilter(name, "it is a number of seconds since 1970")
    return value


def _lines(query: Mapping[str, str]) -> int:
    text = query.get("lines", str(USUAL_LINES))
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) <= MOST_LINES):
        raise BadLineFilter("lines", f"it is a whole number, at most {MOST_LINES}")
    return int(text)
