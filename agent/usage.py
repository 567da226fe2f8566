"""Reads token usage out of responses as they pass, and takes out the usage chunk nobody asked for.

Tokens are never parsed: an event is looked at with two regular expressions, and JSON is read only of an event
that looks like a usage chunk, and of the last usage object of a response when it is over. In a JSON string
quotes are escaped, so text that a model writes cannot look like the member ``"usage": {``.

What engines tell at paths of their own is read from the end of the answer when it is over
(:mod:`agent.native_usage`).

What is held back, and how long: in STRIP mode the bytes of one unfinished event that may yet turn out to be
a usage chunk, at most ``HELD_BYTES``. A finished event is passed on or taken out at once; an unfinished one
that has a choice in it is passed on at once. In the other modes nothing is held back.
"""

import json
import re
from collections import deque
from typing import Any, Protocol

import orjson

from agent.native_usage import native_usage, usage_in_headers
from shared.messages import Headers, Usage, UsageMode

KIB = 1024

HELD_BYTES = 64 * KIB
"""Longest unfinished event that is held back: a usage chunk is below 1 KiB, so this is no usage chunk."""

EVENT_TAIL_BYTES = 64 * KIB
"""Of an unfinished event so much is remembered (twice at the most): usage stands at the end of an event that
repeats the whole answer, as the last one of ``/v1/responses`` does."""

JSON_HEAD_BYTES = 8 * KIB
JSON_TAIL_BYTES = 64 * KIB
"""Of a plain JSON answer the first and last so many bytes are remembered: usage is among the first or,
mostly, the last members, and what follows it is small."""

JSON_LINES = frozenset(
    ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
)
"""Types of streams of JSON documents, one a line (Ollama's)."""

USAGE_OBJECT_CHARS = 8 * KIB
"""Longest usage object that is read."""

COUNT_MAX = 2**53

_USAGE_MEMBER = re.compile(rb'"usage"\s*:\s*\{')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_A_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*[^\s\]]')
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
"""Two line ends. Atomic, so that one CRLF is never read as two."""
_OVERLAP_BYTES = 3
"""An event's end of four bytes may have begun so many bytes before the new ones."""

_DECODER = json.JSONDecoder()


class UsageReader(Protocol):
    """Sees a response's body go by."""

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes of the body; gives those to pass on now (perhaps none)."""

    def finish(self) -> bytes:
        """The body is over: gives what was held back."""

    def usage(self) -> Usage | None:
        """What the engine has said so far, or None."""


def reader_for(mode: UsageMode, headers: Headers) -> UsageReader:
    """The reader for a response with ``headers`` (lower-case names)."""
    values = dict(headers)
    counted = usage_in_headers(headers)
    if values.get("content-encoding", "").strip().lower() not in ("", "identity"):
        return PassThrough(
            counted
        )  # engines are asked not to; what one compresses all the same passes as it is
    kind = values.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        events = EventUsage(strip=mode is UsageMode.STRIP)
        return events if mode is not UsageMode.NONE else NativeUsage(events, counted)
    if kind in JSON_LINES:
        return NativeUsage(PassThrough(), counted)
    if kind == "application/json" or kind.endswith("+json"):
        return JsonUsage(counted)
    return PassThrough(counted)


class PassThrough:
    """For bodies that say nothing of usage; what the head said of it may be known."""

    def __init__(self, counted: Usage | None = None) -> None:
        self._counted = counted

    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""

    def usage(self) -> Usage | None:
        return self._counted


class Tail:
    """The end of a body, :data:`JSON_TAIL_BYTES` at least, or all of it."""

    __slots__ = ("_pieces", "_size_bytes", "whole")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0
        self.whole = True
        """Nothing was let go."""

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size_bytes += len(data)
        while self._size_bytes - len(self._pieces[0]) >= JSON_TAIL_BYTES:
            self._size_bytes -= len(self._pieces.popleft())
            self.whole = False

    def read(self) -> bytes:
        """It, in one piece."""
        return b"".join(self._pieces)


class NativeUsage:
    """For a stream in a shape of its engine's own, beside what ``inner`` does with it."""

    def __init__(self, inner: UsageReader, counted: Usage | None = None) -> None:
        self._inner = inner
        self._counted = counted
        self._tail = Tail()

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

    def __init__(self, counted: Usage | None = None) -> None:
        self._head = bytearray()
        self._tail = Tail()
        self._counted = counted

    def feed(self, data: bytes) -> bytes:
        if len(self._head) < JSON_HEAD_BYTES:
            self._head += data[: JSON_HEAD_BYTES - len(self._head)]
        self._tail.add(data)
        return data

    def finish(self) -> bytes:
        return b""

    def usage(self) -> Usage | None:
        tail = self._tail.read()
        if self._tail.whole:  # outermost members first: in what a model calls tools with may be anything
            return self._of_whole(tail) or read_usage(tail) or self._counted
        found = read_usage(tail) or read_usage(bytes(self._head))
        return found or native_usage(tail, whole=False) or self._counted

    @staticmethod
    def _of_whole(body: bytes) -> Usage | None:
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
        usage = document.get("usage") if isinstance(document, dict) else None
        found = usage_from(usage) if isinstance(usage, dict) else None
        return found or native_usage(body, whole=True)


