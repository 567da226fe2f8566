"""What a client has been sent of one streamed answer: whole events, bounded, not parsed while it streams.

A stream may break at any byte. Held back is therefore what of an event has come as long as it is unfinished:
when the stream breaks, it is dropped, and the client never has half an event. Nothing else is held back: an
engine whose events are not understood (no blank lines between them, no server-sent events at all, an event
above :data:`HELD_BYTES`) makes the record overflow, and all it sends passes at once.

Some engines end the HTTP body of a streamed answer in order without the event that ends their dialect's
streams: ``transformers serve`` sends no ``[DONE]``. The answer is whole all the same once every choice in it
has its finish reason: it is searched by compiled patterns, and JSON is read only of the events they find and
of the answer's two ends.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from gateway.dispatch.recovery.events import DONE, written
from shared.process.server_sent_events import OVERLAP_BYTES, each_event, last_event_end
from shared.protocol.limits import KIB, MIB

MESSAGE_STOP = written({"type": "message_stop"}, "message_stop")

_CLOSINGS = {"chat": DONE, "completions": DONE, "messages": MESSAGE_STOP}
"""What is sent in place of what is missing. A response of ``/v1/responses`` has no finish reason but in its
last event, so nothing can be missing after it."""

_CHOICE_FINISHED = re.compile(rb'"finish_reason"\s*+:\s*+"[^"]')
_MESSAGE_FINISHED = re.compile(rb'"stop_reason"\s*+:\s*+"[^"]')
"""A reason that is not empty. In a JSON string quotes are escaped, so no text looks like it."""
_ANOTHER_CHOICE = re.compile(rb'"index"\s*+:\s*+[1-9]')
"""There may be several choices; a tool call's index looks alike."""
_LINE_FINISHED = re.compile(_CHOICE_FINISHED.pattern + rb"[^\r\n]*+")
"""With the rest of its line, so that a line is found once."""

WINDOW_BYTES = 32 * 1024
"""How much of the beginning and of the end of an answer with several choices is searched for its choices. A
choice that is not finished appears in one of them, because choices take turns."""

FINISHES = 512
"""Most lines with finish reasons that are read, of an answer with several choices: one of each is enough."""

FINISHES_BYTES = 64 * 1024
"""Most bytes of such events that are read."""


def closing_of(route: str, data: bytes) -> bytes | None:
    """The events that an answer lacks whose stream ended in order after ``data``, as far as it was kept;
    None when its engine did not say of every choice why it ends."""
    closing = _CLOSINGS.get(route)
    if closing is None or not _is_finished(route, data):
        return None
    return closing


def _is_finished(route: str, data: bytes) -> bool:
    if route == "messages":
        return _MESSAGE_FINISHED.search(data) is not None
    if _CHOICE_FINISHED.search(data) is None:
        return False
    if _ANOTHER_CHOICE.search(data) is None:
        return True
    finished = set[int]()
    for line in _finishing_lines(data):
        finished |= _choices(line, finished=True)
    return finished >= _choices(data[:WINDOW_BYTES]) | _choices(data[-WINDOW_BYTES:])


def _finishing_lines(data: bytes) -> Iterator[bytes]:
    """The lines with a finish reason, as many as are read."""
    read_bytes = 0
    for found in islice(_LINE_FINISHED.finditer(data), FINISHES):
        begin = max(data.rfind(b"\n", 0, found.start()), data.rfind(b"\r", 0, found.start())) + 1
        read_bytes += found.end() - begin
        if read_bytes > FINISHES_BYTES:
            return
        yield data[begin : found.end()]


def _choices(data: bytes, *, finished: bool = False) -> set[int]:
    """The indices of the choices in the events of ``data``; only those with a finish reason if ``finished``.
    Events that are cut say nothing."""
    chunks = [event.value() for event in each_event(data) if event.data is not None]
    return {
        choice["index"]
        for chunk in chunks
        for choice in _list(chunk)
        if isinstance(choice, dict)
        and isinstance(choice.get("index"), int)
        and (choice.get("finish_reason") or not finished)
    }


def _list(chunk: dict[str, Any] | None) -> list[Any]:
    choices = None if chunk is None else chunk.get("choices")
    return choices if isinstance(choices, list) else []


HELD_BYTES = 64 * KIB
"""Longest unfinished event that is held back."""

CHUNKS = 1024
"""Recorded pieces are joined when there are so many, so that small ones cost their bytes only."""

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_USUAL_ENDS = (b"\n\n", b"\r\n\r\n")
_FIELDS = (b"data", b"event", b"id", b"retry", b":")
_FIELD_BYTES = max(map(len, _FIELDS))
_WHOLE_LINE = re.compile(rb"data: ?[\[{].*[\]}]\r?\Z", re.DOTALL)
"""A data line that needs no second one."""
_WHOLE_LINES = re.compile(
    rb"^data: ?[\[{][^\n]*+\n(?:(?<=[\]}]\n)|(?<=[\]}]\r\n))",
    re.MULTILINE,
)
"""The same with its LF, among others."""
_STRANGE_LINE = re.compile(rb"^(?!data|event|id|retry|:|\r*+$)", re.MULTILINE)
"""The beginning of a line that is not blank and begins with no field. Like the pattern above it takes time in
proportion to the bytes, whatever they are."""

