"""Server-sent events, read and written (WHATWG HTML §9.2)."""

import re
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.continuation.errors import SpliceFailed

EVENT_BYTES = 4 * 1024 * 1024
"""Longest event that is read: the last of a response repeats the whole answer, and JSON escapes it."""

DONE = b"data: [DONE]\n\n"
COMMENT = b":\n\n"

_LINE_END = re.compile(rb"\r\n|\n|\r")
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_OVERLAP_BYTES = 3
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """``data`` is None for an event that holds comments and the like only."""

    name: str | None
    data: bytes | None

    @property
    def is_done(self) -> bool:
        return self.data is not None and self.data.strip() == b"[DONE]"

    def value(self) -> dict[str, Any] | None:
        """The JSON object in it; None when there is none."""
        try:
            value = orjson.loads(self.data or b"")
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


class EventReader:
    """Events from bytes in pieces."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[Event]:
        """Every event that is whole now. Raises :class:`SpliceFailed` for one that is too long."""
        self._held += data
        events, position = [], 0
        for found in _EVENT_END.finditer(self._held, self._searched):
            if found.end() == len(self._held) and found[0].endswith(b"\n\r"):
                break  # the LF that belongs to this CR is on its way
            events += read_events(bytes(self._held[position : found.end()]))
            position = found.end()
        del self._held[:position]
        self._searched = max(0, len(self._held) - _OVERLAP_BYTES)
        if len(self._held) > EVENT_BYTES:
            raise SpliceFailed("an event of the engine that went on with the answer was too long")
        return events

    def finish(self) -> list[Event]:
        """The bytes are over: what of an event was left."""
        rest, self._held = bytes(self._held), bytearray()
        return read_events(rest)


def read_events(data: bytes) -> list[Event]:
    """The events in ``data``, whose last one need not be ended. Blank ones are left out."""
    events: list[Event] = []
    name: str | None = None
    lines: list[bytes] = []
    blank = True
    for line in (*_LINE_END.split(data.removeprefix(_BOM)), b""):
        if not line:
            if not blank:
                events.append(Event(name, b"\n".join(lines) if lines else None))
            name, lines, blank = None, [], True
            continue
        blank = False
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
    return events
