"""Reads token usage out of server-sent events as they pass, and takes out the usage chunk nobody asked for.

Tokens are never parsed: an event is looked at with regular expressions, and JSON is read only of an event
that looks like a usage chunk, and of the last usage object of a response when it is over.

What is held back, and how long: in STRIP mode the bytes of one unfinished event that may yet turn out to be
a usage chunk, at most ``HELD_BYTES``. A finished event is passed on or taken out at once; an unfinished one
that has a choice in it is passed on at once. In the other modes nothing is held back.
"""

import re

import orjson

from agent.requests.usage_counts import USAGE_MEMBER, USAGE_OBJECT_BYTES, last_member, read_usage
from shared.protocol.messages import Usage

KIB = 1024

HELD_BYTES = 16 * KIB
"""Longest unfinished event that is held back: a usage chunk is below 1 KiB, so this is no usage chunk."""

JUDGED_EVENTS = 256
"""Of the whole events in one piece so many that have no choices may be taken out; an answer has one."""

EVENT_TAIL_BYTES = 64 * KIB
"""Of an unfinished event so much is remembered (twice at the most): usage stands at the end of an event that
repeats the whole answer, as the last one of ``/v1/responses`` does."""

_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_A_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*[^\s\]]')
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
"""Two line ends. Atomic, so that one CRLF is never read as two. For a known place: a search is slow."""
_TWO_LINE_ENDS = (b"\n\n", b"\n\r", b"\r\r")
"""Wherever two line ends stand, one of these does: CRLF alone is one, and holds none."""
_OVERLAP_BYTES = 3
"""An event's end of four bytes may have begun so many bytes before the new ones."""
_LINE_ENDS = re.compile(rb"[\r\n]*")
_REST_OF_LINE = re.compile(rb"[^\r\n]*")


class EventUsage:
    """For a stream of server-sent events (OpenAI's chat, completions and responses; Anthropic's messages).

    Whole events are passed on together and never walked one by one: only members named usage, and in STRIP
    mode empty lists of choices, are searched for. So a piece of many short events costs what one event does.
    """

    def __init__(self, *, strip: bool) -> None:
        self._strip = strip
        self._event = bytearray()
        """The unfinished event as far as it is remembered, from its first byte that ends no line."""
        self._passed_bytes = 0
        """How many bytes at the front of ``_event`` have been passed on: with any, it is not taken out."""
        self._first: bytes | None = None
        """The first member named usage and what follows it."""
        self._last: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        if not self._event:
            if data.endswith(b"\n\n") and b'"usage"' not in data:  # a token, nearly always
                return data
            return self._pass_on(data)
        search_from = max(0, len(self._event) - _OVERLAP_BYTES)
        self._event += data
        end = _first_event_end(self._event, search_from)
        if end is None:
            return self._pass_unfinished()
        if end == len(self._event) and self._event.endswith(b"\r") and self._is_taken_out(self._event):
            return b""  # an LF that belongs to this CR, and goes with it, may be on its way
        finished, rest = self._finish_event(end), bytes(self._event)
        self._event.clear()
        return finished + self._pass_on(rest) if rest else finished

    @property
    def takes_whole_events(self) -> bool:
        """No event is unfinished. Then whole events that do not name usage pass on as they come."""
        return not self._event

    def finish(self) -> bytes:
        return self._finish_event(len(self._event))

    def usage(self) -> Usage | None:
        last = None if self._last is None else read_usage(self._last)
        if self._first is self._last:  # there is one such member, as most often
            return last
        first = None if self._first is None else read_usage(self._first, last=False)
        if last is None or first is None or last.prompt_tokens:
            return last or first
        # Anthropic's: what went in stands in the first event, what came out in the last.
        return Usage(first.prompt_tokens, last.completion_tokens, first.cached_tokens)

    def _pass_on(self, data: bytes) -> bytes:
        """No event is unfinished."""
        end = _whole_events(data)
        self._note(data, end)
        out = self._without_usage_chunks(data, end) if self._strip else data[:end]
        if end < len(data):
            self._event += data[end:]
            out += self._pass_unfinished()
        return out

    def _finish_event(self, end: int) -> bytes:
        """Takes the event that ends at ``end`` off the front and gives what of it is to be passed on."""
        event = bytes(self._event[:end])
        self._note(event, end)
        unpassed = b"" if self._is_taken_out(event) else event[self._passed_bytes :]
        del self._event[:end]
        self._passed_bytes = 0
        return unpassed

    def _note(self, data: bytes, end: int) -> None:
        """Remember what ``data`` says of usage before ``end``."""
        at = last_member(data, end)
        if at < 0:
            return
        self._last = data[at : min(end, at + USAGE_OBJECT_BYTES)]
        if self._first is None:
            found = USAGE_MEMBER.search(data, 0, end)
            assert found is not None
            begin = found.start()
            self._first = self._last if begin == at else data[begin : min(end, begin + USAGE_OBJECT_BYTES)]

    def _without_usage_chunks(self, data: bytes, end: int) -> bytes:
        """The whole events before ``end``, without the usage chunks among them (:data:`JUDGED_EVENTS`)."""
        kept, kept_to, at, begin = [], 0, 0, _first_of_a_line(data)
        for _ in range(JUDGED_EVENTS):
            found = _NO_CHOICES.search(data, at, end)
            if found is None:
                break
            start = max(data.rfind(b"\n", at, found.start()), data.rfind(b"\r", at, found.start())) + 1
            start = max(start, at)
            at = _REST_OF_LINE.match(data, found.end(), end).end()  # type: ignore[union-attr]
            after = _EVENT_END.match(data, at, end)
            begins = start <= begin or _ends_event(data, start)
            if after is None or not begins or not self._is_taken_out(data[start : after.end()]):
                continue
            kept.append(data[kept_to:start])
            kept_to = at = after.end()
            if kept_to == len(data) and data.endswith(b"\r"):
                self._event += data[start:]  # an LF that belongs to this CR may be on its way
        return b"".join((*kept, data[kept_to:end]))

    def _is_taken_out(self, event: bytes | bytearray) -> bool:
        may_be = self._strip and not self._passed_bytes and self._may_be_usage(event)
        return may_be and is_usage_chunk(event)

    @staticmethod
    def _may_be_usage(event: bytes | bytearray) -> bool:
        """Once False for an event's front, it is False for the whole, however the bytes are grouped."""
        return len(event) <= HELD_BYTES and not _A_CHOICE.search(event)

    def _pass_unfinished(self) -> bytes:
        if self._strip and not self._passed_bytes and self._may_be_usage(self._event):
            return b""
        out = bytes(self._event[self._passed_bytes :])
        if len(self._event) > 2 * EVENT_TAIL_BYTES:
            del self._event[:-EVENT_TAIL_BYTES]
        self._passed_bytes = len(self._event)
        return out