_END_OF_OPENAI = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
_USUAL_DONE, _DONE_ALONE = b"\ndata: [DONE]\n\n", b"data: [DONE]\n\n"
"""How nearly everybody ends streams in OpenAI's dialects."""
_END_OF_RESPONSES = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed)"')
_END_OF_MESSAGES = re.compile(rb'"type"\s*:\s*"message_stop"')
_ENDS = {
    "chat": _END_OF_OPENAI,
    "completions": _END_OF_OPENAI,
    "responses": _END_OF_RESPONSES,
    "messages": _END_OF_MESSAGES,
}
"""The route's own end. In a JSON string quotes and line ends are escaped, so no text looks like it."""
_END_BYTES = 64
"""Longer than any of these marks."""
_TAIL_BYTES = 4 * KIB
"""How much of the end of an answer is kept when it is no longer recorded: more than its last events.
``[DONE]`` is searched for in as much of the last one."""


class RecordBudget:
    """Bytes that all records of a gateway may hold together."""

    def __init__(self, total_bytes: int = 64 * MIB) -> None:
        self.total_bytes = total_bytes
        self.taken_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Whether there was room; nothing is taken when there was not."""
        if self.taken_bytes + size_bytes > self.total_bytes:
            return False
        self.taken_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0


class AnswerRecord:
    """The response so far, of one streamed answer. ``most_bytes`` of it are kept at the most.

    Its owner calls :meth:`release` when the answer is done with, one way or the other.
    """

    def __init__(self, route: str, budget: RecordBudget, most_bytes: int = MIB) -> None:
        self.route = route
        self.fresh: list[bytes] = []
        """Whole events that went to the client unfed, which is allowed while :attr:`between`. To be settled
        every few kilobytes; whoever asks the record for anything settles them first."""
        self.between = True
        """What comes next begins an event, and nothing is held back."""
        self._overflowed = False
        self._budget = budget
        self._most_bytes = most_bytes
        self._size_bytes = 0
        self._chunks: list[bytes] = []
        self._held = bytearray()
        """The unfinished event: not passed on, not recorded, to be dropped when the stream breaks."""
        self._searched = 0
        """So many bytes of what is held hold no end of an event."""
        self._line_start = 0
        self._whole_lines = 0
        self._released = False
        self._foreign = False
        """It is not made of events, from its beginning."""
        self._end = _ENDS.get(route)
        self._tail = b""
        self._ended = False

    @property
    def overflowed(self) -> bool:
        """No longer recorded: the answer cannot go on elsewhere, and :meth:`feed` passes everything."""
        if self.fresh:
            self.settle()
        return self._overflowed

    def settle(self) -> None:
        """Keep what is fresh."""
        if self.fresh:
            data = b"".join(self.fresh)
            self.fresh.clear()
            self._keep(data)

    @property
    def data(self) -> bytes:
        """Every event recorded. Empty once the record overflowed or was released."""
        if self.fresh:
            self.settle()
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0] if self._chunks else b""

    @property
    def complete(self) -> bool:
        """Whether the route's own end went out: ``[DONE]``, ``response.completed`` and the like,
        ``message_stop``."""
        if self._overflowed:
            self.settle()
        if self._end is None or self._overflowed or self._released:
            return self._ended
        # All pieces are of whole events, so the last event is in the last one: nothing is joined for it.
        last = self.fresh[-1] if self.fresh else self._chunks[-1] if self._chunks else b""
        if self._end is _END_OF_OPENAI and (last.endswith(_USUAL_DONE) or last == _DONE_ALONE):
            return True
        event = _last_event(last)
        if not event:  # blank lines came alone
            event = _last_event(self.data)
            if self._overflowed:
                return self._ended
        start = max(0, len(event) - _TAIL_BYTES) if self._end is _END_OF_OPENAI else 0
        return self._end.search(event, start) is not None

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes of the answer; gives those that may go to the client now, perhaps none."""
        if self.fresh:
            self.settle()
        if self._overflowed or (not self._held and data.endswith(_USUAL_ENDS)):
            out = self._keep(data)
        else:
            out = self._feed(data)
        self.between = not (self._held or self._overflowed or self._released)
        return out

    def _feed(self, data: bytes) -> bytes:
        out = b""
        last = data.rfind(b"\n\n")  # how nearly everybody ends events; looked for at once, from behind
        if last >= 0:
            out = self._keep(bytes(self._held) + data[: last + 2])
            self._hold(data[last + 2 :])
        else:
            self._held += data
        end = last_event_end(self._held, self._searched)
        self._searched = max(0, len(self._held) - OVERLAP_BYTES)
        if end:
            out += self._keep(bytes(self._held[:end]))
            self._hold(self._held[end:])
        if not self._overflowed and self._held and not self._understood():
            self._foreign = not self._size_bytes
            self._overflow()
        if self._overflowed:
            rest, self._held = bytes(self._held), bytearray()
            out += self._keep(rest)
        return out

    def finish(self) -> bytes:
        """The stream is over in order: gives what was held back."""
        if not self._held:
            return b""
        self.settle()
        rest, self._held = bytes(self._held), bytearray()
        return self._keep(rest)

    @property
    def size_bytes(self) -> int:
        """How much is recorded."""
        self.settle()
        return self._size_bytes

    @property
    def ends_well(self) -> bool:
        """Whether the stream may end here: the route's own end has come, be it without its last line end; or
        what came are no events at all, which is for the client to judge."""
        if self._foreign or self.complete:
            return True
        if self._end is not None and self._end.search(self._held) is not None:
            return True
        return (
            not self.size_bytes and not self._overflowed and not _is_begun(bytes(self._held[:_FIELD_BYTES]))
        )

    def closing(self) -> bytes | None:
        """What the stream lacks, which ended in order but not as its route's streams do, though its engine
        had said why its answer ends; None when it had not, or the answer is cut within its last event.

        Unless None, :meth:`finish` comes first: what it gives may be an event without its blank line.
        """
        self.settle()
        kept, held = (self._tail, b"") if self._overflowed else (self.data, bytes(self._held))
        unended = _last_line(kept + held)
        if unended and _WHOLE_LINE.match(unended) is None:
            return None
        closing = closing_of(self.route, kept + held)
        return closing if closing is None or not unended else b"\n\n" + closing

    def break_off(self) -> None:
        """The stream broke: its unfinished event is forgotten, as the client has none of it."""
        self._hold(b"")
        self.between = not (self._overflowed or self._released)

    def release(self) -> None:
        """Give back the memory. Idempotent; :attr:`complete` goes on telling what it told."""
        self._ended = self.complete
        self._released, self.between = True, False
        self.fresh.clear()
        self._drop()

    def _hold(self, data: bytes | bytearray) -> None:
        self._held = bytearray(data)
        self._searched = self._line_start = self._whole_lines = 0

    def _keep(self, data: bytes) -> bytes:
        size_bytes = self._size_bytes + len(data)
        if self._overflowed or self._released:
            self._look_for_end(data)
        elif size_bytes <= self._most_bytes and self._budget.take(len(data)):
            self._size_bytes = size_bytes
            self._chunks.append(data)
            if len(self._chunks) >= CHUNKS:
                self._chunks = [b"".join(self._chunks)]
        else:
            self._overflow()
            self._look_for_end(data)
        return data

    def _overflow(self) -> None:
        self._ended = self.complete
        self._tail = self.data[-_TAIL_BYTES:]
        self._overflowed, self.between = True, False
        self._drop()

    def _drop(self) -> None:
        self._budget.give_back(self._size_bytes)
        self._size_bytes = 0
        self._chunks = []

    def _look_for_end(self, data: bytes) -> None:
        if self._end is not None and not self._ended:
            seen = self._tail + data
            self._ended = self._end.search(seen, max(0, len(self._tail) - _END_BYTES)) is not None
            self._tail = seen[-_TAIL_BYTES:]

    def _understood(self) -> bool:
        """Whether what is held may well be one unfinished event."""
        if len(self._held) > HELD_BYTES:
            return False
        end = self._held.rfind(b"\n", self._line_start) + 1
        if not end:
            return True
        lines = bytes(self._held[self._line_start : end])
        if _STRANGE_LINE.search(lines) is not None:
            return False
        self._line_start = end
        self._whole_lines += sum(1 for _ in islice(_WHOLE_LINES.finditer(lines), 2))
        return self._whole_lines < 2


def _is_begun(held: bytes) -> bool:
    """Whether this may be the beginning of an event, or nothing yet."""
    return any(held.startswith(field) or field.startswith(held) for field in _FIELDS)


def _last_line(data: bytes) -> bytes:
    """The last line of an event that no blank line has ended; empty when the last event was ended."""
    if data.endswith(_EVENT_ENDS):
        return b""
    rest = data[-HELD_BYTES:].rstrip(b"\r\n")
    return rest[max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1 :]


def _last_event(data: bytes) -> bytes:
    """The last event of ``data`` that is not blank."""
    end = len(data.rstrip(b"\r\n"))
    begin = 0
    for mark in _EVENT_ENDS:  # the usual one first: the others are looked for behind it only
        begin = max(begin, data.rfind(mark, begin, end))
    return data[begin:end]
