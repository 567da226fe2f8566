"""Reads token usage out of responses as they pass, and takes out the usage chunk nobody asked for.

Events are read by :mod:`agent.requests.event_usage`. Usage objects, and what engines write at paths of their
own, are read by :mod:`agent.requests.usage_counts` when the answer is over.
"""

from enum import Enum, auto
from functools import lru_cache
from typing import Protocol

import orjson

from agent.requests.event_usage import EventUsage
from agent.requests.usage_counts import (
    USAGE_HEADERS,
    native_usage,
    read_usage,
    usage_from,
    usage_in_headers,
    usage_of_document,
)
from shared.protocol.messages import Headers, Usage, UsageMode

KIB = 1024

JSON_HEAD_BYTES = 8 * KIB
JSON_TAIL_BYTES = 64 * KIB
"""Of a plain JSON answer the first and last so many bytes are remembered: usage is among the first or,
mostly, the last members, and what follows it is small."""

JSON_LINES = frozenset(
    ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
)
"""Types of streams of JSON documents, one a line (Ollama's)."""


class UsageReader(Protocol):
    """Sees a response's body go by."""

    @property
    def takes_whole_events(self) -> bool:
        """The next bytes may pass it by, if they are whole events that do not name usage."""

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes of the body; gives those to pass on now (perhaps none)."""

    def finish(self) -> bytes:
        """The body is over: gives what was held back."""

    def usage(self) -> Usage | None:
        """What the engine has said so far, or None."""


class _Kind(Enum):
    """How usage is read out of a body, by its type."""

    EVENTS = auto()
    LINES = auto()
    DOCUMENT = auto()
    OTHER = auto()


_DOCUMENT = _Kind.DOCUMENT
"""A member of an enumeration for the path of every request: a global is found faster."""


@lru_cache(maxsize=64)
def _kind_of(content_type: str) -> _Kind:
    """Remembered, because few types are ever used, and the same all the time."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return _Kind.EVENTS
    if kind in JSON_LINES:
        return _Kind.LINES
    return _Kind.DOCUMENT if kind == "application/json" or kind.endswith("+json") else _Kind.OTHER


def reader_for(mode: UsageMode, headers: Headers) -> UsageReader:
    """The reader for a response with ``headers`` (lower-case names)."""
    fields = dict(headers)  # of several with one name the last counts
    kind = _kind_of(fields.get("content-type", ""))
    coding = fields.get("content-encoding")
    counted = None if USAGE_HEADERS.isdisjoint(fields) else usage_in_headers(headers)
    if coding is not None and coding.strip().lower() not in ("", "identity"):
        return PassThrough(counted)  # engines are asked not to; what one compresses all the same passes
    if kind is _DOCUMENT:
        return JsonUsage(counted)
    if kind is _Kind.EVENTS:
        events = EventUsage(strip=mode is UsageMode.STRIP)
        return events if mode is not UsageMode.NONE else NativeUsage(events, counted)
    return NativeUsage(PassThrough(), counted) if kind is _Kind.LINES else PassThrough(counted)


class PassThrough:
    """For bodies that say nothing of usage; what the head said of it may be known."""

    takes_whole_events = False

    def __init__(self, counted: Usage | None = None) -> None:
        self._counted = counted

    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""

    def usage(self) -> Usage | None:
        return self._counted


class TailReader:
    """The last :data:`JSON_TAIL_BYTES` of a body, or all of it."""

    __slots__ = ("_tail", "whole")

    def __init__(self) -> None:
        self._tail = bytearray()
        self.whole = True
        """Nothing was left out."""

    def add(self, data: bytes) -> None:
        self._tail += data
        if len(self._tail) > JSON_TAIL_BYTES:
            self.whole = False
        if len(self._tail) > 2 * JSON_TAIL_BYTES:
            del self._tail[:-JSON_TAIL_BYTES]

    def read(self) -> bytes:
        return bytes(self._tail[-JSON_TAIL_BYTES:])


class NativeUsage:
    """For a stream in a shape of its engine's own, beside what ``inner`` does with it."""

    takes_whole_events = False

    def __init__(self, inner: UsageReader, counted: Usage | None = None) -> None:
        self._inner = inner
        self._counted = counted
        self._tail = TailReader()

    def feed(self, data: bytes) -> bytes:
        self._tail.add(data)
        return self._inner.feed(data)

    def finish(self) -> bytes:
        return self._inner.finish()

    def usage(self) -> Usage | None:
        found = self._inner.usage() or native_usage(self._tail.read(), whole=self._tail.whole)
        return found or self._counted


class JsonUsage:
    """For an answer that is one JSON document."""

    __slots__ = ("_counted", "_head", "_tail")

    takes_whole_events = False

    def __init__(self, counted: Usage | None = None) -> None:
        self._counted = counted
        self._head = b""
        """How a document begins of which not all is remembered."""
        self._tail: bytes | bytearray = b""
        """Its first piece itself, which is mostly all of it, until there are more."""

    def feed(self, data: bytes) -> bytes:
        tail = self._tail
        if not tail:
            tail = data
        elif type(tail) is bytes:
            tail = bytearray(tail) + data
        else:
            tail += data
        if len(tail) > 2 * JSON_TAIL_BYTES:
            if not self._head:
                self._head = bytes(tail[:JSON_HEAD_BYTES])
            tail = tail[-JSON_TAIL_BYTES:]
        self._tail = tail
        return data

    def finish(self) -> bytes:
        return b""

    def usage(self) -> Usage | None:
        tail = bytes(self._tail)
        if not self._head and len(tail) <= JSON_TAIL_BYTES:
            # Outermost members first: in what a model calls tools with may be anything.
            try:
                document = orjson.loads(tail)
            except orjson.JSONDecodeError:
                return read_usage(tail) or self._counted
            usage = usage_from(document.get("usage")) if isinstance(document, dict) else None
            return usage or usage_of_document(document) or read_usage(tail) or self._counted
        head, tail = self._head or tail[:JSON_HEAD_BYTES], tail[-JSON_TAIL_BYTES:]
        found = read_usage(tail) or read_usage(head)
        return found or native_usage(tail, whole=False) or self._counted