def _whole_events(data: bytes) -> int:
    """Where the last whole event of ``data`` and the line ends behind it end; or those at the front."""
    at, found = 0, False
    for pair in _TWO_LINE_ENDS:
        place = data.rfind(pair, at)
        if place >= 0:
            at, found = place, True
    return _first_of_a_line(data, at + 2 if found else 0)


def _first_of_a_line(data: bytes, start: int = 0) -> int:
    """The place from ``start`` on of the first byte that ends no line."""
    found = _LINE_ENDS.match(data, start)
    assert found is not None
    return found.end()


def _first_event_end(data: bytearray, start: int) -> int | None:
    """Where the first event ends whose end begins at ``start`` or behind it; None if none does."""
    at, to = -1, len(data)
    for pair in _TWO_LINE_ENDS:
        place = data.find(pair, start, to)
        if place >= 0:
            at, to = place, place + 1
    if at < 0:
        return None
    return at + 3 if data[at + 1 : at + 3] == b"\r\n" else at + 2


def _ends_event(data: bytes, at: int) -> bool:
    """Whether two line ends stand before ``at``, where a line begins."""
    before = data[max(0, at - 3) : at]
    one_less = before[:-2] if before.endswith(b"\r\n") else before[:-1]
    return one_less.endswith((b"\n", b"\r"))


def is_usage_chunk(event: bytes | bytearray) -> bool:
    """True for an event whose one data line is a chunk with no choices and a usage object."""
    line = bytes(event).strip(b"\r\n")
    if not line.startswith(b"data:") or b"\n" in line or b"\r" in line:
        return False
    if not _NO_CHOICES.search(line) or not USAGE_MEMBER.search(line):
        return False
    try:
        chunk = orjson.loads(line[len(b"data:") :])
    except orjson.JSONDecodeError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)