class EventUsage:
    """For a stream of server-sent events (OpenAI's chat, completions and responses; Anthropic's messages)."""

    def __init__(self, *, strip: bool) -> None:
        self._strip = strip
        self._event = bytearray()
        """The unfinished event as far as it is remembered."""
        self._passed_bytes = 0
        """How many bytes at the front of ``_event`` have been passed on."""
        self._begun = False
        """Some of the unfinished event has been passed on: it can no longer be taken out."""
        self._first: bytes | None = None
        self._last: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        if not self._event:
            if data.endswith(b"\n\n") and b'"usage"' not in data:  # a token, nearly always
                return data
            return self._pass_on(data)
        search_from = max(0, len(self._event) - _OVERLAP_BYTES)
        self._event += data
        end = self._event_end(search_from)
        if end is None:
            return self._pass_unfinished()
        finished = self._finish_event(end)
        rest = bytes(self._event)
        self._event.clear()
        return finished + self._pass_on(rest) if rest else finished

    def _pass_on(self, data: bytes) -> bytes:
        """No event is unfinished. Events that say nothing of usage pass together, however many they are."""
        end = _whole_events(data)
        at = data.find(b'"usage"', 0, end)
        if at >= 0 and _USAGE_MEMBER.search(data, at, end):
            end = 0
        if end == len(data):
            return data
        self._event += data[end:]
        out = [data[:end]]
        while (event_end := self._event_end(0)) is not None:
            out.append(self._finish_event(event_end))
        out.append(self._pass_unfinished())
        return b"".join(out)

    def finish(self) -> bytes:
        return self._finish_event(len(self._event))

    def usage(self) -> Usage | None:
        last = None if self._last is None else read_usage(self._last)
        first = None if self._first is None else read_usage(self._first)
        if last is None or first is None or last.prompt_tokens:
            return last or first
        # Anthropic's: what went in stands in the first event, what came out in the last.
        return Usage(first.prompt_tokens, last.completion_tokens, first.cached_tokens)

    def _event_end(self, search_from: int) -> int | None:
        found = _EVENT_END.search(self._event, search_from)
        if found is None:
            return None
        end = found.end()
        if end == len(self._event) and self._event[-1] == 0x0D:
            return None  # an LF that belongs to this CR may be on its way
        return end

    def _finish_event(self, end: int) -> bytes:
        """Takes the event that ends at ``end`` off the front and gives what of it is to be passed on."""
        event = bytes(self._event[:end])
        unpassed = event[self._passed_bytes :]
        removed = False
        if _USAGE_MEMBER.search(event):
            self._first = self._first or event
            self._last = event
            removed = self._strip and self._may_be_usage(event) and is_usage_chunk(event)
        del self._event[:end]
        self._passed_bytes = 0
        self._begun = False
        return _blank_beginning(event) if removed else unpassed

    @staticmethod
    def _may_be_usage(event: bytes | bytearray) -> bool:
        """Once False for the front of an event, it is False for the whole: so however the bytes are
        grouped, the same events are taken out."""
        return len(event) <= HELD_BYTES and not _A_CHOICE.search(event)

    def _pass_unfinished(self) -> bytes:
        if not self._event or (self._strip and not self._begun and self._may_be_usage(self._event)):
            return b""
        out = bytes(self._event[self._passed_bytes :])
        self._begun = True
        if len(self._event) > 2 * EVENT_TAIL_BYTES:
            del self._event[:-EVENT_TAIL_BYTES]
        self._passed_bytes = len(self._event)
        return out


def _whole_events(data: bytes) -> int:
    """Where the last event of ``data`` ends that ends as nearly all do; 0 if none does."""
    lf, crlf = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)


def _blank_beginning(event: bytes) -> bytes:
    """The line ends before the first field. They pass even if the event does not: they might as well have
    been taken for those of the event before."""
    return event[: len(event) - len(event.lstrip(b"\r\n"))]


def is_usage_chunk(event: bytes) -> bool:
    """True for an event whose one data line is a chunk with no choices and a usage object."""
    if not _NO_CHOICES.search(event):
        return False
    lines = [line for line in event.splitlines() if line]
    if len(lines) != 1 or not lines[0].startswith(b"data:"):
        return False
    try:
        chunk = orjson.loads(lines[0][len(b"data:") :])
    except orjson.JSONDecodeError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def read_usage(text: bytes) -> Usage | None:
    """The last usage object in ``text``, which may be cut at the front; None when there is none."""
    found = None
    for found in _USAGE_MEMBER.finditer(text):  # noqa: B007 - the last one counts
        pass
    if found is None:
        return None
    start = found.end() - 1
    try:
        value, _ = _DECODER.raw_decode(text[start : start + USAGE_OBJECT_CHARS].decode(errors="replace"))
    except (ValueError, RecursionError):  # the latter for what is nested too deeply
        return None
    return usage_from(value) if isinstance(value, dict) else None


def usage_from(value: dict[str, Any]) -> Usage | None:
    """The counts in an OpenAI or Anthropic usage object; None when it holds none."""
    prompt = _count(value, "prompt_tokens", "input_tokens")
    completion = _count(value, "completion_tokens", "output_tokens")
    total = _count(value, "total_tokens")
    if prompt is None and completion is None and total is None:
        return None
    cached = 0
    for details in (value.get("prompt_tokens_details"), value.get("input_tokens_details")):
        if isinstance(details, dict):
            cached = _count(details, "cached_tokens") or cached
    if prompt is None:
        prompt = max(0, (total or 0) - (completion or 0))
    # Anthropic counts what it read from or wrote to its cache apart from the rest of the prompt.
    read, written = _count(value, "cache_read_input_tokens"), _count(value, "cache_creation_input_tokens")
    return Usage(prompt + (read or 0) + (written or 0), completion or 0, cached or read or 0)


def _count(value: dict[str, Any], *names: str) -> int | None:
    for name in names:
        item = value.get(name)
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= COUNT_MAX:
            return item
    return None
