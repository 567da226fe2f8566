"""Server-sent events, read and written (WHATWG HTML §9.2)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dispatch.recovery.interface import SpliceFailed

EVENT_BYTES = 512 * 1024
"""Longest event that is read: the last of a response repeats the whole answer, and JSON escapes it. Parsing
and writing it take 3 ms."""

EVENT_MARKS = 16_384
"""Commas and brackets of an event that is parsed: so many take 2 ms, and a long text has fewer."""

SHORT_EVENT_BYTES = 48
"""Of a continuation's bytes no more events are read than if each were so long, and ``SHORT_EVENTS`` more: no
event of an engine that says anything is shorter."""

SHORT_EVENTS = 64

DONE = b"data: [DONE]\n\n"
COMMENT = b":\n\n"

OVERLAP_BYTES = 3
"""The end of an event is searched for again so far in front of new bytes: it may lie across."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_BOM = b"\xef\xbb\xbf"
_LINE_BYTES = 12
"""Where lines are shorter on average, most of them are blank or say nothing: no JSON of an engine's events is
so short, and every second line of theirs is blank."""
_IDLE_LINES = re.compile(rb"(?<![^\r\n])(?!(?<=\r)\n)(?:(?!data|event)[^\r\n]*+(?>\r\n|\n|\r)){2,}+")
"""Lines in a row that are blank or hold a field that is not read. Possessive, so it takes linear time."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """``data`` is None for an event that holds comments and the like only."""

    name: str | None
    data: bytes | None

    @property
    def is_done(self) -> bool:
        return self.data is not None and self.data.strip() == b"[DONE]"

    def value(self) -> dict[str, Any] | None:
        """The JSON object in it; None when there is none, or one of more than ``EVENT_MARKS``."""
        data = self.data
        if not data or not data.lstrip().startswith(b"{"):
            return None
        if len(data) > EVENT_MARKS and sum(map(data.count, (b",", b"[", b"{"))) > EVENT_MARKS:
            return None
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None


def written(value: Any, name: str | None = None) -> bytes:
    """One event. Raises :class:`SpliceFailed` for a value that is nested too deeply to be written."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    try:
        return head + b"data: " + orjson.dumps(value) + b"\n\n"
    except orjson.JSONEncodeError:
        raise SpliceFailed("the engine that went on with the answer sent what cannot be written") from None


class ServerEventReader:
    """Events from bytes in pieces."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Every event that is whole now, read as it is asked for. Raises :class:`SpliceFailed` for one that
        is too long, and when they are too many."""
        self._held += data
        position = last_event_end(self._held, self._searched)
        whole = bytes(self._held[:position])
        del self._held[:position]
        self._searched = max(0, len(self._held) - OVERLAP_BYTES)
        if len(self._held) > EVENT_BYTES:
            raise SpliceFailed("an event of the engine that went on with the answer was too long")
        return _not_too_many(whole)

    def finish(self) -> list[ServerEvent]:
        """The bytes are over: what of an event was left."""
        rest, self._held = bytes(self._held), bytearray()
        return read_events(rest)


def _not_too_many(data: bytes) -> Iterator[ServerEvent]:
    most = SHORT_EVENTS + len(data) // SHORT_EVENT_BYTES
    for number, event in enumerate(each_event(data)):
        if number >= most:
            raise SpliceFailed("the engine that went on with the answer sent too many events")
        yield event


def last_event_end(data: bytes | bytearray, start: int) -> int:
    """Where the last event in ``data`` ends whose end is not before ``start``: behind two line ends; 0 when
    there is none. No line end is taken apart: after ``LF CR`` at the end of ``data`` an LF may follow."""
    end = 0
    for mark in (b"\n\n", b"\r\r", b"\n\r"):
        place = data.rfind(mark, start)
        if mark == b"\n\r" and place == len(data) - 2:
            place = data.rfind(mark, start, max(place, 0))
        if place >= 0:
            behind = place + len(mark)
            end = max(end, behind + (mark != b"\n\n" and data.startswith(b"\n", behind)))
    return end


def read_events(data: bytes) -> list[ServerEvent]:
    """The events in ``data``; see :func:`each_event`."""
    return list(each_event(data))


def each_event(data: bytes) -> Iterator[ServerEvent]:
    """The events in ``data``, whose last one need not be ended. Blank ones are left out; of events in a row
    that hold comments and the like only, one may stand for all."""
    if (data.count(b"\n") + data.count(b"\r")) * _LINE_BYTES > len(data):
        data = _IDLE_LINES.sub(_shortened, data)
    name: str | None = None
    lines: list[bytes] = []
    blank = True
    for line in (*_LINE_END.split(data.removeprefix(_BOM)), b""):
        if not line:
            if not blank:
                yield ServerEvent(name, b"\n".join(lines) if lines else None)
            name, lines, blank = None, [], True
            continue
        blank = False
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")


def _shortened(found: re.Match[bytes]) -> bytes:
    """What says as much as these lines: whether they end an event, and whether they hold a comment."""
    lines = found[0]
    if not lines.strip(b"\r\n"):
        return b"\n"
    ends = lines.startswith((b"\n", b"\r")) or _EVENT_END.search(lines) is not None
    return b"\n:\n\n" if ends else b":\n"
