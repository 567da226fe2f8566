"""Server-sent events of an engine that goes on with an answer, read within bounds, and events written."""

from collections.abc import Iterator
from typing import Any

import orjson

from shared.process.server_sent_events import EventTooLong, ServerSentEvent, ServerSentEventReader


class SpliceFailed(Exception):
    """What the next engine sent cannot be joined to the answer soundly. Its text is the reason."""


EVENT_BYTES = 512 * 1024
"""Longest event that is read: the last of a response repeats the whole answer, and JSON escapes it. Parsing
and writing it take 3 ms."""

EVENT_MARKS = 16_384
"""Commas and brackets of an event that is parsed: so many take 2 ms, and a long text has fewer."""

SHORT_EVENT_BYTES = 48
"""Limits the events that are read of a continuation: one for each so many bytes, and ``SHORT_EVENTS`` more.
No event with content is shorter."""

SHORT_EVENTS = 64

DONE = b"data: [DONE]\n\n"
COMMENT = b":\n\n"


class ContinuationEvents:
    """The events of a continuation, from bytes in pieces."""

    def __init__(self) -> None:
        self._reader = ServerSentEventReader(EVENT_BYTES)

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        """Every event that is whole now, read as it is asked for. Raises :class:`SpliceFailed` for one that
        is too long or has too many values, and when they are too many."""
        try:
            events = self._reader.feed(data)
        except EventTooLong:
            raise SpliceFailed("an event of the engine that went on with the answer was too long") from None
        most = SHORT_EVENTS + len(data) // SHORT_EVENT_BYTES
        for number, event in enumerate(events):
            if number >= most:
                raise SpliceFailed("the engine that went on with the answer sent too many events")
            if event.data is not None and len(event.data) > EVENT_MARKS:
                _check_values(event.data)
            yield event

    def finish(self) -> Iterator[ServerSentEvent]:
        """The bytes are over: what of an event was left."""
        return self._reader.finish()


def _check_values(data: bytes) -> None:
    if sum(map(data.count, (b",", b"[", b"{"))) > EVENT_MARKS:
        raise SpliceFailed("an event of the engine that went on with the answer has too many values")


def written(value: Any, name: str | None = None) -> bytes:
    """One event. Raises :class:`SpliceFailed` for a value that is nested too deeply to be written."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    try:
        return head + b"data: " + orjson.dumps(value) + b"\n\n"
    except orjson.JSONEncodeError:
        raise SpliceFailed("the engine that went on with the answer sent what cannot be written") from None
