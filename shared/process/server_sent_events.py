"""Server-sent events, read from bytes (WHATWG HTML §9.2.6).

Work on bytes is done by compiled code; Python's own is a few operations for each event.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson

from shared.process.frozen import frozen

EVENT_BYTES = 4 * 1024 * 1024
"""Longest event that is read: the last of a response repeats the whole answer, and JSON escapes it."""

OVERLAP_BYTES = 3
"""The end of an event is searched for again so far in front of new bytes: it may lie across."""

_BOM = b"\xef\xbb\xbf"
_LINE_BYTES = 12
"""Where lines are shorter on average, most of them are blank or say nothing: no JSON of an engine's events is
so short, and every second line of theirs is blank."""
_IDLE_LINES = re.compile(rb"(?:^(?!data|event)[^\n]*\n){2}", re.MULTILINE)
"""Two lines in a row that are blank or hold a field that is not read. An expression for all of them in a row
would need a possessive group, which Python before 3.11.5 matches wrongly (python/cpython issue 106052)."""
_READ_LINE = re.compile(rb"^(?:data|event)", re.MULTILINE)


@frozen
class ServerSentEvent:
    """``data`` is None for an event that holds comments and the like only."""

    data: bytes | None
    name: str | None = None

    @property
    def is_done(self) -> bool:
        return self.data is not None and self.data.strip() == b"[DONE]"

    def value(self) -> dict[str, Any] | None:
        """The JSON object in it; None when there is none."""
        if not self.data or not self.data.lstrip().startswith(b"{"):
            return None
        try:
            value = orjson.loads(self.data)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None


class EventTooLong(Exception):
    """An event is longer than its reader may hold."""


class ServerSentEventReader:
    """Reads events from pieces of bytes. Holds at most ``limit_bytes`` of an unfinished event."""

    __slots__ = ("_held", "_limit_bytes", "_searched")

    def __init__(self, limit_bytes: int = EVENT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        """Every event that is whole now, made as it is asked for. Raises EventTooLong at once."""
        if not self._held and data[:6] == b"data: " and data[-2:] == b"\n\n":  # tokens, nearly always
            texts = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(texts) and b"\r" not in data:
                return map(ServerSentEvent, texts)
        self._held += data
        position = last_event_end(self._held, self._searched)
        whole = bytes(self._held[:position])
        del self._held[:position]
        self._searched = max(0, len(self._held) - OVERLAP_BYTES)
        if len(self._held) > self._limit_bytes:
            raise EventTooLong(f"an event is longer than {self._limit_bytes} bytes")
        return each_event(whole)

    def finish(self) -> Iterator[ServerSentEvent]:
        """The bytes are over: what of an event was left."""
        rest, self._held = bytes(self._held), bytearray()
        return each_event(rest)


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


def each_event(data: bytes) -> Iterator[ServerSentEvent]:
    """The events in ``data``, whose last one need not be ended. Blank ones are left out; of events in a row
    that hold comments and the like only, one may stand for all."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data = data.removeprefix(_BOM)
    if data.count(b"\n") * _LINE_BYTES > len(data):
        data = _without_idle_lines(data)
    for text in data.split(b"\n\n"):
        if text.startswith(b"data:") and b"\n" not in text:
            yield ServerSentEvent(text[5:].removeprefix(b" "))
        elif lines := text.strip(b"\n"):
            yield _event_of(lines)


def _event_of(text: bytes) -> ServerSentEvent:
    name: str | None = None
    data: list[bytes] = []
    for line in text.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
    return ServerSentEvent(b"\n".join(data) if data else None, name)


def _without_idle_lines(data: bytes) -> bytes:
    """Shorten lines in a row that are blank or hold a field that is not read. Takes linear time."""
    kept, position = [], 0
    ended = data.rfind(b"\n") + 1  # the last line may go on
    while idle := _IDLE_LINES.search(data, position):
        begins = idle.start()
        read = _READ_LINE.search(data, idle.end())
        kept.append(data[position:begins])
        position = ended if read is None else read.start()
        kept.append(_shortened(data[begins:position]))
    return b"".join((*kept, data[position:]))


def _shortened(lines: bytes) -> bytes:
    """What says as much as these lines: whether they end an event, and whether they hold a comment."""
    if not lines.strip(b"\n"):
        return b"\n"
    return b"\n:\n\n" if lines.startswith(b"\n") or b"\n\n" in lines else b":\n"
